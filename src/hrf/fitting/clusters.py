"""Clusters of points: k-means, the nearest centre, and moments within clusters.

Points are ``(..., N, d)`` and all functions work head by head over the leading axes.
"""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from hrf import tuning

__all__ = ["ClusterMoments", "Clusters", "assign", "cluster_sizes", "kmeans", "moments_by_cluster"]


class Clusters(NamedTuple):
    """Centres and the points that belong to them.

    Attributes:
        centers: ``(..., n, d)``, in float64.
        labels: the nearest centre of every point, ``(..., N)``.
    """

    centers: Tensor
    labels: Tensor


class ClusterMoments(NamedTuple):
    """Moments of the points of each cluster, in float64. Empty clusters get the moments of all points.

    Attributes:
        counts: numbers of points, ``(..., n)``.
        means: E x, ``(..., n, d)``.
        seconds: E xxᵀ, ``(..., n, d, d)``.
    """

    counts: Tensor
    means: Tensor
    seconds: Tensor


def kmeans(points: Tensor, n_clusters: int, *, weights: Tensor | None = None, seed: int = 0) -> Clusters:
    """Cluster by Lloyd's k-means from one k-means++ start, by scikit-learn, with the same seed for every head.

    Args:
        points: ``(N, d)``, or ``(H, N, d)`` for H heads that are clustered separately. If fewer than
            ``n_clusters`` points are distinct, centres coincide.
        n_clusters: number of centres, at most N.
        weights: how much each point counts, ``(..., N)``; ``None`` for equal weights.
        seed: seed of the start; the same seed gives the same clusters.
    """
    *heads, n_points, dim = points.shape
    if not 1 <= n_clusters <= n_points:
        raise ValueError(
            f"n_clusters is {n_clusters}; expected between 1 and {n_points}, the number of points"
        )
    try:
        from sklearn.cluster import KMeans  # type: ignore[import-untyped, unused-ignore]
        from sklearn.exceptions import ConvergenceWarning  # type: ignore[import-untyped, unused-ignore]
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ImportError(
            "k-means needs scikit-learn: pip install 'hybrid-random-features[learn]'"
        ) from error
    model = KMeans(n_clusters, n_init=1, algorithm="lloyd", random_state=seed)
    counts = points.new_ones(points.shape[:-1]) if weights is None else weights
    sides = [u.detach().cpu().double().reshape(-1, *u.shape[len(heads) :]).numpy() for u in (points, counts)]
    centers = []
    # One thread: beside PyTorch's own pool, several threads are 30 times slower on a few hundred points.
    with threadpool_limits(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # centres that coincide
        for head, count in zip(*sides, strict=True):
            centers.append(torch.from_numpy(model.fit(head, sample_weight=count).cluster_centers_))
    stacked = torch.stack(centers).reshape(*heads, n_clusters, dim).to(points.device)
    return Clusters(stacked, assign(points, stacked))


def assign(points: Tensor, centers: Tensor, metric: Tensor | None = None) -> Tensor:
    """Return the index of the nearest centre, the lowest in a tie: ``(..., N, d), (..., n, d) -> (..., N)``.

    It compares xᵀMc − cᵀMc/2, with the origin at the mean of the centres: one matrix product. Centres
    whose squared distances to x differ by less than rounding, a few ε ‖x‖‖Mc‖, count as equally near.

    Args:
        points: vectors x.
        centers: centres c.
        metric: M of the squared distance (x − c)ᵀM(x − c), ``(..., d, d)``; ``None`` is the identity.
    """
    dtype = torch.promote_types(points.dtype, centers.dtype)
    origin = centers.to(dtype).mean(-2, keepdim=True)
    x, c = points - origin, centers - origin
    towards = c if metric is None else c @ metric.to(dtype)
    scores = (x @ towards.mT).sub_((c * towards).sum(-1).unsqueeze(-2) / 2)
    return scores.max(-1).indices  # twice as fast as argmax


def cluster_sizes(labels: Tensor, n_clusters: int) -> Tensor:
    """Count the points of each cluster: ``(..., N) -> (..., n)``."""
    counts = torch.zeros(*labels.shape[:-1], n_clusters, dtype=torch.long, device=labels.device)
    return counts.scatter_add_(-1, labels, torch.ones_like(labels))


def moments_by_cluster(points: Tensor, labels: Tensor, n_clusters: int) -> ClusterMoments:
    """Compute counts, means and second moments of every cluster, in one pass.

    Args:
        points: ``(..., N, d)``.
        labels: ``(..., N)``, between 0 and ``n_clusters`` − 1.
        n_clusters: number n of clusters, empty clusters included.
    """
    if labels.shape != points.shape[:-1]:
        raise ValueError(f"labels have shape {tuple(labels.shape)}; expected {tuple(points.shape[:-1])}")
    if labels.numel() == 0 or labels.min() < 0 or labels.max() >= n_clusters:
        raise ValueError(f"labels are missing, or not all of them are between 0 and {n_clusters - 1}")
    # The second moments of (1, x) hold the counts, the means and the second moments of x
    x = pad(points.to(torch.float64), (1, 0), value=1.0)
    *leading, n_points, width = x.shape
    rows = x.reshape(-1, width)
    head = torch.arange(len(rows), device=x.device) // n_points
    cluster = labels.reshape(-1) + n_clusters * head
    sums = x.new_zeros(math.prod(leading) * n_clusters, width, width)
    block = max(1, tuning.FITTING_FLOATS // width**2)
    for part, index in zip(rows.split(block), cluster.split(block), strict=True):
        sums.index_add_(0, index, part.unsqueeze(-1) * part.unsqueeze(-2))
    sums = sums.view(*leading, n_clusters, width, width)
    counts = sums[..., 0, 0]
    sums = torch.where(counts[..., None, None] > 0, sums, sums.sum(-3, keepdim=True))
    moments = sums / sums[..., :1, :1]
    return ClusterMoments(counts.long(), moments[..., 0, 1:], moments[..., 1:, 1:])
