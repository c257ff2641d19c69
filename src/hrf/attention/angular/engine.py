"""Keys become a state, which queries read."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, pad

from hrf.attention.angular.codes import SIZE, Codes
from hrf.attention.blocks import Place
from hrf.attention.segments import Blocks, with_ones
from hrf.features.base import Features, Side, finite, half_square
from hrf.features.exponential import Shared
from hrf.features.hybrid import Hybrid

__all__ = ["Engine", "State"]

_PIECE = 1 << 12  # places at a time: they stay in the cache


class _Tokens(NamedTuple):
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

    def largest(self, bases: list[Any]) -> Tensor:
        """The log of the largest feature of both bases, constant for autograd: ``(R, L, 2)``."""
        logs = []
        for base, p in zip(bases, _by_base(self.projected.detach(), bases), strict=True):
            if base.query_matrix.has_real:
                logs.append((p.abs() if base.antithetic else p).amax(-1))
            else:
                logs.append(torch.zeros_like(p[..., 0]))
        return self.log_weight.detach() + torch.stack(logs, -1)


class State(NamedTuple):
    """What keys of each code add up to.

    Attributes:
        sums: of φ(y) v(y)ᵀ, ``(R, G, 2^g, D·c)``.
        counts: how many keys have each code, ``(R, G, 2^g)``.
        scale: the log scale of both bases, ``(R, 1, 2)``; −∞ without keys.
        small: whether it is 0, of all rows with keys.
    """

    sums: Tensor
    counts: Tensor
    scale: Tensor
    small: bool

    def plus(self, other: State, widths: Sequence[int]) -> State:
        """That of the keys of both, whose bases have features of such widths."""
        small = self.small and other.small
        scale = torch.maximum(self.scale, other.scale)
        mine, theirs = (self.sums, other.sums) if small else (s._at(scale, widths) for s in (self, other))
        return State(mine + theirs, self.counts + other.counts, scale, small)

    def _at(self, scale: Tensor, widths: Sequence[int]) -> Tensor:
        """The sums at another scale."""
        factors = (self.scale - finite(scale)).exp().unsqueeze(1).unbind(-1)  # (R, 1, 1) each
        parts = _split(self.sums, widths)
        return torch.cat([part * f.unsqueeze(-1) for part, f in zip(parts, factors, strict=True)], -1)


class Engine:
    """Keys become a state, which queries read: some tokens of some rows at a time."""

    def __init__(
        self, feature_map: Hybrid, x: Tensor, length: int, root: float, *, ones: bool, in_place: bool
    ) -> None:
        (coefficient,) = feature_map._coefficients()
        self.bases, self.root, self.ones, self.in_place = feature_map._bases(), root, ones, in_place
        self.codes = Codes.of(coefficient.n_projections, length, x)
        self.widths = [base.feature_dim for base in self.bases]
        omegas = [p.omega for p in dict.fromkeys(base.projection for base in self.bases)]
        matrices = root * torch.cat(omegas, -2).to(x.dtype), coefficient.projection.omega.to(x.dtype)
        # One for all rows, or one a row.
        self.omega, self.tau = (
            t if t.ndim == 2 else t.expand(*x.shape[:-2], -1, -1).flatten(0, -3) for t in matrices
        )
        self.places: defaultdict[str, Place] = defaultdict(Place)

    def write(self, rows: slice, y: Tensor, values: Tensor, keep: Tensor | None) -> State:
        """The state of some keys."""
        keys = self._tokens(y, "key", rows, keep)
        counts = keys.blocks.counts.to(y.dtype)
        scale = y.new_zeros(len(y), 1, 2).masked_fill_(counts.sum((1, 2)).view(-1, 1, 1) == 0, -torch.inf)
        if not keys.small:
            scale = keys.largest(self.bases).amax(-2, keepdim=True)
            keys = keys._replace(log_weight=keys.log_weight - finite(scale))
        v, c = values.flatten(0, 1), values.shape[-1] + self.ones
        sums = values.new_zeros(counts.numel(), sum(self.widths) * c)
        table = self._features(keys, empty=True)
        for some in keys.blocks.pieces(_PIECE // keys.blocks.members.shape[-1]):
            members, filled = keys.blocks.members[some], keys.blocks.filled[some]
            phi = self._take(table, members.where(filled, len(v)), "left")
            place = self._place("product", len(phi), phi.shape[-1], c, like=phi)
            product = torch.bmm(phi.mT, self._values(v, members), out=place)
            sums = sums.index_add_(0, keys.blocks.segment[some], product.flatten(1))
        return State(sums.view(*counts.shape, -1), counts, scale, keys.small)

    def spread(self, sums: Tensor) -> Tensor:
        """Σ h(c, c') S_{c'} for the first base and Σ (g − h(c, c')) S_{c'} for the second, for states S.

        By way of sums over all codes with a certain bit. No difference is taken: a base whose weight is 0
        for all keys gets exactly 0.
        """
        return self._spread(sums, self.widths, self._place("spread", *sums.shape, like=sums))

    def _spread(self, states: Tensor, widths: Sequence[int], place: Tensor | None = None) -> Tensor:
        same, differ = (table.repeat(len(states), 1, 1) for table in self.codes[1:])
        by_bit = torch.bmm(same, states.flatten(0, 1))
        into = [None, None] if place is None else _split(place.flatten(0, 1), widths)
        parts = [
            torch.bmm(table.mT, part, out=out)
            for table, part, out in zip((differ, same), _split(by_bit, widths), into, strict=True)
        ]
        return torch.cat(parts, -1).view(states.shape) if place is None else place

    def read(self, rows: slice, state: State, x: Tensor, spread: Tensor) -> Features:
        """The sums for some queries, ``(R, L, c)``, given what `spread` makes of the sums of all keys."""
        queries, scale = self._tokens(x, "query", rows, None), x.new_zeros(*x.shape[:2], 1)
        small = queries.small and state.small
        if not small:
            queries, scale = self._scaled(queries, state)
        blocks, states = queries.blocks, spread.flatten(0, 2)
        size, c = blocks.members.shape[-1], states.shape[-1] // sum(self.widths)
        table = self._features(queries._replace(small=small))
        places = self._place("result", len(blocks.members), size, c, like=x)
        parts = []
        for some in blocks.pieces(_PIECE // size):
            phi = self._take(table, blocks.members[some], "left")
            own = self._take(states, blocks.segment[some], "right").view(len(phi), -1, c)
            parts.append(torch.bmm(phi, own, out=None if places is None else places[some]))
        result = (torch.cat(parts) if places is None else places).flatten(0, 1)
        total = embedding_bag(blocks.place.mT.flatten(0, 1), result, mode="sum")
        return Features(total.view(*x.shape[:2], c), scale - math.log(self.codes.weights.shape[1]))

    def _scaled(self, queries: _Tokens, state: State) -> tuple[_Tokens, Tensor]:
        """With log weights such that no feature overflows, and the log scale of the sums, ``(R, L, 1)``."""
        weights = self._spread(state.counts.unsqueeze(-1).expand(-1, -1, -1, 2), [1, 1])
        absent = weights.take_along_dim(queries.codes.unsqueeze(-1), -2).sum(1) == 0  # (R, L, 2)
        key_scale = finite(state.scale)
        largest = (queries.largest(self.bases) + key_scale).masked_fill(absent, -torch.inf)
        scale = finite(largest.amax(-1, keepdim=True))
        log_weight = (queries.log_weight + (key_scale - scale)).masked_fill(absent, -torch.inf)
        return queries._replace(log_weight=log_weight), scale

    def _tokens(self, u: Tensor, side: Side, rows: slice, keep: Tensor | None) -> _Tokens:
        omega, tau = (t if t.ndim == 2 else t[rows] for t in (self.omega, self.tau))
        projected, square = u @ omega.mT, self.root**2 * half_square(u)
        codes = labels = self.codes.of_signs(tau @ u.mT)
        if keep is not None:
            keep = keep.unsqueeze(-1)
            projected, square = (t.masked_fill(~keep, 0) for t in (projected, square))
            labels = codes.where(keep.mT, self.codes.shape[1])
        log_weight = torch.cat(
            [
                base._prepare(p, side, Shared(p, square))[2]
                for base, p in zip(self.bases, _by_base(projected, self.bases), strict=True)
            ],
            -1,
        )
        # Queries and keys get a third of the range each, and the sums with the values the last.
        small = _largest(projected) + _largest(log_weight) < math.log(torch.finfo(u.dtype).max) / 3
        if keep is not None:
            log_weight = log_weight.masked_fill(~keep, -torch.inf)
        size = min(max(u.shape[1] // (2 * self.codes.shape[1]), 8), SIZE)
        return _Tokens(Blocks.of(labels, self.codes.shape[1], size), codes, projected, log_weight, small)

    def _features(self, tokens: _Tokens, *, empty: bool = False) -> Tensor:
        """Features of both bases of all tokens, ``(R·L, D)``, and a row of zeros if there is to be an ``empty`` one."""
        projected, logs = (t.flatten(0, 1) for t in (tokens.projected, tokens.log_weight))
        table = self._place("table", len(logs) + empty, sum(self.widths), like=logs)
        by_base = _by_base(projected, self.bases)
        if table is not None and tokens.small:
            weights, parts = logs.exp().split(1, -1), table[: len(logs)].split(self.widths, -1)
            for base, p, weight, part in zip(self.bases, by_base, weights, parts, strict=True):
                base._fill(p, weight, part)
            table[len(logs) :] = 0
            return table
        phi = []
        for k, (base, p) in enumerate(zip(self.bases, by_base, strict=True)):
            real, imag = (
                p if part else None for part in (base.query_matrix.has_real, base.query_matrix.has_imag)
            )
            phi.append(base._finish([real, imag, logs[:, k : k + 1], None, p, None], "query"))
        return pad(torch.cat(phi, -1), (0, 0, 0, int(empty)))

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


def _largest(numbers: Tensor) -> float:
    """The largest magnitude."""
    low, high = numbers.detach().aminmax()
    return max(-float(low), float(high))


def _by_base(projected: Tensor, bases: list[Any]) -> Sequence[Tensor]:
    """The columns ωᵀu of either base, which may be the same."""
    if bases[0].projection is bases[1].projection:
        return projected, projected
    return projected.split([base.n_projections for base in bases], -1)


def _split(states: Tensor, widths: Sequence[int]) -> Sequence[Tensor]:
    """What belongs to either base, of numbers for every feature."""
    each = states.shape[-1] // sum(widths)
    return states.split([each * width for width in widths], -1)
