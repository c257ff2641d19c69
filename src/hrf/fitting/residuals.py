"""Clusters and the matrix of their residuals, fitted in turns.

With residuals x' = x − rᵢ and y' = y − rⱼ, the variance of a map of them is governed by Ax' + A⁻ᵀy'. What A and
the clusters can do about its mean square is E‖Ax'‖² + E‖A⁻ᵀy'‖²: for a given A it is lowered by k-means of Ax
and of A⁻ᵀy, for given residuals by `fit_matrix`. So clusters become narrow in the directions that count.
Both steps are for keys as they are attended to: a key weighs as much as attention gives it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hrf.fitting.clusters import Clusters, kmeans
from hrf.fitting.matrices import SecondMoments, fit_matrix

__all__ = ["ResidualFit", "fit_residuals"]

_ROUNDS = 3  # after the first; errors have settled by then
_QUERIES = 256  # at most, whose attention is looked at


class ResidualFit(NamedTuple):
    """Clusters of both sides, and what their residuals are like.

    Attributes:
        queries: centres rᵢ and labels, by least (x − rᵢ)ᵀM(x − rᵢ).
        keys: centres rⱼ and labels, by least (y − rⱼ)ᵀM⁻¹(y − rⱼ).
        metric: M, ``(..., d, d)``.
        matrix: the real A for the residuals, ``(..., d, d)``, or its diagonal ``(..., d)``.
        moments: of the residuals, under attention.
        kind: of A.
    """

    queries: Clusters
    keys: Clusters
    metric: Tensor
    matrix: Tensor
    moments: SecondMoments
    kind: str


def fit_residuals(
    x: Tensor, y: Tensor, n_clusters: tuple[int, int], kind: str, *, seed: int = 0
) -> ResidualFit:
    """Cluster queries ``(..., N, d)`` and keys ``(..., S, d)``, in float64, and fit A to their residuals.

    Args:
        x: queries.
        y: keys.
        n_clusters: n_q and n_k.
        kind: of A, one of `KINDS`; about centres nothing tells a matrix where to be imaginary, so that the
            complex kinds are the real ones.
        seed: of k-means.
    """
    kind = kind.replace("complex", "real")
    some = slice(None, None, -(-x.shape[-2] // _QUERIES))  # evenly spread
    attention = (x[..., some, :] @ y.mT).softmax(-1)
    mass = attention.mean(-2)
    a = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device).expand(*x.shape[:-2], -1, -1)
    for _ in range(1 + _ROUNDS):
        used, inverse = a, torch.linalg.inv(a)
        queries = kmeans(x @ used.mT, n_clusters[0], seed=seed)
        keys = kmeans(y @ inverse, n_clusters[1], weights=mass, seed=seed)
        queries = Clusters(
            queries.centers @ inverse.mT, queries.labels
        )  # in the coordinates of x and y again
        keys = Clusters(keys.centers @ used, keys.labels)
        rx, ry = _residuals(x, queries), _residuals(y, keys)
        moments = SecondMoments(
            rx.mT @ rx / rx.shape[-2],
            (mass.unsqueeze(-1) * ry).mT @ ry,
            rx[..., some, :].mT @ (attention @ ry) / attention.shape[-2],
        )
        matrix = fit_matrix(moments, kind)
        a = torch.diag_embed(matrix) if kind.endswith("diagonal") else matrix
    return ResidualFit(queries, keys, used.mT @ used, matrix, moments, kind)


def _residuals(u: Tensor, clusters: Clusters) -> Tensor:
    return u - clusters.centers.take_along_dim(clusters.labels.unsqueeze(-1), -2)
