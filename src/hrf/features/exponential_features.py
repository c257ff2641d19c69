"""Features of complex exponential maps: exp(log_weight) exp(Re ωᵀu) (cos, sin)(Im ωᵀu + phase).

`ExponentialFeatures` maps vectors to features in three steps: `prepare` computes everything per row that is not
a projection (`ExponentialRows`), `exponents` projects, and `finish` or `finish_scaled` takes exponentials. Maps
whose u is x itself or ix (`isotropic`) can share ωᵀx and ‖x‖²/2 with each other: members named ``isotropic``
start from these two. Before these steps stand the matrices of both sides, the last step and the way back; after them
the same exponents as affine functions. ``exponential.py`` has the maps themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import TypeIs, override

from hrf.checks import check_tensor, shapes_with_heads
from hrf.features import flops
from hrf.features.affine_exponents import Affine, AffineExponents, joined
from hrf.features.base import Block, FeatureMap, Side, Table
from hrf.features.flops import Flops
from hrf.numerics import Features, can_look, check_finite, check_range, half_square, is_traced, log_limits
from hrf.projections import Projections

__all__ = ["ExponentialFeatures", "ExponentialRows", "is_real", "matrix_pair"]

# Complex matrices in real arithmetic: u = Ax as a real and an imaginary part.
#
# Every exponential map carries a pair of matrices, A for the queries and conj(A⁻ᵀ) for the keys.


class ComplexMatrix(nn.Module):
    """A map x ↦ (Re Ax, Im Ax): a part that vanishes is ``None``, and multiplication by 1 or i is free.

    Args:
        matrix: complex, ``(..., d)`` for a diagonal or ``(..., d, d)``, with a leading axis for heads.
        diagonal: whether ``matrix`` is a diagonal.
        dtype: real dtype of the buffers.
    """

    real: Tensor | None
    imag: Tensor | None

    def __init__(self, matrix: Tensor, *, diagonal: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.diagonal = diagonal
        self.has_real, self.has_imag = bool(matrix.real.any()), bool(matrix.imag.any())
        self.is_unit = diagonal and bool((matrix == 1).all() or (matrix == 1j).all())
        self.shape = tuple(matrix.shape)
        if diagonal:
            matrix = matrix.unsqueeze(-2)  # (1, d) or (H, 1, d), against (..., L, d)
        for name, part, present in (
            ("real", matrix.real, self.has_real),
            ("imag", matrix.imag, self.has_imag),
        ):
            kept = part.to(dtype).contiguous() if present and not self.is_unit else None
            self.register_buffer(name, kept)

    def forward(self, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the real and the imaginary part of Ax: ``(..., L, d) -> (..., L, d)`` each."""
        if self.is_unit:
            return (x, None) if self.has_real else (None, x)
        real, imag = self.real, self.imag
        if real is not None:
            real = x * real.to(x.dtype) if self.diagonal else x @ real.to(x.dtype).mT
        if imag is not None:
            imag = x * imag.to(x.dtype) if self.diagonal else x @ imag.to(x.dtype).mT
        return real, imag

    def transposed(self, real: Tensor | None, imag: Tensor | None) -> Tensor:
        """Return (Re A)ᵀu + (Im A)ᵀv for the parts that A has: ``(..., L, d) -> (..., L, d)``."""
        found: Tensor | None = None
        for u, part in ((real, self.real), (imag, self.imag)):
            if u is None:
                continue
            if part is not None:
                u = u * part.to(u.dtype) if self.diagonal else u @ part.to(u.dtype)
            found = u if found is None else found + u
        assert found is not None, "a matrix has a real or an imaginary part"
        return found

    def matrix(self) -> Tensor | None:
        """Return A in its original form, real if it has no imaginary part; ``None`` for the identity."""
        if self.is_unit:
            return None if self.has_real else torch.full(self.shape, 1j, device="cpu")
        if self.imag is None:
            matrix = self.real
        else:
            matrix = torch.complex(torch.zeros_like(self.imag) if self.real is None else self.real, self.imag)
        return matrix.squeeze(-2) if matrix is not None and self.diagonal else matrix

    def flops(self, dim: int) -> Flops:
        """Count operations for one vector."""
        parts = 0 if self.is_unit else self.has_real + self.has_imag
        return (flops.scaled(dim) if self.diagonal else flops.projected(dim, dim)).times(parts)


def matrix_pair(matrix: Tensor | None, dim: int, heads: int | None) -> tuple[ComplexMatrix, ComplexMatrix]:
    """Return the query side A and the key side conj(A⁻ᵀ) of an exponential map; refuse a singular A."""
    shapes = shapes_with_heads(heads, (dim,), (dim, dim))
    if matrix is None:
        matrix = torch.ones(shapes[0], device="cpu")  # its values are looked at, on the meta device, too
    check_tensor("matrix", matrix, shapes, complex_too=True)
    diagonal = tuple(matrix.shape) == shapes[0]
    query = matrix.detach().to(torch.complex128)
    if diagonal:
        if (query == 0).any():
            raise ValueError(f"matrix is singular: {int((query == 0).sum())} of its diagonal entries are 0")
        key = 1 / query
    else:
        condition = torch.linalg.cond(query).max()
        if not condition < 1 / torch.finfo(torch.float64).eps:
            raise ValueError(f"matrix is singular: its condition number is {condition:.1e}")
        key = torch.linalg.inv(query).mT
    dtype = torch.empty(0, dtype=matrix.dtype).abs().dtype if matrix.dtype.is_complex else matrix.dtype
    dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    return (
        ComplexMatrix(query, diagonal=diagonal, dtype=dtype),
        ComplexMatrix(key.conj_physical(), diagonal=diagonal, dtype=dtype),
    )


# From exponents to features: a term exp(a + ib) has the features exp(a) cos b and exp(a) sin b, or exp(a) alone.


# Since sin t = cos(t − π/2), one function serves all columns.
quarter_turn = partial(torch.sub, other=math.pi / 2)


def extended(values: Tensor, function: Callable[..., Tensor], place: Tensor | None = None) -> Tensor:
    """Append columns ``function(values)`` to ``values``: in ``place``, which starts with them, or in a new tensor."""
    if place is None:
        return torch.cat([values, function(values)], -1)
    function(values, out=place[..., values.shape[-1] :])
    return place


def product(sizes: Tensor, turns: Tensor, out: Tensor | None) -> Tensor:
    """Multiply the size of each term with its cosine and its sine: ``(..., n), (..., 2n) -> (..., 2n)``."""
    shape = 2, sizes.shape[-1]
    place = None if out is None else out.unflatten(-1, shape)
    return torch.mul(sizes.unsqueeze(-2), turns.unflatten(-1, shape), out=place).flatten(-2)


def relative(
    log_weight: Tensor, logs: Tensor | None, phases: Tensor | None, out: Tensor | None = None
) -> Features:
    """Return features relative to the largest exponential of each row.

    Args:
        log_weight: logarithm of the factor that all features of a row share, ``(..., L, 1)``.
        logs: a of each term, ``(..., L, n)``, overwritten; ``None`` is 0.
        phases: b of each feature, ``(..., L, n or 2n)``, overwritten; ``None`` is 0.
        out: where to write products of both.
    """
    if logs is None:
        assert phases is not None
        return Features(phases.cos_(), log_weight)
    largest = logs.detach().amax(-1, keepdim=True)
    values = logs.sub_(largest).exp_()
    if phases is not None:
        values = product(values, phases.cos_(), out)
    return Features(values, log_weight + largest)


# Gradients of exponential features, from the features themselves.
#
# A term is exp(a + ib) with a = ±Re ωᵀu and b = ±Im ωᵀu − Re uᵀ Im u; its features are the cosine and the sine of b
# times exp(a). Their derivatives are features again: d/da gives both unchanged, and d/db turns (cos, sin) into
# (−sin, cos). So nothing is exponentiated anew.


def pulled_back(
    real: Tensor | None, imag: Tensor | None, omega: Tensor, values: Tensor, grad: Features
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of Re u and Im u, ``(..., L, d)``.

    Args:
        real: Re u, ``(..., L, d)``; ``None`` where it vanishes.
        imag: Im u, likewise.
        omega: rows ω, ``(..., m, d)``.
        values: features on the scale of their row, cosines before sines, ω before −ω.
        grad: gradients of values, which are overwritten, and of the scales.
    """
    along, grad_real, grad_imag = grad.log_scale, None, None
    sizes, angles = _by_term(values, grad.values, has_real=real is not None, has_imag=imag is not None)
    if sizes is not None and real is not None:
        grad_real = _signed(sizes, omega) @ omega - along * real
    if angles is not None and imag is not None:
        grad_imag = _signed(angles, omega) @ omega + along * imag
        if grad_real is not None and real is not None:  # −Re uᵀ Im u in all angles
            turn = angles.sum(-1, keepdim=True)
            grad_real, grad_imag = grad_real - turn * imag, grad_imag - turn * real
    return grad_real, grad_imag


def _by_term(
    values: Tensor, grad: Tensor, *, has_real: bool, has_imag: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of a and of b of each term, ``(..., L, n_terms)``; ``grad`` is overwritten."""
    if not has_imag:
        return grad.mul_(values), None
    (cos, sin), (along_cos, along_sin) = values.chunk(2, -1), grad.chunk(2, -1)
    angles = torch.addcmul(along_sin * cos, along_cos, sin, value=-1)
    return (along_cos.mul_(cos).addcmul_(along_sin, sin) if has_real else None), angles


def _signed(terms: Tensor, omega: Tensor) -> Tensor:
    """Return the gradient of ωᵀu, given those of all terms, ω alone or ω before −ω: ``(..., L, m)``."""
    if terms.shape[-1] == omega.shape[-2]:
        return terms
    plus, minus = terms.chunk(2, -1)
    return plus - minus


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
        return self.projection.project(u, out)

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

    @override
    def affine(self) -> AffineExponents | None:
        if self.isotropic:
            query = key = _isotropic(self)
        elif not self.query_matrix.has_imag:
            query, key = _shifted(self, "query"), _shifted(self, "key")
        else:
            return None
        kind: Literal["pairs", "single", "turns"]
        kind = "turns" if self.query_matrix.has_imag else "pairs" if self.antithetic else "single"
        return AffineExponents(kind, self.n_projections, query, key)

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


# The same exponents as affine functions of the inputs (``affine_exponents.py``).


def is_real(feature_map: FeatureMap) -> TypeIs[ExponentialFeatures]:
    """Return whether a map has features exp(±ωᵀu) and no others."""
    return isinstance(feature_map, ExponentialFeatures) and feature_map.only_pairs


def _isotropic(phi: ExponentialFeatures) -> Affine:
    omega = phi.projection.omega.detach().double()
    offset = joined([omega.new_zeros(1, phi.n_projections), _log(phi)], phi.heads)
    return Affine(joined([omega.mT], phi.heads), offset[:, 0])


def _shifted(phi: ExponentialFeatures, side: Side) -> Affine:
    omega = phi.projection.omega.detach().double()
    none = omega.new_zeros(1, phi.dim)
    shifts = [none if s is None else s.detach().double() for s in (phi.query_shift, phi.key_shift)]
    (own, other), a = (shifts, phi.query_matrix) if side == "query" else (shifts[::-1], phi.key_matrix)
    (linear, _), (moved, _) = a(torch.eye(phi.dim, dtype=torch.float64, device=omega.device)), a(-own)
    constant = _log(phi) - (own * other).sum(-1, keepdim=True) / 2
    offset = joined([moved @ omega.mT, moved, torch.zeros_like(constant), constant], phi.heads)
    return Affine(joined([linear @ omega.mT, linear, other.mT], phi.heads), offset[:, 0])


def _log(phi: ExponentialFeatures) -> Tensor:
    omega = phi.projection.omega
    return omega.new_full((1, 1), -math.log(phi.n_terms) / 2, dtype=torch.float64)
