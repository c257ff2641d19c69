"""Attention with an angular hybrid by sign codes, exactly: K̂ = λ̂ K̂₁ + (1 − λ̂) K̂₂ (paper, Sec. 2.4).

λ̂ is the share of the n sign bits that differ. The features of the composition lemma are n + 1 times as wide
as the bases'. Instead, the bits are cut into groups, with a state for every code c of a group,

    S_c = Σ_{y of code c} φ(y) v(y)ᵀ,

φ the features of both bases side by side. A query of code c reads Σ_{c'} h(c, c') S_{c'} for the first base,
h the number of bits that differ, and the same with those that agree for the second: one product a group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hrf.attention.segments import Blocks, finite
from hrf.features.base import Features, Side, half_square
from hrf.features.coefficients import Angular
from hrf.features.exponential import Exponential, Shared
from hrf.features.hybrid import Hybrid

__all__ = ["serves", "sums"]

_MAX_BITS = 8  # of a group: its states are as many as its codes
_SIZE = 64  # tokens of a block, unless the codes are shared by fewer
_TOKENS = 1 << 13  # tokens at a time: what becomes of them stays in the cache


def serves(feature_map: object) -> bool:
    """Whether `sums` is for this map: two isotropic exponential bases and an angular coefficient."""
    return (
        isinstance(feature_map, Hybrid)
        and len(feature_map.bases) == 2
        and all(isinstance(base, Exponential) and base.isotropic for base in feature_map.bases)
        and isinstance(feature_map.coefficients[0], Angular)
    )


def sums(x: Tensor, y: Tensor, values: Tensor, feature_map: Hybrid, keep: Tensor | None = None) -> Features:
    """Σ_y K̂(x, y) v(y) for all queries, over the keys to keep.

    Args:
        x: queries ``(..., H, L, d)``, scaled and checked.
        y: keys ``(..., H, S, d)``.
        values: ``(..., H, S, c)``.
        feature_map: one that this engine `serves`.
        keep: booleans that broadcast to ``(..., H, S)``; ``None`` keeps all.
    """
    if not (x.shape[-2] and y.shape[-2]):
        return Features(x @ y.mT @ values, torch.zeros_like(x[..., :1]))
    (coefficient,) = feature_map._coefficients()
    codes = _Codes.of(coefficient.n_projections, y)
    queries = _Side.of(x, "query", feature_map, codes, None)
    keys = _Side.of(y, "key", feature_map, codes, keep)
    key_scale = finite(keys.log_scale.amax(-2, keepdim=True))  # a constant a row and base
    counts = keys.blocks.counts.unsqueeze(-1).expand(-1, -1, -1, 2)
    weight = codes.spread(counts.to(x.dtype), [1, 1])  # of each base, by code
    absent = weight.take_along_dim(queries.codes.unsqueeze(-1), -2).sum(1) == 0
    scale = (queries.log_scale + key_scale).masked_fill(absent, -torch.inf).amax(-1, keepdim=True)
    scale = finite(scale)
    query_logs = (queries.log_weight + (key_scale - scale)).masked_fill(absent, -torch.inf)
    watched = any(feature_map._watched(u) for u in (x, y, values))
    out = _Product(codes, feature_map._bases(), values.shape[-1], in_place=not watched)(
        queries.table(query_logs), keys.table(keys.log_weight - key_scale), values, queries, keys
    )
    lead = x.shape[:-1]
    return Features(out.view(*lead, -1), (scale - math.log(len(codes.weights))).view(*lead, 1))


class _Codes(NamedTuple):
    """How n bits are cut into G groups of g, the last of which may have fewer.

    Attributes:
        weights: of each bit in the code of each group, ``(n, G)``.
        same: which of the 2g values of bits each code has, ``(2g, 2^g)``.
        differ: those it has not.
        real: 1 for values of bits that there are, ``(G, 2g, 1)``.
    """

    weights: Tensor
    same: Tensor
    differ: Tensor
    real: Tensor

    @classmethod
    def of(cls, n: int, y: Tensor) -> _Codes:
        """As few groups as there can be with about a block of keys for each code."""
        most = int(math.log2(max(1, y.shape[-2] / _SIZE)))
        n_groups = -(-n // min(max(most, 4), _MAX_BITS))
        g = -(-n // n_groups)
        bits = torch.arange(n_groups * g, device=y.device).view(n_groups, g)
        weights = torch.block_diag(*(2.0 ** (group % g).unsqueeze(-1) for group in bits))[:n]
        ones = torch.arange(2**g, device=y.device) >> bits[0].unsqueeze(-1) & 1
        same = torch.cat([ones, 1 - ones])
        real = (bits < n).repeat(1, 2).unsqueeze(-1)
        return cls(*(table.to(y.dtype) for table in (weights, same, 1 - same, real)))

    @property
    def shape(self) -> tuple[int, int]:
        """G and 2^g."""
        return self.weights.shape[-1], self.same.shape[-1]

    def spread(self, states: Tensor, widths: Sequence[int]) -> Tensor:
        """Σ h(c, c') S_{c'} and Σ (g − h(c, c')) S_{c'} for the two parts of states ``(..., G, 2^g, ·)``.

        By way of sums over all codes with a certain bit. No difference is taken: a base whose weight is 0
        for all keys gets exactly 0.
        """
        first, second = ((self.same @ states) * self.real).split(widths, -1)
        return torch.cat([self.differ.mT @ first, self.same.mT @ second], -1)


class _Side(NamedTuple):
    """Queries or keys, R rows of L: their blocks by code and what their features are made of.

    Attributes:
        blocks: tokens by code, G codes each.
        codes: ``(R, G, L)``.
        projected: ωᵀu for all ω, side by side, ``(R, L, ·)``.
        log_weight: as of `Exponential`, for both bases, ``(R, L, 2)``.
        log_scale: the log of the largest feature of both bases, constant for autograd.
    """

    blocks: Blocks
    codes: Tensor
    projected: Tensor
    log_weight: Tensor
    log_scale: Tensor

    @classmethod
    def of(cls, u: Tensor, side: Side, feature_map: Hybrid, codes: _Codes, keep: Tensor | None) -> _Side:
        bases, (coefficient,) = feature_map._bases(), feature_map._coefficients()
        tau = coefficient.projection.omega
        omegas = [p.omega for p in dict.fromkeys(base.projection for base in bases)]
        omega = torch.cat([*omegas, tau], -2).to(u.dtype)
        product = (u @ omega.mT).view(-1, u.shape[-2], omega.shape[-2])
        projected, bits = product.split([omega.shape[-2] - tau.shape[-2], tau.shape[-2]], -1)
        own = ((bits >= 0).to(u.dtype) @ codes.weights).mT.long()  # (R, G, L)
        square = half_square(u).view(*product.shape[:2], 1)
        logs, scales = [], []
        for base, p in zip(bases, _by_base(projected, bases), strict=True):
            real, _, log_weight, *_ = base._prepare(p, side, Shared(p, square))
            logs.append(log_weight)
            if real is not None:
                log_weight = log_weight + (p.abs() if base.antithetic else p).amax(-1, keepdim=True)
            scales.append(log_weight)
        log_weight, log_scale = torch.cat(logs, -1), torch.cat(scales, -1).detach()
        labels = own
        if keep is not None:
            keep = keep.expand(u.shape[:-1]).reshape(product.shape[:2])
            labels = own.where(keep.unsqueeze(-2), codes.shape[1])
            log_weight, log_scale = (
                t.masked_fill(~keep.unsqueeze(-1), -torch.inf) for t in (log_weight, log_scale)
            )
        size = min(max(u.shape[-2] // codes.shape[1], 8), _SIZE)
        return cls(Blocks.of(labels, codes.shape[1], size), own, projected, log_weight, log_scale)

    def table(self, logs: Tensor) -> Tensor:
        """What makes the features, token by token, with other log weights: ``(R·L, ·)``."""
        return torch.cat([self.projected, logs], -1).flatten(0, 1)


class _Product:
    """Queries times (keys times values), some rows at a time."""

    def __init__(self, codes: _Codes, bases: list[Any], n_values: int, *, in_place: bool) -> None:
        self.codes, self.bases, self.n_values, self.in_place = codes, bases, n_values, in_place
        self.widths = [base.feature_dim for base in bases]
        self.places: list[Tensor] = []  # for features, and for what comes before

    def __call__(
        self, query_table: Tensor, key_table: Tensor, values: Tensor, queries: _Side, keys: _Side
    ) -> Tensor:
        c = self.n_values
        if self.in_place:
            self.places = [values.new_empty(sum(self.widths), 2 * _TOKENS).mT for _ in range(2)]
        values = values.reshape(-1, c)
        n_rows, n_groups, length = queries.codes.shape
        out = values.new_empty(n_rows, length, c) if self.in_place else None
        parts = []
        step = max(1, _TOKENS // (n_groups * max(length, keys.codes.shape[-1])))
        for start in range(0, n_rows, step):
            end = min(start + step, n_rows)
            state = self._write(key_table, values, keys.blocks, start, end)
            place = None if out is None else out[start:end].view(-1, c)
            parts.append(self._read(query_table, state, queries.blocks, start, end, place))
        return torch.cat(parts) if out is None else out

    def _write(self, table: Tensor, values: Tensor, blocks: Blocks, start: int, end: int) -> Tensor:
        """What queries of each code read, ``(rows·G·2^g, D, c)``."""
        shape = (end - start, *self.codes.shape, -1)
        lowest = start * math.prod(self.codes.shape)
        width = sum(self.widths) * self.n_values
        state = values.new_zeros(math.prod(shape[:-1]), width)
        for some in blocks.pieces(_TOKENS // blocks.members.shape[-1], start, end):
            phi = self._features(table, blocks, some)
            product = phi.mT @ blocks.take_once(values, some)
            state = state.index_add_(0, blocks.segment[some] - lowest, product.flatten(1))
        spread = self.codes.spread(state.view(shape), [w * self.n_values for w in self.widths])
        return spread.view(-1, sum(self.widths), self.n_values)

    def _read(
        self, table: Tensor, state: Tensor, blocks: Blocks, start: int, end: int, out: Tensor | None
    ) -> Tensor:
        """The sums for the queries of some rows, ``(rows·L, c)``."""
        lowest = start * math.prod(self.codes.shape)
        parts = []
        for some in blocks.pieces(_TOKENS // blocks.members.shape[-1], start, end):
            phi = self._features(table, blocks, some)
            parts.append(phi @ state.index_select(0, blocks.segment[some] - lowest))
        result = (torch.cat(parts) if len(parts) > 1 else parts[0]).flatten(0, 1)
        first, *others = (blocks.place[start:end] - blocks.first[start] * blocks.members.shape[-1]).unbind(1)
        total = torch.index_select(result, 0, first.flatten(), out=out)
        for place in others:
            total += result.index_select(0, place.flatten())
        return total

    def _features(self, table: Tensor, blocks: Blocks, some: slice) -> Tensor:
        """Features of both bases for all places of some blocks: ``(n, size, D)``."""
        members = blocks.members[some]
        # Tokens along the fast axis: then the columns of either base are contiguous.
        rows = table.index_select(0, members.flatten()).mT.contiguous().mT
        logs = rows[:, -2:]
        phi, start = [], 0
        for k, (base, p) in enumerate(zip(self.bases, _by_base(rows[:, :-2], self.bases), strict=True)):
            columns = slice(start, start + base.feature_dim)
            places = [place[: len(rows), columns] for place in self.places]
            real, imag = (
                p if part else None for part in (base.query_matrix.has_real, base.query_matrix.has_imag)
            )
            phi.append(base._evaluate([real, imag, logs[:, k : k + 1], None, p, None], *places))
            start += base.feature_dim
        joint = self.places[0][: len(rows)] if self.places else torch.cat(phi, -1)
        return joint.unflatten(0, members.shape)


def _by_base(projected: Tensor, bases: list[Any]) -> Sequence[Tensor]:
    """The columns ωᵀu of either base, which may be the same."""
    if bases[0].projection is bases[1].projection:
        return projected, projected
    return projected.split([base.n_projections for base in bases], -1)
