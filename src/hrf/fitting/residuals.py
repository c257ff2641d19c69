"""Clusters and the matrix of their residuals, fitted alternately.

With residuals x' = x − rᵢ and y' = y − rⱼ, the variance of a map of residuals is governed by Ax' + A⁻ᵀy'. A and
the clusters control the part E‖Ax'‖² + E‖A⁻ᵀy'‖² of its mean square: k-means of Ax and of A⁻ᵀy lowers it for a
given A, `fit_matrix` for given residuals. So clusters become narrow in the directions that count.
Both steps weight each key by the attention that it receives.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor

from hrf.fitting.clusters import Clusters, kmeans
from hrf.fitting.matrices import MatrixKind, SecondMoments, fit_matrix

__all__ = ["ResidualFit", "fit_residuals"]

_ROUNDS = 3  # rounds after the first; errors have settled by then
_QUERIES = 256  # most queries whose attention is computed


class ResidualFit(NamedTuple):
    """Clusters of both sides, and the matrix and moments of their residuals.

    Attributes:
        queries: centres rᵢ and labels, by least (x − rᵢ)ᵀM(x − rᵢ).
        keys: centres rⱼ and labels, by least (y − rⱼ)ᵀM⁻¹(y − rⱼ).
        metric: M, ``(..., d, d)``.
        matrix: the real A for the residuals, ``(..., d, d)``, or its diagonal ``(..., d)``.
        moments: moments of the residuals, weighted by attention.
        kind: kind of A.
    """

    queries: Clusters
    keys: Clusters
    metric: Tensor
    matrix: Tensor
    moments: SecondMoments
    kind: MatrixKind


def fit_residuals(
    x: Tensor, y: Tensor, n_clusters: tuple[int, int], kind: MatrixKind, *, seed: int = 0
) -> ResidualFit:
    """Cluster queries ``(..., N, d)`` and keys ``(..., S, d)``, in float64, and fit A to their residuals.

    Args:
        x: queries.
        y: keys.
        n_clusters: n_q and n_k.
        kind: kind of A, one of `KINDS`. Residuals do not tell where A should be imaginary, so complex kinds
            are taken as real.
        seed: seed of k-means.
    """
    kind = cast("MatrixKind", kind.replace("complex", "real"))
    spread = slice(None, None, -(-x.shape[-2] // _QUERIES))  # evenly spread
    attention = (x[..., spread, :] @ y.mT).softmax(-1)
    mass = attention.mean(-2)
    a = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device).expand(*x.shape[:-2], -1, -1)
    for _ in range(1 + _ROUNDS):
        used, inverse = a, torch.linalg.inv(a)
        queries = kmeans(x @ used.mT, n_clusters[0], seed=seed)
        keys = kmeans(y @ inverse, n_clusters[1], weights=mass, seed=seed)
        # Back to the coordinates of x and y.
        queries = Clusters(queries.centers @ inverse.mT, queries.labels)
        keys = Clusters(keys.centers @ used, keys.labels)
        rx, ry = _residuals(x, queries), _residuals(y, keys)
        moments = SecondMoments(
            rx.mT @ rx / rx.shape[-2],
            (mass.unsqueeze(-1) * ry).mT @ ry,
            rx[..., spread, :].mT @ (attention @ ry) / attention.shape[-2],
        )
        matrix = fit_matrix(moments, kind)
        a = torch.diag_embed(matrix) if kind.endswith("diagonal") else matrix
    return ResidualFit(queries, keys, used.mT @ used, matrix, moments, kind)


def _residuals(u: Tensor, clusters: Clusters) -> Tensor:
    return u - clusters.centers.take_along_dim(clusters.labels.unsqueeze(-1), -2)
