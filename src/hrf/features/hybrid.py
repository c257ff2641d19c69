"""Hybrids (paper, Sec. 2.2): K̂ = Σ_{k≤p} λ̂ₖ K̂ₖ + (1 − Σ λ̂ₖ) K̂_{p+1}, unbiased for any coefficients.

The composition lemma turns features of the bases and of the coefficients into features of the hybrid. Bases may
share ω, coefficients may not share it with a base. The bipolar hybrids of the paper (Sec. 2.4 and appendix) mix
positive with trigonometric features; mixtures follow clusters of the data, with soft borders.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn
from typing_extensions import Self, override

from hrf import theory, tuning
from hrf.checks import check_count, generator_of, own_constructor
from hrf.features import flops
from hrf.features.base import FeatureMap, Linearised, Side
from hrf.features.coefficients import Angular, Coefficient, FromFeatureMap, Gaussian
from hrf.features.exponential import Exponential, Positive, Trigonometric
from hrf.features.exponential_features import ExponentialRows
from hrf.features.flops import Flops
from hrf.fitting import DiagonalKind, kmeans, matrix_from_centers, samples
from hrf.numerics import Features, check_finite, check_range, common_scale, half_square
from hrf.projections import ProjectionKind, Projections

__all__ = ["AngularHybrid", "GaussianHybrid", "GaussianMixture", "Hybrid"]

# The composition lemma (paper, Sec. 2.2): features of a hybrid from features of its parts.
#
# With λ̂ₖ = aₖ + ρₖ(x)ᵀρₖ(y) and a_{p+1} = 1 − Σ aₖ, the hybrid is
#
#     K̂ = Σ_{k≤p+1} aₖ K̂ₖ + Σ_{k≤p} (λ̂ₖ − aₖ)(K̂ₖ − K̂_{p+1}),
#
# so its features are ρₖ ⊗ (φₖ, φ_{p+1}) for every coefficient, then √|aₖ| φₖ for every base. Signs stand on the key
# side: the minus, ρₖ ⊗ (φₖ, −φ_{p+1}), and the signs of the aₖ.


def compose(
    phi: list[Tensor],
    rho: list[Tensor],
    constants: Sequence[float],
    side: Side,
    out: Tensor | None = None,
) -> Tensor:
    """Multiply features φₖ of the bases with features ρₖ of the coefficients.

    Args:
        phi: ``(..., L, D)`` per base.
        rho: the number 1, ``(..., L, 1)``, then ``(..., L, n)`` per coefficient.
        constants: aₖ per base; bases with aₖ = 0 have no features of their own.
        side: signs stand on the key side.
        out: a place for the result, without autograd then.
    """
    one, *rho = rho
    if side == "key":
        phi = [*phi[:-1], -phi[-1]]
    # Widest first: it then is what touches the memory of the result, with all threads.
    products = [(r, torch.cat([phi[k], phi[-1]], -1)) for k, r in enumerate(rho)]
    for k, a in enumerate(constants):
        if a:
            # Key signs: the sign of aₖ, and the minus of the last base, which −φ has already.
            sign = 1 if side == "query" else math.copysign(1, a) * (-1 if k == len(rho) else 1)
            products.append((one * (sign * math.sqrt(abs(a))), phi[k]))
    blocks, start = [], 0
    for factor, vector in products:
        shape = (factor.shape[-1], vector.shape[-1])
        place = None if out is None else out[..., start : start + math.prod(shape)].unflatten(-1, shape)
        blocks.append(torch.mul(factor.unsqueeze(-1), vector.unsqueeze(-2), out=place).flatten(-2))
        start += math.prod(shape)
    return torch.cat(blocks, -1) if out is None else out


# The parts of a hybrid: how they are built, which of them fit together, and how their estimates covary.


def bipolar_bases(
    dim: int,
    n_projections: int,
    share: bool,
    kind: ProjectionKind,
    heads: int | None,
    generator: Generator | None,
) -> list[FeatureMap]:
    """Build positive and trigonometric features, on the same ω or on two draws."""
    check_count("dim", dim)
    draws = [
        Projections(kind, n_projections, dim, heads=heads, generator=generator) for _ in range(2 - share)
    ]
    return [
        base(dim, n_projections=n_projections, projection=omega, heads=heads)
        for base, omega in zip((Positive, Trigonometric), (draws[0], draws[-1]), strict=True)
    ]


def check_parts(bases: Sequence[FeatureMap], coefficients: Sequence[Coefficient]) -> None:
    """Refuse parts that do not fit together, and name them."""
    if len(bases) < 2 or len(coefficients) != len(bases) - 1:
        raise ValueError(
            f"the numbers of bases and coefficients are {len(bases)} and {len(coefficients)}; "
            "expected two or more bases and one coefficient fewer"
        )
    for kind, parts in ((FeatureMap, bases), (Coefficient, coefficients)):
        for part in parts:
            if not isinstance(part, kind):
                raise TypeError(
                    f"{type(part).__name__} is among the {kind.__name__}s; expected a {kind.__name__}"
                )
    for name in ("dim", "heads"):
        values = [getattr(part, name) for part in (*bases, *coefficients)]
        if len(set(values)) > 1:
            raise ValueError(f"the bases and coefficients have {name} = {values}; expected one value for all")
    estimated = [base.kernel for base in bases]
    if len(set(estimated)) > 1:
        raise ValueError(f"the bases estimate the kernels {estimated}; expected one kernel for all")
    if share_projections(bases, coefficients):
        raise ValueError(
            "a coefficient shares projections with a base; it needs its own, or the hybrid is biased"
        )
    _check_draws(list({p for part in (*bases, *coefficients) for p in part.all_projections()}))


def _check_draws(projections: Sequence[Projections]) -> None:
    """Refuse draws from equal seeds: the hybrid would take them for independent draws and be biased."""
    first = [_first_row(p).double().cpu() for p in projections if not p.omega.is_meta]
    if not first:
        return
    rows = torch.stack(first)
    near = torch.cdist(rows, rows) < 1e-6  # rounding of float32; by chance for one pair in 10⁶ at d = 2
    if near.sum() > len(rows):
        raise ValueError(
            "two of the parts have the same ω, drawn from equal seeds; expected independent draws (hand one "
            "generator to all), or one Projections object that the bases share"
        )


def _first_row(projections: Projections) -> Tensor:
    """Return the first direction of a draw, to recognise it; lengths of rows may depend on their number."""
    row = projections.omega.detach().reshape(-1, projections.dim)[0]
    few_directions = projections.dim == 1 or projections.kind == "hadamard"
    return row if few_directions else row / row.norm()


def share_projections(first: Sequence[Linearised], second: Sequence[Linearised]) -> bool:
    """Whether a `Projections` object occurs in a part of both."""
    mine, theirs = ({p for part in parts for p in part.all_projections()} for parts in (first, second))
    return bool(mine & theirs)


def relative_covariance(first: FeatureMap, second: FeatureMap, x: Tensor, y: Tensor) -> theory.Scaled | None:
    """Return the covariance of two base estimates over the squared kernel; ``None`` if they are independent."""
    if not share_projections([first], [second]):
        return None
    if isinstance(first, Exponential) and isinstance(second, Exponential):
        return first.relative_covariance(second, x, y)
    raise NotImplementedError(
        f"no closed form is known for {type(first).__name__} and {type(second).__name__} that share ω"
    )


class Hybrid(FeatureMap):
    """A mixture of p + 1 base maps with p coefficients; the last base has the weight 1 − Σ λ̂ₖ.

    Args:
        bases: maps of the same kernel, ``dim`` and ``heads``. They may share `Projections`.
        coefficients: one fewer than the bases, with projections of their own: λ̂ has to be independent
            of the bases, or the hybrid is biased.

    >>> import torch, hrf
    >>> bases = [hrf.Positive(4, n_projections=8), hrf.Trigonometric(4, n_projections=8)]
    >>> phi = hrf.Hybrid(bases, [hrf.coefficients.Angular(4, n_projections=2)])
    >>> x, y = torch.randn(5, 4), torch.randn(6, 4)
    >>> bool(torch.allclose(phi.queries(x) @ phi.keys(y).mT, phi.estimate(x, y), rtol=1e-3, atol=1e-3))
    True
    """

    def __init__(self, bases: Sequence[FeatureMap], coefficients: Sequence[Coefficient]) -> None:
        super().__init__()
        check_parts(bases, coefficients)
        self.bases, self.coefficients = nn.ModuleList(bases), nn.ModuleList(coefficients)
        self.dim, self.heads, self.kernel = bases[0].dim, bases[0].heads, bases[0].kernel
        self.constants = [c.constant for c in coefficients]
        self.constants.append(1 - math.fsum(self.constants))
        last = bases[-1].feature_dim
        self.feature_dim = sum(base.feature_dim for a, base in zip(self.constants, bases, strict=True) if a)
        self.feature_dim += sum(
            c.feature_dim * (base.feature_dim + last)
            for c, base in zip(coefficients, bases[:-1], strict=True)
        )

    @property
    @override
    def _block(self) -> int:
        return tuning.HYBRID_FLOATS

    @property
    def base_maps(self) -> list[FeatureMap]:
        """The p + 1 bases K̂ₖ."""
        return list(self.bases)  # type: ignore[arg-type]

    @property
    def coefficient_maps(self) -> list[Coefficient]:
        """The p coefficients λ̂ₖ."""
        return list(self.coefficients)  # type: ignore[arg-type]

    @property
    @override
    def unbiased(self) -> bool:
        """Whether every base is unbiased; coefficients may be biased, as they are independent of the bases."""
        return all(base.unbiased for base in self.base_maps)

    @override
    def check_values(self, x: Tensor, name: str) -> None:
        self.base_maps[0].check_values(x, name)

    @override
    def scaled(self, x: Tensor, side: Side) -> Features:
        shared, scaled = self._shared_rows(x, side), []
        for k, base in enumerate(self.base_maps):
            if isinstance(base, Exponential) and k in shared:
                scaled.append(base.finish_scaled(shared[k]))
            else:
                scaled.append(base.scaled(x, side))
        one = Features(torch.ones_like(x[..., :1]), torch.zeros_like(x[..., :1]))
        features, scale = common_scale(scaled)
        rho, rho_scale = common_scale([one, *(c.scaled(x, side) for c in self.coefficient_maps)])
        return Features(compose(features, rho, self.constants, side), scale + rho_scale)

    @override
    def unscaled(self, x: Tensor, side: Side, out: Tensor | None = None) -> Tensor:
        shared, features = self._shared_rows(x, side), []
        for k, base in enumerate(self.base_maps):
            place = None if out is None else x.new_empty(*x.shape[:-1], base.feature_dim)
            if isinstance(base, Exponential) and k in shared:
                base.check_rows(shared[k])
                features.append(base.finish(shared[k], place, place))
            else:
                features.append(base.unscaled(x, side, place))
        rho = [c.unscaled(x, side) for c in self.coefficient_maps]
        # Other coefficients are at most 1.
        if any(isinstance(c, FromFeatureMap) for c in self.coefficient_maps):
            largest = (torch.cat(f, -1).detach().abs().amax(-1).log() for f in (features, rho))
            check_range(sum(largest, start=x.new_zeros(())))
        return compose(features, [torch.ones_like(x[..., :1]), *rho], self.constants, side, out)

    def _shared_rows(self, x: Tensor, side: Side) -> dict[int, ExponentialRows]:
        """Prepare the bases that share ωᵀx with another base, each by its number."""
        rows: dict[int, ExponentialRows] = {}
        for projection, group in self._groups().items():
            projected, square = x @ projection.omega.to(x.dtype).mT, half_square(x)
            check_finite(square, x, side)
            for k, base in group.items():
                rows[k] = base.isotropic_rows(projected, square)
        return rows

    def _groups(self) -> dict[Projections, dict[int, Exponential]]:
        """Group the bases that share ωᵀx, so that it is computed once."""
        groups: dict[Projections, dict[int, Exponential]] = {}
        for k, base in enumerate(self.base_maps):
            if isinstance(base, Exponential) and base.isotropic:
                groups.setdefault(base.projection, {})[k] = base
        return {projection: group for projection, group in groups.items() if len(group) > 1}

    @override
    def scaled_estimate(self, x: Tensor, y: Tensor) -> Features:
        """Sum λ̂ₖ K̂ₖ from the definition, which keeps the digits that the sum over features cancels."""
        lam = [c._estimate(x, y) for c in self.coefficient_maps]
        lam.append(1 - sum(lam, start=x.new_zeros(())))
        estimates = [b.scaled_estimate(x, y) for b in self.base_maps]
        # A base without weight does not set the scale, so that it cannot push other bases below rounding.
        absent = -torch.inf
        scales = [e.log_scale.masked_fill(w == 0, absent) for w, e in zip(lam, estimates, strict=True)]
        scale = torch.stack(torch.broadcast_tensors(*scales)).detach().amax(0)
        terms = [w * e.values * (s - scale).exp() for w, e, s in zip(lam, estimates, scales, strict=True)]
        return Features(torch.stack(terms).sum(0), scale)

    @override
    def _log_mse(self, x: Tensor, y: Tensor) -> Tensor:
        bases, coefficients = self.base_maps, self.coefficient_maps
        if any(share_projections([c], coefficients[:k]) for k, c in enumerate(coefficients)):
            raise NotImplementedError(
                "no closed form is known for the MSE of a Hybrid whose coefficients share ω"
            )
        log_kernel = self.log_kernel(x, y)
        covariances: list[list[theory.Scaled | None]] = [[None] * len(bases) for _ in bases]
        for k, base in enumerate(bases):
            covariances[k][k] = theory.Scaled.exp(base._log_mse(x, y) - 2 * log_kernel)
            for other in range(k):
                covariances[k][other] = covariances[other][k] = relative_covariance(bases[other], base, x, y)
        moments = [c._moments(x, y) for c in coefficients]
        return theory.hybrid_covariance(moments, covariances).log() + 2 * log_kernel

    @override
    def _flops(self) -> Flops:
        """Count bases (shared projections once), coefficients, and one multiplication per product in ρ ⊗ φ."""
        bases, coefficients = self.base_maps, self.coefficient_maps
        spared = [
            flops.projected(p.n_projections, p.dim).times(1 - len(group))
            for p, group in self._groups().items()
        ]
        widths = [c.feature_dim for c in coefficients]
        products = [flops.outer(b.feature_dim, n) for b, n in zip(bases, [*widths, sum(widths)], strict=True)]
        return Flops().plus(*(part._flops() for part in [*bases, *coefficients]), *spared, *products)

    @override
    def config(self) -> dict[str, Any]:
        return {"bases": self.base_maps, "coefficients": self.coefficient_maps}


class AngularHybrid(Hybrid):
    """The angular hybrid (paper, Sec. 2.4): K̂ = λ̂ K̂⁺⁺ + (1 − λ̂) K̂^trig with λ = θ/π. Width 4m(n + 1).

    On a sphere the estimate is exact at θ = 0 and at θ = π.

    Args:
        dim: length d of the inputs.
        n_projections: number m of rows ω for each base.
        n_coefficient_projections: number n of sign bits for the angle.
        share_projections: let both bases use the same ω, so that the projections are computed once. With
            independent rows the error is the same for inputs of one norm, and no larger otherwise.
        projection: one of `hrf.projections.KINDS`, for ω and for the bits.
        heads: ``None``, or H for one map per head.
        generator: the source of randomness.
        seed: seed of a new generator, in place of ``generator``.
        device: of all tensors, which are drawn where the generator is.
        dtype: of all tensors, which are drawn in float64.

    >>> import torch, hrf
    >>> phi = hrf.AngularHybrid(64, n_projections=16, n_coefficient_projections=8)
    >>> x = torch.nn.functional.normalize(torch.randn(3, 64), dim=-1)
    >>> phi.feature_dim, float(phi.mse(x, x).diagonal().max()), float(phi.mse(x, -x).diagonal().max())
    (576, 0.0, 0.0)
    """

    def __init__(
        self,
        dim: int,
        *,
        n_projections: int,
        n_coefficient_projections: int,
        share_projections: bool = True,
        projection: ProjectionKind = "orthogonal",
        heads: int | None = None,
        generator: Generator | None = None,
        seed: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        generator = generator_of(generator, seed)
        bases = bipolar_bases(dim, n_projections, share_projections, projection, heads, generator)
        common: dict[str, Any] = {"projection": projection, "heads": heads}
        angular = Angular(dim, n_projections=n_coefficient_projections, generator=generator, **common)
        super().__init__(bases, [angular])
        self.arguments = {
            "dim": dim,
            "n_projections": n_projections,
            "n_coefficient_projections": n_coefficient_projections,
            "share_projections": share_projections,
            **common,
        }
        self.to(device=device, dtype=dtype)

    @override
    def config(self) -> dict[str, Any]:
        return self.arguments


class GaussianHybrid(Hybrid):
    """The normalised bipolar Gaussian hybrid (paper, appendix): λ = (1 − exp(−σ²‖x − y‖²/2))/ρ.

    ρ = 1 − exp(−2σ²r²) makes λ run from 0 at x = y to 1 at x = −y on the sphere of radius r. The Gaussian
    is estimated with trigonometric features, so the estimate is exact at x = y.

    Args:
        dim: length d of the inputs.
        n_projections: number m of rows ω for each base.
        n_coefficient_projections: number n of rows for the coefficient.
        sigma: σ, how sharply λ leaves 0.
        radius: r, the norm of the inputs (the estimate is unbiased at any norm).
        share_projections: let both bases use the same ω.
        projection: one of `hrf.projections.KINDS`, for ω and for the coefficient.
        heads: ``None``, or H for one map per head.
        generator: the source of randomness.
        seed: seed of a new generator, in place of ``generator``.
        device: of all tensors, which are drawn where the generator is.
        dtype: of all tensors, which are drawn in float64.
    """

    def __init__(
        self,
        dim: int,
        *,
        n_projections: int,
        n_coefficient_projections: int,
        sigma: float,
        radius: float,
        share_projections: bool = True,
        projection: ProjectionKind = "orthogonal",
        heads: int | None = None,
        generator: Generator | None = None,
        seed: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        generator = generator_of(generator, seed)
        bases = bipolar_bases(dim, n_projections, share_projections, projection, heads, generator)
        common: dict[str, Any] = {"projection": projection, "heads": heads}
        inner = Trigonometric(dim, n_projections=n_coefficient_projections, generator=generator, **common)
        super().__init__(bases, [Gaussian.bipolar(inner, sigma=sigma, radius=radius)])
        self.arguments = {
            "dim": dim,
            "n_projections": n_projections,
            "n_coefficient_projections": n_coefficient_projections,
            "sigma": sigma,
            "radius": radius,
            "share_projections": share_projections,
            **common,
        }
        self.to(device=device, dtype=dtype)

    @override
    def config(self) -> dict[str, Any]:
        return self.arguments


# Clusters with soft borders (paper, appendix: Gaussian-mixture estimators for clustered data).
#
# K̂ = Σ_{ij} λ̂ᵢⱼ K̂ᵢⱼ + (1 − Σ λ̂ᵢⱼ) K̂₀: a complex exponential base with Aᵢⱼ from the centres rᵢ and rⱼ of every
# pair of clusters, a Gaussian coefficient that is 1 at (rᵢ, rⱼ), and a default base for the rest.


@own_constructor
class GaussianMixture(Hybrid):
    """Gaussian coefficients for pairs of clusters; `ClusteredHybrid` has zero-one coefficients. Unbiased.

    The paper writes λᵢⱼ = exp(−‖Aᵢⱼx + Aᵢⱼ⁻¹y‖²/2τ²), which leaves [0, 1] for a complex A. For diagonal
    entries that are real or imaginary, as its rule gives them, the Gaussian kernel of |A|x/τ and −E|A|⁻¹y/τ
    with Eₖ = 1 for a real and −1 for an imaginary entry stays there and has its maximum, 1, at the centres.
    """

    @classmethod
    def fit(
        cls,
        queries: Tensor,
        keys: Tensor,
        *,
        n_clusters: tuple[int, int] = (2, 2),
        n_projections: int = 64,
        n_coefficient_projections: int = 8,
        scale: float = 1.0,
        matrix: DiagonalKind = "complex-diagonal",
        projection: ProjectionKind = "orthogonal",
        generator: Generator | None = None,
        seed: int | None = None,
    ) -> Self:
        """Cluster queries ``(..., L, d)`` and keys ``(..., S, d)`` and build the mixture.

        Args:
            queries: vectors to cluster.
            keys: vectors to cluster.
            n_clusters: n_q and n_k.
            n_projections: m of every base; the default is `Positive`.
            n_coefficient_projections: n of every coefficient, estimated by `Trigonometric`.
            scale: τ, the width of a coefficient's window.
            matrix: ``"complex-diagonal"`` or ``"real-diagonal"``.
            projection: one of `hrf.projections.KINDS`.
            generator: the source of ω.
            seed: seed of k-means, 0 by default, and of ω where there is no ``generator``.
        """
        generator = generator_of(generator, seed if generator is None else None)
        x, y = samples(queries, None, "queries"), samples(keys, None, "keys")
        centers = [kmeans(u, n, seed=seed or 0).centers for u, n in zip((x, y), n_clusters, strict=True)]
        matrices = matrix_from_centers(centers[0], centers[1], matrix).flatten(0, 1)
        dim = x.shape[-1]
        common: dict[str, Any] = {"projection": projection, "generator": generator}
        bases = [Exponential(dim, n_projections=n_projections, matrix=a, **common) for a in matrices]
        coefficients = []
        for a in matrices.to(torch.complex128):
            inner = Trigonometric(dim, n_projections=n_coefficient_projections, **common)
            sign = torch.where(a.imag == 0, 1.0, -1.0)
            coefficients.append(Gaussian(inner, query_matrix=a.abs(), matrix=sign / a.abs(), scale=scale))
        return cls([*bases, Positive(dim, n_projections=n_projections, **common)], coefficients)
