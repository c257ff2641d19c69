"""Clusters with soft borders (paper, appendix: Gaussian-mixture estimators for clustered data).

K̂ = Σ_{ij} λ̂ᵢⱼ K̂ᵢⱼ + (1 − Σ λ̂ᵢⱼ) K̂₀: a complex exponential base with Aᵢⱼ from the centres rᵢ and rⱼ of every
pair of clusters, a Gaussian coefficient that is 1 at (rᵢ, rⱼ), and a default base for the rest.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor
from typing_extensions import Self

from hrf.checks import generator_of, own_constructor
from hrf.features.coefficients import Gaussian
from hrf.features.exponential import Exponential, Positive, Trigonometric
from hrf.features.hybrid import Hybrid
from hrf.fitting import DiagonalKind, kmeans, matrix_from_centers, samples
from hrf.projections import ProjectionKind

__all__ = ["GaussianMixture"]


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
