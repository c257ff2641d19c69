"""Keys become a state by sign code, which queries read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from hrf._attention.angular.code_sums import CodeSums
from hrf._attention.angular.codes import split
from hrf._attention.dense.chunks import Scratch
from hrf.features.base import Side
from hrf.features.coefficients import Angular
from hrf.features.exponential import Exponential
from hrf.features.hybrid import Hybrid
from hrf.numerics import Features, can_look, check_finite, finite, half_square

__all__ = ["CodeEngine", "CodeState"]


class _Tokens(NamedTuple):
    """Queries or keys, R rows of L: their codes and the ingredients of their features.

    Attributes:
        codes: G codes per token, ``(R, G, L)``; 2^g for tokens to leave out.
        projected: ωᵀu for all ω, side by side, ``(R, L, ·)``.
        log_weight: log of the factor of each row's features, for both bases, ``(R, L, 2)``.
        small: whether all features are far from overflow and underflow without a scale.
    """

    codes: Tensor
    projected: Tensor
    log_weight: Tensor
    small: bool

    def largest(self, bases: list[Exponential]) -> Tensor:
        """Return the log of the largest feature of both bases, constant for autograd: ``(R, L, 2)``."""
        logs = []
        for base, p in zip(bases, _by_base(self.projected.detach(), bases), strict=True):
            if base.query_matrix.has_real:
                logs.append((p.abs() if base.antithetic else p).amax(-1))
            else:
                logs.append(torch.zeros_like(p[..., 0]))
        return self.log_weight.detach() + torch.stack(logs, -1)


class CodeState(NamedTuple):
    """Sums over the keys with each value of each bit.

    Attributes:
        sums: Σ φ(y) v(y)ᵀ, ``(R, G, 2g, D·c)``.
        counts: how many keys have each value, ``(R, G, 2g)``.
        scale: the log scale of both bases, ``(R, 1, 2)``; −∞ without keys.
        small: whether the scale is 0 for all rows with keys.
    """

    sums: Tensor
    counts: Tensor
    scale: Tensor
    small: bool

    def plus(self, other: CodeState, widths: Sequence[int]) -> CodeState:
        """Add the state of other keys; ``widths`` are those of the features of both bases."""
        small = self.small and other.small
        scale = torch.maximum(self.scale, other.scale)
        mine, theirs = (self.sums, other.sums) if small else (s._at(scale, widths) for s in (self, other))
        return CodeState(mine + theirs, self.counts + other.counts, scale, small)

    def _at(self, scale: Tensor, widths: Sequence[int]) -> Tensor:
        """Return the sums at another scale."""
        factors = (self.scale - finite(scale)).exp().unsqueeze(1).unbind(-1)  # (R, 1, 1) each
        parts = split(self.sums, widths)
        return torch.cat([part * f.unsqueeze(-1) for part, f in zip(parts, factors, strict=True)], -1)


class CodeEngine:
    """Turn keys into a state, and let queries read it: some tokens of some rows at a time."""

    def __init__(
        self, feature_map: Hybrid, x: Tensor, length: int, columns: int, root: float, *, in_place: bool
    ) -> None:
        coefficient = cast("Angular", feature_map.coefficient_maps[0])
        self.bases, self.root, self.in_place = (
            cast("list[Exponential]", feature_map.base_maps),
            root,
            in_place,
        )
        self.n, self.widths = coefficient.n_projections, [base.feature_dim for base in self.bases]
        self.products = CodeSums(self.n, length, self.widths, x, columns, in_place=in_place)
        # One product projects for both bases and for the signs; ω is the same for all rows, or one per row.
        projections = [*dict.fromkeys(base.projection for base in self.bases), coefficient.projection]
        omega = root * torch.cat([p.omega for p in projections], -2).to(x.dtype)
        self.omega = omega if omega.ndim == 2 else omega.expand(*x.shape[:-2], -1, -1).flatten(0, -3)
        self.table = Scratch()

    def write(self, rows: slice, y: Tensor, values: Tensor, keep: Tensor | None) -> CodeState:
        """Return the state of some keys."""
        keys = self._tokens(y, "key", rows, keep)
        counts = self.products.codes.counts(keys.codes)
        scale = y.new_zeros(len(y), 1, 2).masked_fill_(counts.sum((1, 2)).view(-1, 1, 1) == 0, -torch.inf)
        if not keys.small:
            scale = keys.largest(self.bases).amax(-2, keepdim=True)
            keys = keys._replace(log_weight=keys.log_weight - finite(scale))
        sums = self.products.write(self._features(keys, empty=True), keys.codes, values)
        return CodeState(sums, counts, scale, keys.small)

    def read(self, rows: slice, state: CodeState, x: Tensor, sums: Tensor) -> Features:
        """Return the sums for some queries, ``(R, L, c)``; ``sums`` are those of the state of all keys."""
        queries, scale = self._tokens(x, "query", rows, None), x.new_zeros(*x.shape[:2], 1)
        small = queries.small and state.small
        if not small:
            queries, scale = self._rescaled(queries, state)
        total = self.products.read(self._features(queries._replace(small=small)), queries.codes, sums)
        return Features(total, scale - math.log(self.n))

    def _rescaled(self, queries: _Tokens, state: CodeState) -> tuple[_Tokens, Tensor]:
        """Shift log weights so that no feature overflows; return also the log scale of the sums, ``(R, L, 1)``."""
        weights = self.products.codes.spread(state.counts.unsqueeze(-1).expand(-1, -1, -1, 2), [1, 1])
        absent = weights.take_along_dim(queries.codes.unsqueeze(-1), -2).sum(1) == 0  # (R, L, 2)
        key_scale = finite(state.scale)
        largest = (queries.largest(self.bases) + key_scale).masked_fill(absent, -torch.inf)
        scale = finite(largest.amax(-1, keepdim=True))
        log_weight = (queries.log_weight + (key_scale - scale)).masked_fill(absent, -torch.inf)
        return queries._replace(log_weight=log_weight), scale

    def _tokens(self, u: Tensor, side: Side, rows: slice, keep: Tensor | None) -> _Tokens:
        omega = self.omega if self.omega.ndim == 2 else self.omega[rows]
        products, square = u @ omega.mT, self.root**2 * half_square(u)
        codes = self.products.codes.of_signs(products[..., -self.n :])
        # Contiguous: exponentials of part of the columns are far slower.
        projected = products[..., : -self.n].contiguous()
        if keep is not None:
            keep = keep.unsqueeze(-1)
            projected, square = (t.masked_fill(~keep, 0) for t in (projected, square))
            codes = codes.where(keep.mT, self.products.codes.shape[1])
        weights = [base.isotropic_log_weight(square) for base in self.bases]
        log_weight = torch.cat(weights, -1)
        check_finite(log_weight, u, side)
        # Queries and keys get a third of the range each, and the sums with the values the last.
        room = math.log(torch.finfo(u.dtype).max) / 3
        small = can_look(u) and _largest(projected) + _largest(log_weight) < room
        if keep is not None:
            log_weight = log_weight.masked_fill(~keep, -torch.inf)
        return _Tokens(codes, projected, log_weight, small)

    def _features(self, tokens: _Tokens, *, empty: bool = False) -> Tensor:
        """Return the features of both bases of all tokens, ``(R·L, D)``, and a row of zeros if ``empty``."""
        projected, logs = (t.flatten(0, 1) for t in (tokens.projected, tokens.log_weight))
        by_base = _by_base(projected, self.bases)
        if self.in_place and tokens.small:
            table = self.table.of(len(logs) + empty, sum(self.widths), like=logs)
            weights, parts = logs.exp().split(1, -1), table[: len(logs)].split(self.widths, -1)
            for base, p, weight, part in zip(self.bases, by_base, weights, parts, strict=True):
                base.fill_isotropic(p, weight, part)
            table[len(logs) :] = 0
            return table
        phi = []
        for base, p, log_weight in zip(self.bases, by_base, logs.split(1, -1), strict=True):
            phi.append(base.isotropic_features(p, log_weight))
        return pad(torch.cat(phi, -1), (0, 0, 0, int(empty)))


def _largest(numbers: Tensor) -> float:
    """Return the largest magnitude."""
    low, high = numbers.detach().aminmax()
    return max(-float(low), float(high))


def _by_base(projected: Tensor, bases: list[Exponential]) -> Sequence[Tensor]:
    """Return the columns ωᵀu of either base; bases may share them."""
    if bases[0].projection is bases[1].projection:
        return projected, projected
    return projected.split([base.n_projections for base in bases], -1)
