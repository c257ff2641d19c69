"""Attention with an angular hybrid by sign codes, exactly: K̂ = λ̂ K̂₁ + (1 − λ̂) K̂₂ (paper, Sec. 2.4).

λ̂ is the share of the n sign bits that differ. The features of the composition lemma are n + 1 times as wide
as the bases'. Instead, the bits are cut into groups, with a state for every code c of a group,

    S_c = Σ_{y of code c} φ(y) v(y)ᵀ,

φ the features of both bases side by side. A query of code c reads Σ_{c'} h(c, c') S_{c'} for the first base,
h the number of bits that differ, and the same with those that agree for the second: one product a group.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from hrf.attention.blocks import Place
from hrf.attention.segments import Blocks, joined, nothing, with_ones
from hrf.features.base import Features, Side, finite, half_square
from hrf.features.coefficients import Angular
from hrf.features.exponential import Exponential, Shared
from hrf.features.hybrid import Hybrid

__all__ = ["serves", "stream", "sums"]

_MAX_BITS = 8  # of a group: its states are as many as its codes
_SIZE = 64  # tokens of a block, unless that is more than half of those of a code
_TOKENS = 1 << 13  # tokens at a time, once for each group: what becomes of them stays in the cache
_PIECE = 1 << 12  # places at a time


def serves(feature_map: object) -> bool:
    """Whether `sums` is for this map: two isotropic exponential bases and an angular coefficient."""
    return (
        isinstance(feature_map, Hybrid)
        and len(feature_map.bases) == 2
        and all(isinstance(base, Exponential) and base.isotropic for base in feature_map.bases)
        and isinstance(feature_map.coefficients[0], Angular)
    )


def stream(
    x: Tensor,
    y: Tensor,
    values: Tensor,
    feature_map: Hybrid,
    keep: Tensor | None = None,
    root: float = 1,
    *,
    ones: bool = False,
) -> Iterator[Features]:
    """Σ_y K̂(x, y) v(y), over the keys to keep, for some rows of queries after others: ``(rows, L, c)``.

    Args:
        x: queries ``(..., H, L, d)``, checked.
        y: keys ``(..., H, S, d)``.
        values: ``(..., H, S, c)``.
        feature_map: one that this engine `serves`.
        keep: booleans that broadcast to ``(..., H, S)``; ``None`` keeps all.
        root: what multiplies queries and keys.
        ones: add a column of ones to the values.
    """
    if not (x.numel() and y.numel()):
        yield nothing(x, y, with_ones(values) if ones else values)
        return
    (coefficient,) = feature_map._coefficients()
    codes = _Codes.of(coefficient.n_projections, y)
    queries = _Side.of(x, "query", feature_map, codes, root, None)
    keys = _Side.of(y, "key", feature_map, codes, root, keep)
    scale = x.new_zeros(1, 1, 1).expand(*queries.log_weight.shape[:2], 1)
    small = queries.small and keys.small
    if not small:
        queries, keys, scale = _scaled(queries, keys, feature_map._bases(), codes)
    scale = scale - math.log(len(codes.weights))
    watched = any(feature_map._watched(u) for u in (x, y, values))
    product = _Product(codes, feature_map._bases(), ones=ones, small=small, in_place=not watched)
    for start, end, total in product(queries, keys, values.flatten(0, -2)):
        yield Features(total.unflatten(0, (end - start, -1)), scale[start:end])


def sums(x: Tensor, y: Tensor, values: Tensor, feature_map: Hybrid, keep: Tensor | None = None) -> Features:
    """What `stream` gives, for all queries at once: ``(..., H, L, c)``."""
    return joined(stream(x, y, values, feature_map, keep), x)


def _scaled(queries: _Side, keys: _Side, bases: list[Any], codes: _Codes) -> tuple[_Side, _Side, Tensor]:
    """Both with log weights such that no feature overflows, and the log scale of the sums, ``(R, L, 1)``."""
    key_scale = finite(keys.largest(bases).amax(-2, keepdim=True))  # a constant a row and base
    counts = keys.blocks.counts.unsqueeze(-1).expand(-1, -1, -1, 2)
    weight = codes.spread(counts.to(key_scale.dtype), [1, 1])  # of each base, by code
    absent = weight.take_along_dim(queries.codes.unsqueeze(-1), -2).sum(1) == 0
    scale = (queries.largest(bases) + key_scale).masked_fill(absent, -torch.inf).amax(-1, keepdim=True)
    scale = finite(scale)
    query_logs = (queries.log_weight + (key_scale - scale)).masked_fill(absent, -torch.inf)
    return (
        queries._replace(log_weight=query_logs),
        keys._replace(log_weight=keys.log_weight - key_scale),
        scale,
    )


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
        small: whether all features are far from overflow and underflow as they are.
    """

    blocks: Blocks
    codes: Tensor
    projected: Tensor
    log_weight: Tensor
    small: bool

    @classmethod
    def of(
        cls, u: Tensor, side: Side, feature_map: Hybrid, codes: _Codes, root: float, keep: Tensor | None
    ) -> _Side:
        bases, (coefficient,) = feature_map._bases(), feature_map._coefficients()
        tau = coefficient.projection.omega
        omegas = [p.omega for p in dict.fromkeys(base.projection for base in bases)]
        omega = root * torch.cat([*omegas, tau], -2).to(u.dtype)
        product = (u @ omega.mT).view(-1, u.shape[-2], omega.shape[-2])
        square = root**2 * half_square(u).view(*product.shape[:2], 1)
        if keep is not None:
            keep = keep.expand(u.shape[:-1]).reshape(*product.shape[:2], 1)
            product, square = (t.masked_fill(~keep, 0) for t in (product, square))
        projected, bits = product.split([omega.shape[-2] - tau.shape[-2], tau.shape[-2]], -1)
        own = ((bits >= 0).to(u.dtype) @ codes.weights).mT.long()  # (R, G, L)
        log_weight = torch.cat(
            [
                base._prepare(p, side, Shared(p, square))[2]
                for base, p in zip(bases, _by_base(projected, bases), strict=True)
            ],
            -1,
        )
        # Queries and keys get a third of the range each, and the sums with the values the last.
        small = _largest(product) + _largest(log_weight) < math.log(torch.finfo(u.dtype).max) / 3
        labels = own
        if keep is not None:
            labels = own.where(keep.mT, codes.shape[1])
            log_weight = log_weight.masked_fill(~keep, -torch.inf)
        size = min(max(u.shape[-2] // (2 * codes.shape[1]), 8), _SIZE)
        return cls(Blocks.of(labels, codes.shape[1], size), own, projected, log_weight, small)

    def largest(self, bases: list[Any]) -> Tensor:
        """The log of the largest feature of both bases, constant for autograd: ``(R, L, 2)``."""
        logs = []
        for base, p in zip(bases, _by_base(self.projected.detach(), bases), strict=True):
            if base.query_matrix.has_real:
                logs.append((p.abs() if base.antithetic else p).amax(-1))
            else:
                logs.append(torch.zeros_like(p[..., 0]))
        return self.log_weight.detach() + torch.stack(logs, -1)


def _largest(numbers: Tensor) -> float:
    """The largest magnitude."""
    low, high = numbers.detach().aminmax()
    return max(-float(low), float(high))


class _Product:
    """Queries times (keys times values), some rows at a time."""

    def __init__(self, codes: _Codes, bases: list[Any], *, ones: bool, small: bool, in_place: bool) -> None:
        self.codes, self.bases, self.ones, self.small, self.in_place = codes, bases, ones, small, in_place
        self.widths = [base.feature_dim for base in bases]
        self.places: defaultdict[str, Place] = defaultdict(Place)

    def __call__(self, queries: _Side, keys: _Side, values: Tensor) -> Iterator[tuple[int, int, Tensor]]:
        n_rows, n_groups, length = queries.codes.shape
        step = max(1, _TOKENS // (n_groups * max(length, keys.codes.shape[-1])))
        for start in range(0, n_rows, step):
            end = min(start + step, n_rows)
            state = self._write(keys, values, start, end)
            yield start, end, self._read(queries, state, start, end)

    def _write(self, keys: _Side, values: Tensor, start: int, end: int) -> Tensor:
        """What queries of each code read, ``(rows·G·2^g, D, c)``."""
        shape = (end - start, *self.codes.shape, -1)
        c = values.shape[-1] + self.ones
        state = values.new_zeros(math.prod(shape[:-1]), sum(self.widths) * c)
        for phi, segment, some in self._pieces(keys, start, end):
            place = self._place("product", len(phi), phi.shape[-1], c, like=phi)
            product = torch.bmm(phi.mT, self._values(values, keys.blocks.members[some]), out=place)
            state = state.index_add_(0, segment, product.flatten(1))
        spread = self.codes.spread(state.view(shape), [w * c for w in self.widths])
        return spread.view(-1, sum(self.widths) * c)

    def _read(self, queries: _Side, state: Tensor, start: int, end: int) -> Tensor:
        """The sums for the queries of some rows, ``(rows·L, c)``."""
        blocks = queries.blocks
        before, size = blocks.first[start], blocks.members.shape[-1]
        c = state.shape[-1] // sum(self.widths)
        places = self._place("result", blocks.first[end] - before, size, c, like=state)
        parts = []
        for phi, segment, some in self._pieces(queries, start, end):
            states = self._take(state, segment, "right").view(len(phi), -1, c)
            place = None if places is None else places[some.start - before : some.stop - before]
            parts.append(torch.bmm(phi, states, out=place))
        result = (torch.cat(parts) if places is None else places).flatten(0, 1)
        first, *others = (blocks.place[start:end] - before * size).unbind(1)
        total = result.index_select(0, first.flatten())
        for place in others:
            total += self._take(result, place.flatten(), "right")
        return total

    def _pieces(self, side: _Side, start: int, end: int) -> Iterator[tuple[Tensor, Tensor, slice]]:
        """Features by block ``(n, size, D)``, 0 in places left over; segments, from ``start`` on; which blocks."""
        blocks, length = side.blocks, side.codes.shape[-1]
        table = self._features(side, start, end)
        for some in blocks.pieces(_PIECE // blocks.members.shape[-1], start, end):
            members = (blocks.members[some] - (start * length - 1)) * blocks.filled[some]
            phi = self._take(table, members, "left")
            yield phi, blocks.segment[some] - start * math.prod(self.codes.shape), some

    def _take(self, table: Tensor, index: Tensor, name: str) -> Tensor:
        """Rows of a table, ``(*index.shape, ·)``, in a place of their own."""
        out = self._place(name, index.numel(), table.shape[-1], like=table)
        return torch.index_select(table, 0, index.flatten(), out=out).view(*index.shape, -1)

    def _values(self, values: Tensor, members: Tensor) -> Tensor:
        """The values of some tokens, with the column of ones if there is to be one."""
        if not self.ones:
            return self._take(values, members, "right")
        out = self._place("right", members.numel(), values.shape[-1] + 1, like=values)
        if out is None:
            return with_ones(self._take(values, members, "right"))
        torch.index_select(values, 0, members.flatten(), out=out[:, :-1])
        out[:, -1] = 1
        return out.view(*members.shape, -1)

    def _place(self, name: str, *shape: int, like: Tensor) -> Tensor | None:
        """Memory used over and over, so that it stays in the cache; ``None`` if autograd needs what is in it."""
        return self.places[name].of(*shape, like=like) if self.in_place else None

    def _features(self, side: _Side, start: int, end: int) -> Tensor:
        """Features of both bases for the tokens of some rows, after a row of zeros: ``(1 + rows·L, D)``."""
        projected, logs = (t[start:end].flatten(0, 1) for t in (side.projected, side.log_weight))
        projected = projected.contiguous()  # or exponentials are far slower
        table = self._place("table", 1 + len(logs), sum(self.widths), like=logs)
        by_base = _by_base(projected, self.bases)
        if table is not None and self.small:
            for base, p, log, place in zip(
                self.bases, by_base, logs.split(1, -1), table[1:].split(self.widths, -1), strict=True
            ):
                base._fill(p, log, place)
            table[0] = 0
            return table
        phi = []
        for k, (base, p) in enumerate(zip(self.bases, by_base, strict=True)):
            real, imag = (
                p if part else None for part in (base.query_matrix.has_real, base.query_matrix.has_imag)
            )
            phi.append(base._finish([real, imag, logs[:, k : k + 1], None, p, None], "query"))
        return pad(torch.cat(phi, -1), (0, 0, 1, 0))


def _by_base(projected: Tensor, bases: list[Any]) -> Sequence[Tensor]:
    """The columns ωᵀu of either base, which may be the same."""
    if bases[0].projection is bases[1].projection:
        return projected, projected
    return projected.split([base.n_projections for base in bases], -1)
