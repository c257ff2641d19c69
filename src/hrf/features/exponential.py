"""Complex exponential maps (paper, Sec. 2.3): SM(x, y) = E[Ψ_A(x)ᵀ Ψ_{A⁻ᵀ}(y)].

    Ψ_M(u) = m^{−1/2} exp(−(Mu)²/2) exp(ωᵀMu),   ω ~ N(0, I),   v² = Σ vₖ² (no conjugate)

This holds for any invertible A, real or complex. Two members are famous: A = I gives positive features
(Eq. 3, FAVOR+ with ±ω) and A = iI gives trigonometric ones (Eq. 2).

The real part of a product of complex numbers is a real dot product,
Re(e^α e^β) = (Re, Im)(e^α) · (Re, Im)(e^{β̄}), so the key side takes the matrix conj(A⁻ᵀ)
and no imaginary unit is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from hrf import kernels, theory
from hrf.features import flops
from hrf.features.arguments import check_tensor, shapes_with_heads
from hrf.features.base import (
    FeatureMap,
    Features,
    Rows,
    Side,
    can_look,
    check_finite,
    check_range,
    half_square,
    out_of_range,
)
from hrf.features.flops import Flops
from hrf.features.matrices import ComplexMatrix, matrix_pair
from hrf.features.products import ComplexSum, PairSum
from hrf.fitting import SecondMoments, fit_matrix, samples
from hrf.projections import Projections, check_count

__all__ = ["Exponential", "Positive", "Trigonometric"]


# Pairs exp(±t − 25) with |t| < 50 need no maximum subtracted: they lie between exp(−75) and exp(25), so sums of
# products of two fit float32, and since one of both signs is at least exp(−25), some product is at least exp(−50).
_SMALL = 50.0


class Shared(NamedTuple):
    """What isotropic maps on the same ω have in common: ωᵀx ``(..., L, m)`` and ‖x‖²/2 ``(..., L, 1)``."""

    projected: Tensor
    half_square: Tensor


class Exponential(FeatureMap):
    """Complex exponential features with any invertible matrix A and any shifts.

    Args:
        dim: length d of the inputs.
        n_projections: number m of rows ω.
        matrix: A as ``(d, d)``, or its diagonal as ``(d,)``, real or complex; ``None`` is the identity.
            With ``heads=H``, a leading axis H.
        query_shift: a in the exact identity exp(xᵀy) = exp((x−a)ᵀ(y−b)) exp(xᵀb) exp(aᵀy) exp(−aᵀb): the
            features are those of x − a and y − b, so the variance is governed by distances to the shifts.
            ``(d,)``, or ``(H, d)`` with heads; ``None`` is 0.
        key_shift: b, likewise.
        antithetic: average over ω and −ω. (A purely imaginary A does so anyway: its products are even in ω.)
        projection: one of `hrf.projections.KINDS`, or a `Projections` to share.
        heads: ``None``, or H for a map a head.
        generator: the source of randomness.

    The width is m for a real A and 2m for an imaginary or complex one, doubled by ±ω unless A is imaginary.

    >>> import torch, hrf
    >>> phi = hrf.Exponential(3, n_projections=8, matrix=torch.tensor([2.0, 1.0, 0.5]))
    >>> phi.queries(torch.zeros(5, 3)).shape
    torch.Size([5, 16])
    """

    query_shift: Tensor | None
    key_shift: Tensor | None

    def __init__(
        self,
        dim: int,
        *,
        n_projections: int,
        matrix: Tensor | None = None,
        query_shift: Tensor | None = None,
        key_shift: Tensor | None = None,
        antithetic: bool = True,
        projection: str | Projections = "orthogonal",
        heads: int | None = None,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        self.projection = Projections.resolve(
            projection, n_projections, dim, heads=heads, generator=generator
        )
        self.dim, self.n_projections, self.heads = self.projection.sizes()
        self.antithetic = antithetic
        self.query_matrix, self.key_matrix = matrix_pair(matrix, dim, heads)
        self.register_buffer("query_shift", self._shift(query_shift, "query_shift"))
        self.register_buffer("key_shift", self._shift(key_shift, "key_shift"))
        signs = 2 if antithetic and self.query_matrix.has_real else 1
        self.feature_dim = self.n_projections * signs * (2 if self.query_matrix.has_imag else 1)

    @classmethod
    def fit(
        cls,
        queries: Tensor,
        keys: Tensor,
        *,
        n_projections: int,
        matrix: str | None = "real-full",
        shift: bool = True,
        heads: int | None = None,
        **arguments: Any,
    ) -> Exponential:
        """An `Exponential` with A in closed form and shifts at the means, for queries that meet all keys.

        Args:
            queries: ``(..., L, d)``, or ``(..., H, L, d)`` with ``heads=H``: fitted head by head.
            keys: ``(..., S, d)``, likewise.
            n_projections: number m of rows ω.
            matrix: one of `hrf.fitting.KINDS`, or ``None`` for the identity.
            shift: move the origin to the means.
            heads: ``None``, or H.
            **arguments: ``antithetic``, ``projection`` and ``generator`` of the constructor.

        >>> import torch, hrf
        >>> x = torch.randn(500, 4) * torch.tensor([2.0, 0.3, 0.3, 0.3]) + 1
        >>> y = torch.randn(500, 4) * torch.tensor([0.2, 1.0, 1.0, 1.0])
        >>> fitted = hrf.Exponential.fit(x, y, n_projections=64)
        >>> plain = hrf.Positive(4, n_projections=64)
        >>> bool(fitted.relative_error(x, y).median() < plain.relative_error(x, y).median() / 10)
        True
        """
        vectors = [samples(queries, heads, "queries"), samples(keys, heads, "keys")]
        means = [u.mean(-2) for u in vectors] if shift else [None, None]
        centred = [u if c is None else u - c.unsqueeze(-2) for u, c in zip(vectors, means, strict=True)]
        a = None if matrix is None else fit_matrix(SecondMoments.of(*centred), matrix)
        fitted = Exponential(
            vectors[0].shape[-1],
            n_projections=n_projections,
            matrix=a,
            query_shift=means[0],
            key_shift=means[1],
            heads=heads,
            **arguments,
        )
        return fitted.to(torch.get_default_dtype())

    def _shift(self, shift: Tensor | None, name: str) -> Tensor | None:
        if shift is None:
            return None
        check_tensor(name, shift, shapes_with_heads(self.heads, (self.dim,)))
        return shift.detach().clone().unsqueeze(-2)  # (1, d) or (H, 1, d), against (..., L, d)

    def check_values(self, x: Tensor, name: str) -> None:
        """`_prepare` does, at less cost."""

    @property
    def nonnegative(self) -> bool:
        """Whether no estimate can be negative: for a real A."""
        return not self.query_matrix.has_imag

    @property
    def isotropic(self) -> bool:
        """Whether the projections are those of the inputs themselves, ωᵀx: two such maps can share them."""
        return self.query_matrix.is_unit and self.query_shift is None and self.key_shift is None

    def _prepare(self, x: Tensor, side: Side, shared: Shared | None = None) -> Rows:
        """Re u, Im u, of every row the log of its weight, its phase, ωᵀu if it is known, and ‖Re u‖²/2.

        With u = A(x − a) for queries and conj(A⁻ᵀ)(y − b) for keys, the features are
        exp(log_weight) exp(Re ωᵀu) (cos, sin)(Im ωᵀu + phase), where factors without a part of u are absent.
        """
        shift, _, matrix = self._parts(side)
        real, imag = matrix(x if shift is None else x - shift.to(x.dtype))
        log_weight: Any = self._shift_weight(x, side) - math.log(self._copies()) / 2
        square = None
        if real is not None:
            square = shared.half_square if shared else half_square(real)
            log_weight = log_weight - square
        if imag is not None:
            log_weight = log_weight + (shared.half_square if shared else half_square(imag))
        check_finite(log_weight, x, "x" if side == "query" else "y")
        phase = None if real is None or imag is None else -(real * imag).sum(-1, keepdim=True)
        return [real, imag, log_weight, phase, shared.projected if shared else None, square]

    def _check_range(self, rows: Rows) -> None:
        _, _, log_weight, _, _, square = rows
        assert log_weight is not None
        if square is None:
            check_range(log_weight)
            return
        # Cauchy–Schwarz tells nearly always that all is well, without a look at every feature.
        spread = self._spread(square)
        if out_of_range(log_weight if self.antithetic else log_weight - spread, log_weight + spread):
            logs, _ = self._exponents(rows)
            assert logs is not None
            check_range((logs + log_weight).amax(-1))

    def _finish(
        self, rows: Rows, side: Side, out: Tensor | None = None, scratch: Tensor | None = None
    ) -> Tensor:
        log_weight = rows[2]
        assert log_weight is not None
        logs, phases = self._exponents(rows, scratch)
        if logs is None:
            assert phases is not None
            return torch.mul(phases.cos_(), log_weight.exp(), out=out)
        logs.add_(log_weight)
        if phases is None:
            return torch.exp(logs, out=out)
        return torch.mul(logs.exp_(), phases.cos_(), out=out)

    def scaled(self, x: Tensor, side: Side, shared: Shared | None = None) -> Features:
        rows = self._prepare(x, side, shared)
        log_weight = rows[2]
        assert log_weight is not None
        return self._without_scale(log_weight, *self._exponents(rows))

    def scaled_into(self, x: Tensor, side: Side, out: Tensor) -> Features:
        rows = self._prepare(x, side)
        real, _, log_weight, _, _, square = rows
        assert log_weight is not None
        if real is None or not self.has_pullback or not self._is_small(square):
            return self._without_scale(log_weight, *self._exponents(rows, out))
        # One exponential serves both signs. It is not taken in ``out``: on part of its columns it is far slower.
        plus = torch.matmul(real, self.projection.omega.to(x.dtype).mT.unsqueeze(0)).exp_()
        least = plus.new_full((), math.exp(-_SMALL / 2))
        torch.mul(plus, least, out=out[..., : self.n_projections])
        torch.div(least, plus, out=out[..., self.n_projections :])
        return Features(out, log_weight + _SMALL / 2)

    def _fill(self, projected: Tensor, weight: Tensor, out: Tensor) -> None:
        """Features of an `isotropic` map from ωᵀx and the weights of rows, in some columns of a table.

        They have to be far from overflow. Exponentials are not taken there: on part of the columns they are far slower.
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

    @property
    def has_pullback(self) -> bool:
        return self.antithetic and not self.query_matrix.has_imag  # features exp(±ωᵀu), nothing else

    def pullback(self, x: Tensor, side: Side, values: Tensor, grad: Features) -> Tensor:
        own, other, matrix = self._parts(side)
        u, _ = matrix(x if own is None else x - own.to(x.dtype))
        assert u is not None
        plus, minus = grad.values.mul_(values).split(self.n_projections, -1)
        along = grad.log_scale
        back = matrix.transposed((plus - minus) @ self.projection.omega.to(x.dtype) - along * u)
        return back if other is None else back + along * other.to(x.dtype)

    def _parts(self, side: Side) -> tuple[Tensor | None, Tensor | None, ComplexMatrix]:
        """The shift of a side, that of the other, and the matrix of the side."""
        if side == "query":
            return self.query_shift, self.key_shift, self.query_matrix
        return self.key_shift, self.query_shift, self.key_matrix

    def _spread(self, square: Tensor) -> Tensor:
        """A bound of |Re ωᵀu| by Cauchy and Schwarz, from ‖Re u‖²/2: ``(..., L, 1)``."""
        longest = torch.linalg.vector_norm(self.projection.omega, dim=-1, keepdim=True).amax(-2, keepdim=True)
        return (2 * square).sqrt() * longest.to(square.dtype)

    def _is_small(self, square: Tensor | None) -> bool:
        """Whether |Re ωᵀu| < `_SMALL`, where that is cheap to know."""
        if square is None or not square.numel() or not can_look(square):
            return False
        longest = float(torch.linalg.vector_norm(self.projection.omega, dim=-1).amax())
        return longest * math.sqrt(2 * float(square.amax())) < _SMALL

    def _without_scale(self, log_weight: Tensor, logs: Tensor | None, phases: Tensor | None) -> Features:
        """exp(logs) cos(phases) at the scale of the largest of each row."""
        if logs is None:
            assert phases is not None
            return Features(phases.cos_(), log_weight)
        largest = logs.detach().amax(-1, keepdim=True)
        values = logs.sub_(largest).exp_()
        return Features(values if phases is None else values * phases.cos_(), log_weight + largest)

    def _exponents(self, rows: Rows, place: Tensor | None = None) -> tuple[Tensor | None, Tensor | None]:
        """Re ωᵀu and Im ωᵀu + phase for every feature, fresh tensors ``(..., L, feature_dim)`` or ``None``.

        They are in ``place`` if that is given and there is only one of them.
        """
        real, imag, _, phase, projected, _ = rows
        place = None if phase is not None else place  # two factors need two places
        logs = phases = None
        if real is not None:
            logs = self._project(real, projected, place)
            if self.antithetic:
                logs = _extend(logs, torch.neg, place)
        if imag is not None:
            phases = self._project(imag, projected, place)
            if logs is not None and phase is not None:
                phases = (_extend(phases, torch.neg) if self.antithetic else phases) + phase
                logs = torch.cat([logs, logs], -1)
            phases = _extend(phases, _quarter_turn, place)
        return logs, phases

    def _project(self, u: Tensor, projected: Tensor | None, place: Tensor | None) -> Tensor:
        """ωᵀu, in the first columns of ``place``: ``(..., L, d) -> (..., L, m)``."""
        out = None if place is None else place[..., : self.n_projections]
        if projected is not None:
            return projected.clone() if out is None else out.copy_(projected)
        return torch.matmul(u, self.projection.omega.to(u.dtype).mT, out=out)

    def _copies(self) -> int:
        """How many terms an estimate averages: m, or 2m with ±ω."""
        return self.feature_dim // (2 if self.query_matrix.has_imag else 1)

    def _shift_weight(self, x: Tensor, side: Side) -> Tensor | float:
        """Factors of the shifts, xᵀb − aᵀb/2 for queries, aᵀy − aᵀb/2 for keys: ``(..., L, 1)`` or 0."""
        own, other, _ = self._parts(side)
        if other is None:
            return 0.0
        other = other.to(x.dtype)
        centre = x if own is None else x - own.to(x.dtype) / 2
        return (centre * other).sum(-1, keepdim=True)

    def relative_sum(self, x: Tensor, y: Tensor) -> ComplexSum:
        """z = A(x − a) + A⁻ᵀ(y − b) of all pairs: all moments depend on it."""
        queries, keys = self._prepare(x, "query")[:2], self._prepare(y, "key")[:2]
        signs = (1, -1)  # the key side is conjugate
        real, imag = (
            None if q is None or k is None else PairSum(q, sign * k)
            for q, k, sign in zip(queries, keys, signs, strict=True)
        )
        return ComplexSum(real, imag)

    def _log_mse(self, x: Tensor, y: Tensor) -> Tensor:
        return relative_covariance(self, self, x, y).log() + 2 * kernels.log_softmax_kernel(x, y)

    def _flops(self) -> Flops:
        """Projections, one function a feature and its scaling: 2m(d + 2) for the two famous members."""
        matrix = self.query_matrix
        rows = flops.projected(self.n_projections, self.dim).times(matrix.has_real + matrix.has_imag)
        n_shifts = sum(shift is not None for shift in (self.query_shift, self.key_shift))
        shifts = flops.scaled(self.dim, 2 * n_shifts)
        return rows.plus(flops.features(self.feature_dim), matrix.flops(self.dim), shifts)

    def config(self) -> dict[str, Any]:
        """Arguments that rebuild the map."""
        return {
            "dim": self.dim,
            "n_projections": self.n_projections,
            "matrix": self.query_matrix.matrix(),
            "query_shift": None if self.query_shift is None else self.query_shift.squeeze(-2),
            "key_shift": None if self.key_shift is None else self.key_shift.squeeze(-2),
            "antithetic": self.antithetic,
            "projection": self.projection,
            "heads": self.heads,
        }


def _extend(values: Tensor, function: Callable[..., Tensor], place: Tensor | None = None) -> Tensor:
    """Columns ``values``, then ``function(values)``: in ``place``, which starts with the former, or anew."""
    if place is None:
        return torch.cat([values, function(values)], -1)
    function(values, out=place[..., values.shape[-1] :])
    return place


def _quarter_turn(values: Tensor, out: Tensor | None = None) -> Tensor:
    """T − π/2, since sin t = cos(t − π/2): one function then serves all columns."""
    return torch.sub(values, math.pi / 2, out=out)


def relative_covariance(first: Exponential, second: Exponential, x: Tensor, y: Tensor) -> theory.Scaled:
    """Covariance of two exponential estimates on the same ω, over the squared kernel: ``(..., L, S)``."""
    kind = first.projection.kind
    if kind not in ("iid", "orthogonal"):
        raise NotImplementedError(
            f"no closed form is known for the MSE of {type(first).__name__} with {kind!r} projections; "
            "it is for 'iid' and 'orthogonal'"
        )
    z = first.relative_sum(x, y)
    other = z if second is first else second.relative_sum(x, y)
    products, own = z.products(other), None
    if kind == "orthogonal":
        own = (products, products) if other is z else (z.products(z), other.products(other))
    return theory.covariance_of_products(
        products,
        first.n_projections,
        first.dim,
        antithetic=first.antithetic or second.antithetic,
        own=own,
    )


class _Isotropic(Exponential):
    """A map whose matrix is a multiple of the identity, so that it takes no other arguments."""

    _unit: complex

    def __init__(
        self,
        dim: int,
        *,
        n_projections: int,
        projection: str | Projections = "orthogonal",
        heads: int | None = None,
        generator: Generator | None = None,
    ) -> None:
        shape = shapes_with_heads(heads, (check_count("dim", dim),))[0]
        super().__init__(
            dim,
            n_projections=n_projections,
            matrix=torch.full(shape, self._unit),
            projection=projection,
            heads=heads,
            generator=generator,
        )

    def config(self) -> dict[str, Any]:
        """Arguments that rebuild the map."""
        everything = super().config()
        return {name: everything[name] for name in ("dim", "n_projections", "projection", "heads")}


class Positive(_Isotropic):
    """Positive features (paper, Eq. 3; FAVOR+): φ(u) = exp(−‖u‖²/2) exp(±ωᵀu) / √(2m), of width 2m.

    Every estimate is positive. The relative error grows with ‖x + y‖: small for small kernel values.

    >>> import torch, hrf
    >>> phi = hrf.Positive(4, n_projections=8)
    >>> x = torch.randn(3, 4)
    >>> bool(phi.mse(x, -x).diagonal().eq(0).all())  # exact at x = −y
    True
    """

    _unit = 1


class Trigonometric(_Isotropic):
    """Trigonometric features (paper, Eq. 2): φ(u) = exp(‖u‖²/2) (cos ωᵀu, sin ωᵀu) / √m, of width 2m.

    The relative error grows with ‖x − y‖: small for large kernel values. Estimates may be negative.

    >>> import torch, hrf
    >>> phi = hrf.Trigonometric(4, n_projections=8)
    >>> x = torch.randn(3, 4)
    >>> bool(phi.mse(x, x).diagonal().eq(0).all())  # exact at x = y
    True
    """

    _unit = 1j
