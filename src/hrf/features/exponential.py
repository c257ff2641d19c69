"""Complex exponential maps (paper, Sec. 2.3): SM(x, y) = E[Ψ_A(x)ᵀ Ψ_{A⁻ᵀ}(y)].

    Ψ_M(u) = m^{−1/2} exp(−(Mu)²/2) exp(ωᵀMu),   ω ~ N(0, I),   v² = Σ vₖ² (no conjugate)

This holds for any invertible A, real or complex. Two members are well known: A = I gives positive features
(Eq. 3, FAVOR+ with ±ω) and A = iI gives trigonometric features (Eq. 2).

The real part of a product of complex numbers is a real dot product,
Re(e^α e^β) = (Re, Im)(e^α) · (Re, Im)(e^{β̄}), so the key side takes the matrix conj(A⁻ᵀ)
and no imaginary unit is left.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor
from typing_extensions import override

from hrf import kernels, theory
from hrf.checks import check_count, check_tensor, own_constructor, shapes_with_heads
from hrf.features import flops
from hrf.features.exponential_features import ExponentialFeatures, matrix_pair
from hrf.features.flops import Flops
from hrf.fitting import MatrixKind, SecondMoments, fit_matrix, samples
from hrf.kernels import squared_distance
from hrf.projections import ProjectionKind, Projections

__all__ = ["ComplexSum", "Exponential", "PairSum", "Positive", "Trigonometric"]

# Inner products of sums z = q + k over all pairs of a query's q and a key's k: an MSE depends on nothing else.
#
# They come from distances and matrix products: a tensor of all z would be d times larger than the result.


class PairSum(NamedTuple):
    """The real vectors q + k of all pairs.

    Attributes:
        query: q, ``(..., L, d)``.
        key: k, ``(..., S, d)``.
    """

    query: Tensor
    key: Tensor

    def dot(self, other: PairSum) -> Tensor:
        """Return (q + k)ᵀ(r + s), where r + s is another sum: ``(..., L, S)``."""
        q, k, r, s = *self, *other
        if other is self:
            return squared_distance(q, -k)  # exactly 0 where q + k is
        squares = (q * r).sum(-1).unsqueeze(-1) + (k * s).sum(-1).unsqueeze(-2)
        return squares + q @ s.mT + r @ k.mT


class ComplexSum(NamedTuple):
    """The real and the imaginary part of z; a part that vanishes is ``None``."""

    real: PairSum | None
    imag: PairSum | None

    def products(self, other: ComplexSum) -> theory.Products:
        """Return the inner products of the parts of z and of another sum; a scalar 0 where a part is absent."""

        def dot(a: PairSum | None, b: PairSum | None) -> Tensor:
            return zero if a is None or b is None else a.dot(b)

        zero = next(part for part in self if part is not None).query.new_zeros(())
        vu = dot(self.imag, other.real)
        # One number for both where z is the same, so that zᵀ conj(z) is real to the last digit.
        uv = vu if other is self else dot(self.real, other.imag)
        return theory.Products(dot(self.real, other.real), dot(self.imag, other.imag), vu, uv)


class Exponential(ExponentialFeatures):
    """Complex exponential features with any invertible matrix A and any shifts.

    Args:
        dim: length d of the inputs.
        n_projections: number m of rows ω.
        matrix: A as ``(d, d)``, or its diagonal as ``(d,)``, real or complex; ``None`` is the identity.
            With ``heads=H``, a leading axis H.
        query_shift: a in the exact identity exp(xᵀy) = exp((x−a)ᵀ(y−b)) exp(xᵀb) exp(aᵀy) exp(−aᵀb): x − a and
            y − b are mapped, so the variance is governed by distances to the shifts.
            ``(d,)``, or ``(H, d)`` with heads; ``None`` is 0.
        key_shift: b, likewise.
        antithetic: average over ω and −ω. (A purely imaginary A does so anyway: its products are even in ω.)
        projection: one of `hrf.projections.KINDS`, or a `Projections` to share.
        heads: ``None``, or H for one map per head.
        generator: the source of randomness.
        seed: seed of a new generator, in place of ``generator``.
        device: of all tensors, which are drawn where the generator is.
        dtype: of all tensors, which are drawn in float64.

    The width is m for a real A and 2m for an imaginary or complex one, doubled by ±ω unless A is imaginary.

    >>> import torch, hrf
    >>> phi = hrf.Exponential(3, n_projections=8, matrix=torch.tensor([2.0, 1.0, 0.5]))
    >>> phi.queries(torch.zeros(5, 3)).shape
    torch.Size([5, 16])
    """

    def __init__(
        self,
        dim: int,
        *,
        n_projections: int,
        matrix: Tensor | None = None,
        query_shift: Tensor | None = None,
        key_shift: Tensor | None = None,
        antithetic: bool = True,
        projection: ProjectionKind | Projections = "orthogonal",
        heads: int | None = None,
        generator: Generator | None = None,
        seed: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.projection = Projections.resolve(
            projection, n_projections, dim, heads=heads, generator=generator, seed=seed
        )
        self.dim, self.n_projections, self.heads = self.projection.sizes()
        self.antithetic = antithetic
        self.query_matrix, self.key_matrix = matrix_pair(matrix, dim, heads)
        self.register_buffer("query_shift", self._shift(query_shift, "query_shift"))
        self.register_buffer("key_shift", self._shift(key_shift, "key_shift"))
        signs = 2 if antithetic and self.query_matrix.has_real else 1
        self.n_terms = self.n_projections * signs
        self.feature_dim = self.n_terms * (2 if self.query_matrix.has_imag else 1)
        self.to(device=device, dtype=dtype)

    @classmethod
    def fit(
        cls,
        queries: Tensor,
        keys: Tensor,
        *,
        n_projections: int,
        matrix: MatrixKind | None = "real-full",
        shift: bool = True,
        heads: int | None = None,
        **arguments: Any,
    ) -> Exponential:
        """Fit A in closed form and put the shifts at the means, for queries that meet all keys.

        Args:
            queries: ``(..., L, d)``, or ``(..., H, L, d)`` with ``heads=H``: fitted head by head.
            keys: ``(..., S, d)``, likewise.
            n_projections: number m of rows ω.
            matrix: one of `hrf.fitting.KINDS`, or ``None`` for the identity.
            shift: move the origin to the means.
            heads: ``None``, or H.
            **arguments: ``antithetic``, ``projection``, ``generator`` and ``seed`` of the constructor.

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

    @property
    @override
    def nonnegative(self) -> bool:
        """Whether no estimate can be negative: for a real A."""
        return not self.query_matrix.has_imag

    def relative_sum(self, x: Tensor, y: Tensor) -> ComplexSum:
        """Return z = A(x − a) + A⁻ᵀ(y − b) of all pairs: all moments depend on it."""
        q, k = self.prepare(x, "query"), self.prepare(y, "key")
        real = None if q.real is None or k.real is None else PairSum(q.real, k.real)
        imag = None if q.imag is None or k.imag is None else PairSum(q.imag, -k.imag)  # keys are conjugate
        return ComplexSum(real, imag)

    def relative_covariance(self, other: Exponential, x: Tensor, y: Tensor) -> theory.Scaled:
        """Return the covariance with an estimate on the same ω, over the squared kernel: ``(..., L, S)``."""
        kind = self.projection.kind
        if kind not in ("iid", "orthogonal"):
            raise NotImplementedError(
                f"no closed form is known for the MSE of {type(self).__name__} with {kind!r} projections; "
                "one is known for 'iid' and 'orthogonal'"
            )
        mine = self.relative_sum(x, y)
        theirs = mine if other is self else other.relative_sum(x, y)
        products, own = mine.products(theirs), None
        if kind == "orthogonal":
            own = (products, products) if theirs is mine else (mine.products(mine), theirs.products(theirs))
        return theory.covariance_of_products(
            products,
            self.n_projections,
            self.dim,
            antithetic=self.antithetic or other.antithetic,
            own=own,
        )

    @override
    def _log_mse(self, x: Tensor, y: Tensor) -> Tensor:
        return self.relative_covariance(self, x, y).log() + 2 * kernels.log_softmax_kernel(x, y)

    @override
    def _flops(self) -> Flops:
        """Count projections, one function per feature and its scaling: 2m(d + 2) for the two well-known members."""
        matrix = self.query_matrix
        rows = flops.projected(self.n_projections, self.dim).times(matrix.has_real + matrix.has_imag)
        n_shifts = sum(shift is not None for shift in (self.query_shift, self.key_shift))
        shifts = flops.scaled(self.dim, 2 * n_shifts)
        return rows.plus(flops.features(self.feature_dim), matrix.flops(self.dim), shifts)

    @override
    def config(self) -> dict[str, Any]:
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


class _Isotropic(Exponential):
    """An exponential map whose matrix is a fixed multiple of the identity."""

    _unit: complex

    def __init__(
        self,
        dim: int,
        *,
        n_projections: int,
        projection: ProjectionKind | Projections = "orthogonal",
        heads: int | None = None,
        generator: Generator | None = None,
        seed: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        shape = shapes_with_heads(heads, (check_count("dim", dim),))[0]
        super().__init__(
            dim,
            n_projections=n_projections,
            matrix=torch.full(shape, self._unit, device="cpu"),
            projection=projection,
            heads=heads,
            generator=generator,
            seed=seed,
            device=device,
            dtype=dtype,
        )

    @override
    def config(self) -> dict[str, Any]:
        everything = super().config()
        return {name: everything[name] for name in ("dim", "n_projections", "projection", "heads")}


@own_constructor
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


@own_constructor
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
