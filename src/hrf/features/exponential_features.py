"""Features of complex exponential maps: exp(log_weight) exp(Re ωᵀu) (cos, sin)(Im ωᵀu + phase).

`ExponentialFeatures` maps vectors to features in three steps: `prepare` computes everything per row that is not
a projection (`ExponentialRows`), `exponents` projects, and `finish` or `finish_scaled` takes exponentials. Maps
whose u is x itself or ix (`isotropic`) can share ωᵀx and ‖x‖²/2 with each other: members named ``isotropic``
start from these two. ``exponential_terms.py`` has the last step, ``exponential_gradients.py`` the way back, and
``exponential.py`` the maps themselves.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from hrf.features.base import FeatureMap, Side
from hrf.features.exponential_gradients import pulled_back
from hrf.features.exponential_terms import extended, product, quarter_turn, relative
from hrf.features.matrices import ComplexMatrix
from hrf.features.streaming import Block, Table
from hrf.numerics import Features, can_look, check_finite, check_range, half_square, is_traced, log_limits
from hrf.projections import Projections

__all__ = ["ExponentialFeatures", "ExponentialRows"]


# Pairs exp(±t − 25) with |t| < 50 need no maximum subtracted: they lie between exp(−75) and exp(25), so sums of
# products of two fit float32, and since one of both signs is at least exp(−25), a product is at least exp(−50).
_SMALL = 50.0


class ExponentialRows(NamedTuple):
    """Everything that features need per row, with u = A(x − a) for queries and conj(A⁻ᵀ)(y − b) for keys.

    Attributes:
        log_weight: logarithm of the factor that all features of a row share, ``(..., L, 1)``.
        real: Re u, ``(..., L, d)``; ``None`` where it vanishes or ``projected`` is given.
        imag: Im u, ``(..., L, d)``, likewise.
        phase: −Re uᵀ Im u, ``(..., L, 1)``; ``None`` unless u has both parts.
        half_square: ‖Re u‖²/2, ``(..., L, 1)``; ``None`` where Re u vanishes.
        projected: ωᵀx of an isotropic map, ``(..., L, m)``, where it is known.
    """

    log_weight: Tensor
    real: Tensor | None = None
    imag: Tensor | None = None
    phase: Tensor | None = None
    half_square: Tensor | None = None
    projected: Tensor | None = None

    def block(self, index: Block) -> ExponentialRows:
        """Cut a block of rows."""
        return ExponentialRows._make(None if part is None else part[index] for part in self)


class ExponentialFeatures(FeatureMap):
    """A map with exponential features; subclasses set its attributes.

    Attributes:
        projection: ω.
        n_projections: m.
        antithetic: whether ±ω are used.
        n_terms: how many terms an estimate averages: m, or 2m with ±ω.
        query_matrix: A.
        key_matrix: conj(A⁻ᵀ).
        query_shift: a, ``(1, d)`` or ``(H, 1, d)``; ``None`` is 0.
        key_shift: b, likewise.
    """

    projection: Projections
    n_projections: int
    antithetic: bool
    n_terms: int
    query_matrix: ComplexMatrix
    key_matrix: ComplexMatrix
    query_shift: Tensor | None
    key_shift: Tensor | None

    @override
    def check_values(self, x: Tensor, name: str) -> None:
        """Leave the check to `prepare`, which looks at sums of squares, at less cost."""

    @property
    def isotropic(self) -> bool:
        """Whether the map projects the inputs themselves, ωᵀx: two such maps can share the projections."""
        return self.query_matrix.is_unit and self.query_shift is None and self.key_shift is None

    def prepare(self, x: Tensor, side: Side) -> ExponentialRows:
        """Compute everything per row but projections, and refuse inputs that are not finite."""
        (own, other, matrix), traced = self._side(side), is_traced()
        real, imag = matrix(x if own is None else x - own.to(x.dtype))
        log_weight: Tensor | float = _shift_weight(x, own, other) - math.log(self.n_terms) / 2
        square = None
        if real is not None:
            square = half_square(real, traced)
            log_weight = log_weight - square
        if imag is not None:
            log_weight = log_weight + half_square(imag, traced)
        assert isinstance(log_weight, Tensor)
        check_finite(log_weight, x, side, traced)
        phase = None if real is None or imag is None else -(real * imag).sum(-1, keepdim=True)
        return ExponentialRows(log_weight, real, imag, phase, square)

    def isotropic_rows(self, projected: Tensor, half_square: Tensor) -> ExponentialRows:
        """Do as `prepare` for an `isotropic` map, given ωᵀx ``(..., L, m)`` and ‖x‖²/2 ``(..., L, 1)``."""
        square = half_square if self.query_matrix.has_real else None
        return ExponentialRows(
            self.isotropic_log_weight(half_square), half_square=square, projected=projected
        )

    def isotropic_log_weight(self, half_square: Tensor) -> Tensor:
        """Return the log weight of each row of an `isotropic` map, given ‖x‖²/2: ``(..., L, 1)``."""
        constant = -math.log(self.n_terms) / 2
        return constant - half_square if self.query_matrix.has_real else constant + half_square

    def isotropic_features(self, projected: Tensor, log_weight: Tensor) -> Tensor:
        """Return features of an `isotropic` map, given ωᵀx ``(..., L, m)`` and the log weights ``(..., L, 1)``."""
        return self.finish(ExponentialRows(log_weight, projected=projected))

    def fill_isotropic(self, projected: Tensor, weight: Tensor, out: Tensor) -> None:
        """Write features of an `isotropic` map to part of the columns of a table, without autograd.

        Args:
            projected: ωᵀx, ``(..., L, m)``.
            weight: weights ``(..., L, 1)``, such that all features are far from overflow.
            out: ``(..., L, feature_dim)``. Exponentials are not taken there: on part of the columns of a table
                they are far slower.
        """
        first, *other = out.split(self.n_projections, -1)
        if self.query_matrix.has_imag:
            torch.mul(projected.cos(), weight, out=first)
            torch.mul(projected.sin(), weight, out=other[0])
            return
        plus = projected.exp()
        torch.mul(plus, weight, out=first)
        if self.antithetic:
            torch.div(weight, plus, out=other[0])

    @override
    def scaled(self, x: Tensor, side: Side) -> Features:
        rows = self.prepare(x, side)
        return relative(rows.log_weight, *self.exponents(rows))

    @override
    def scaled_into(self, x: Tensor, side: Side, out: Tensor) -> Features:
        rows = self.prepare(x, side)
        if rows.real is None or not self.only_pairs or not self._is_small(rows.half_square):
            return self.finish_scaled(rows, out)
        # One exponential serves both signs. It is not taken in ``out``: on part of its columns it is far slower.
        plus = torch.matmul(rows.real, self.projection.omega.to(x.dtype).mT.unsqueeze(0)).exp_()
        least = plus.new_full((), math.exp(-_SMALL / 2))
        torch.mul(plus, least, out=out[..., : self.n_projections])
        torch.div(least, plus, out=out[..., self.n_projections :])
        return Features(out, rows.log_weight + _SMALL / 2)

    @override
    def unscaled(self, x: Tensor, side: Side, out: Tensor | None = None) -> Tensor:
        rows = self.prepare(x, side)
        self.check_rows(rows)
        return self.finish(rows, out, out)

    @override
    def _stream(self, x: Tensor, side: Side) -> Tensor:
        if self.needs_graph(x):
            return self.unscaled(x, side)
        table = Table.of(x, self.heads, self.feature_dim, self._block)
        rows = self.prepare(table.inputs, side)
        self.check_rows(rows)
        scratch = table.scratch()
        for block in table.blocks():
            out = table.out[block]
            self.finish(rows.block(block), out, scratch[: len(out), ..., : out.shape[-2], :])
        return table.out.view(*x.shape[:-1], self.feature_dim)

    def check_rows(self, rows: ExponentialRows) -> None:
        """Refuse rows whose plain features the dtype cannot hold."""
        log_weight, square = rows.log_weight, rows.half_square
        if not log_weight.is_cpu or is_traced() or not log_weight.numel():
            return
        if square is None:
            check_range(log_weight)
            return
        # Cauchy–Schwarz nearly always shows that all is well, without a look at every feature.
        longest = torch.linalg.vector_norm(self.projection.omega, dim=-1, keepdim=True).amax(-2, keepdim=True)
        spread = (2 * square).sqrt() * longest.to(square.dtype)
        low, high = log_weight if self.antithetic else log_weight - spread, log_weight + spread
        least, most = log_limits(log_weight.dtype)
        if low.detach().min() < least or high.detach().max() > most:
            logs, _ = self.exponents(rows)
            assert logs is not None
            check_range((logs + log_weight).amax(-1))

    def finish(
        self, rows: ExponentialRows, out: Tensor | None = None, scratch: Tensor | None = None
    ) -> Tensor:
        """Take exponentials: plain features, in ``out`` if it is given; ``scratch`` has the shape of ``out``."""
        logs, phases = self.exponents(rows, scratch)
        if logs is None:
            assert phases is not None
            return torch.mul(phases.cos_(), rows.log_weight.exp(), out=out)
        logs.add_(rows.log_weight)
        return torch.exp(logs, out=out) if phases is None else product(logs.exp_(), phases.cos_(), out)

    def finish_scaled(self, rows: ExponentialRows, out: Tensor | None = None) -> Features:
        """Take exponentials relative to the largest of each row; the values are in ``out`` if it is given."""
        return relative(rows.log_weight, *self.exponents(rows, out), out)

    def exponents(
        self, rows: ExponentialRows, scratch: Tensor | None = None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return Re ωᵀu per term and Im ωᵀu + phase per feature, fresh tensors ``(..., L, ·)`` or ``None``.

        The wider of them, phases if there are any, is in ``scratch`` if that is given.
        """
        logs = phases = None
        if self.query_matrix.has_real:
            place = None if self.query_matrix.has_imag else scratch
            logs = self._project(rows.real, rows.projected, place)
            if self.antithetic:
                logs = extended(logs, torch.neg, place)
        if self.query_matrix.has_imag:
            phases = self._project(rows.imag, rows.projected, scratch)
            if rows.phase is not None:
                if self.antithetic:
                    place = None if scratch is None else scratch[..., : self.n_terms]
                    phases = extended(phases, torch.neg, place)
                phases.add_(rows.phase)
            phases = extended(phases, quarter_turn, scratch)
        return logs, phases

    def _project(self, u: Tensor | None, projected: Tensor | None, scratch: Tensor | None) -> Tensor:
        """Return ωᵀu, in the first columns of ``scratch``: ``(..., L, d) -> (..., L, m)``."""
        out = None if scratch is None else scratch[..., : self.n_projections]
        if projected is not None:
            return projected.clone() if out is None else out.copy_(projected)
        assert u is not None
        return torch.matmul(u, self.projection.omega.to(u.dtype).mT, out=out)

    @property
    def only_pairs(self) -> bool:
        """Whether the features are pairs exp(±ωᵀu) and no others."""
        return self.antithetic and not self.query_matrix.has_imag

    @property
    @override
    def has_pullback(self) -> bool:
        return True

    @override
    def pullback(self, x: Tensor, side: Side, values: Tensor, grad: Features) -> Tensor:
        own, other, matrix = self._side(side)
        real, imag = matrix(x if own is None else x - own.to(x.dtype))
        back = matrix.transposed(*pulled_back(real, imag, self.projection.omega.to(x.dtype), values, grad))
        return back if other is None else back + grad.log_scale * other.to(x.dtype)

    def _side(self, side: Side) -> tuple[Tensor | None, Tensor | None, ComplexMatrix]:
        """Return the shift of a side, the shift of the other side, and the matrix of the side."""
        if side == "query":
            return self.query_shift, self.key_shift, self.query_matrix
        return self.key_shift, self.query_shift, self.key_matrix

    def _is_small(self, square: Tensor | None) -> bool:
        """Whether |Re ωᵀu| < `_SMALL`, where that is cheap to know."""
        if square is None or not square.numel() or not can_look(square):
            return False
        longest = float(torch.linalg.vector_norm(self.projection.omega, dim=-1).amax())
        return longest * math.sqrt(2 * float(square.amax())) < _SMALL


def _shift_weight(x: Tensor, own: Tensor | None, other: Tensor | None) -> Tensor | float:
    """Return the exponent of the shifts, xᵀb − aᵀb/2 or aᵀy − aᵀb/2: ``(..., L, 1)``, or 0 without shifts."""
    if other is None:
        return 0.0
    other = other.to(x.dtype)
    centre = x if own is None else x - own.to(x.dtype) / 2
    return (centre * other).sum(-1, keepdim=True)
