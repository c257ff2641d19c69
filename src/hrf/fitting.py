"""Fitting to data: matrices, clusters, and both together.

The matrix A of an exponential map in closed form, from second moments or from centres (paper, Sec. 2.4).

The variance of the map at (x, y) is governed by z = Ax + A⁻ᵀy. The paper calls |z|² at a pair of centres its
loss; over data it is

    l(A) = E|Ax + A⁻ᵀy|² = tr(A S_x Aᴴ) + tr(B S_y Bᴴ) + 2 Re tr(A S_xy Bᴴ),   B = A⁻ᵀ,

with S_x = E xxᵀ, S_y = E yyᵀ and S_xy = E xyᵀ. `fit_matrix` minimises it (derived here):

    ====================  ========================================  ==========================================
    kind                  A                                         l(A)
    ====================  ========================================  ==========================================
    ``real-diagonal``     aₖ = (E yₖ² / E xₖ²)^¼                     2 Σ √(E xₖ² E yₖ²) + 2 tr S_xy
    ``complex-diagonal``  the same, times i where E xₖyₖ > 0         2 Σ √(E xₖ² E yₖ²) − 2 Σ |E xₖyₖ|
    ``real-full``         M^½                                       2 ‖S_x^½ S_y^½‖_* + 2 tr S_xy
    ``complex-full``      Δ Qᵀ M^½                                  2 ‖S_x^½ S_y^½‖_* − 2 Σ |cₖ|
    ====================  ========================================  ==========================================

M = S_x^{−½} (S_x^½ S_y S_x^½)^½ S_x^{−½} is the geometric mean of S_x⁻¹ and S_y, the positive solution of
M S_x M = S_y, and ‖·‖_* is the sum of the singular values. Every real A with AᵀA = M does as well as M^½: the
term with S_xy is always 2 tr S_xy. A complex A = W M^½ with a unitary W turns that term into
2 tr(Re(WᵀW) C), where C = sym(M^½ S_xy M^{−½}) = Q diag(c) Qᵀ. It is least at WᵀW = −sign(C): Δₖ = i where
cₖ > 0, and 1 elsewhere. About the means S_xy = 0, nothing is gained by an imaginary unit, and both complex
kinds are as good as the real kinds and have no imaginary part.

The first three rules are minimal among all matrices of their kind. ``complex-full`` is minimal among matrices with
AᴴA = M, and never loses to ``real-full``; freeing AᴴA as well would gain where M and S_xy do not commute, but
no closed form is known.

>>> import torch
>>> x, y = torch.tensor([[2.0, 1.0]]), torch.tensor([[0.5, -1.0]])
>>> matrix_from_centers(x, y, "complex-diagonal")
tensor([[[0.+0.5000j, 1.+0.0000j]]], dtype=torch.complex128)

Clusters of points: k-means, the nearest centre, and moments within clusters.

Points are ``(..., N, d)`` and all functions work head by head over the leading axes.

Pairs of a query cluster and a key cluster: their moments and their weights.

Clusters and the matrix of their residuals, fitted alternately.

With residuals x' = x − rᵢ and y' = y − rⱼ, the variance of a map of residuals is governed by Ax' + A⁻ᵀy'. A and
the clusters control the part E‖Ax'‖² + E‖A⁻ᵀy'‖² of its mean square: k-means of Ax and of A⁻ᵀy lowers it for a
given A, `fit_matrix` for given residuals. So clusters become narrow in the directions that count.
Both steps weight each key by the attention that it receives.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Literal, NamedTuple, cast, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from hrf import tuning

__all__ = [
    "KINDS",
    "Clusters",
    "DiagonalKind",
    "MatrixKind",
    "ResidualFit",
    "SecondMoments",
    "assign",
    "cluster_sizes",
    "fit_matrix",
    "fit_residuals",
    "heavy_keys",
    "kmeans",
    "largest_pairs",
    "matrix_from_centers",
    "moments_by_cluster",
    "pair_moments",
    "samples",
]


DiagonalKind = Literal["real-diagonal", "complex-diagonal"]
MatrixKind = Literal[DiagonalKind, "real-full", "complex-full"]
KINDS: tuple[MatrixKind, ...] = get_args(MatrixKind)

#: Noise that is added to the data, as a share of their mean square. It raises the least loss by at most
#: (4√ridge + 2 ridge) √(tr S_x tr S_y), and keeps A well-conditioned where the data do not fill the space.
RIDGE = 1e-3


class SecondMoments(NamedTuple):
    """Second moments of queries x and keys y, each ``(..., d, d)``, in float64.

    Attributes:
        queries: S_x = E xxᵀ.
        keys: S_y = E yyᵀ.
        cross: S_xy = E xyᵀ.
    """

    queries: Tensor
    keys: Tensor
    cross: Tensor

    @classmethod
    def of(cls, queries: Tensor, keys: Tensor, *, paired: bool = False) -> SecondMoments:
        """Compute moments of data: ``(..., N, d), (..., S, d) -> (..., d, d)``.

        Args:
            queries: vectors x.
            keys: vectors y.
            paired: whether the n-th query meets the n-th key only. In attention every query meets every key,
                and S_xy is the product of the means.
        """
        x, y = queries.to(torch.float64), keys.to(torch.float64)
        if x.shape[-1] != y.shape[-1]:
            raise ValueError(
                f"queries have last dimension {x.shape[-1]}, keys {y.shape[-1]}; expected the same"
            )
        for name, points in (("queries", x), ("keys", y)):
            if points.shape[-2] == 0 or not points.isfinite().all():
                raise ValueError(
                    f"{name} of shape {tuple(points.shape)} are empty, or not all of them are finite"
                )
        if not paired:
            cross = x.mean(-2).unsqueeze(-1) * y.mean(-2).unsqueeze(-2)
        elif x.shape[-2] == y.shape[-2]:
            cross = x.mT @ y / x.shape[-2]
        else:
            raise ValueError(f"{x.shape[-2]} queries do not pair with {y.shape[-2]} keys")
        return cls(x.mT @ x / x.shape[-2], y.mT @ y / y.shape[-2], cross)

    def with_ridge(self, ridge: float = RIDGE) -> SecondMoments:
        """Return the moments after isotropic noise that has a share ``ridge`` of the data's mean square.

        S_x and S_y become S + ridge · (tr S/d) · I; where tr S/d is below 1e-30, as for points that are all
        zero, it counts as 1. A positive ridge makes them invertible for any data, and keeps the
        condition number of a fitted A below √(1 + d/ridge).
        """
        s_x, s_y, s_xy = (moment.to(torch.float64) for moment in self)
        return SecondMoments(_add_ridge(s_x, ridge), _add_ridge(s_y, ridge), s_xy)


def _add_ridge(second: Tensor, ridge: float) -> Tensor:
    scale = _diagonal(second).mean(-1)[..., None, None]
    eye = torch.eye(second.shape[-1], dtype=second.dtype, device=second.device)
    return second + ridge * torch.where(scale > 1e-30, scale, 1.0) * eye


def fit_matrix(moments: SecondMoments, kind: MatrixKind, *, ridge: float = RIDGE) -> Tensor:
    """Return the A of a kind with the least l(A): ``(..., d)`` for a diagonal, ``(..., d, d)`` for a full matrix.

    Args:
        moments: moments of the data; their leading axes are broadcast.
        kind: one of `KINDS`; complex kinds give complex128, real kinds float64.
        ridge: noise for `SecondMoments.with_ridge`; 0 only for invertible moments.

    >>> wide, tall = torch.diag(torch.tensor([16.0, 1.0])), torch.diag(torch.tensor([1.0, 16.0]))
    >>> fit_matrix(SecondMoments(wide, tall, torch.zeros(2, 2)), "real-diagonal").round(decimals=2)
    tensor([0.5000, 2.0000], dtype=torch.float64)
    """
    _check_kind(kind, KINDS)
    s_x, s_y, s_xy = moments.with_ridge(ridge)
    diagonal, real = kind.endswith("diagonal"), kind.startswith("real")
    matrix = (_diagonal(s_y) / _diagonal(s_x)).pow(0.25) if diagonal else _root_of_mean(s_x, s_y)
    if real:
        return matrix
    if diagonal:
        return matrix * _units(_diagonal(s_xy), (_diagonal(s_x) * _diagonal(s_y)).sqrt())
    correlation, q = torch.linalg.eigh(_similar(matrix, s_xy))
    size = _diagonal(matrix @ s_x @ matrix)  # of M^½x, and of M^{−½}y
    return _units(correlation, size).unsqueeze(-1) * (q.mT @ matrix)


def optimal_loss(moments: SecondMoments, kind: MatrixKind, *, ridge: float = RIDGE) -> Tensor:
    """Return the l(A) that the closed forms promise for `fit_matrix`, at the moments with the ridge: ``(...)``.

    Args:
        moments: moments of the data.
        kind: one of `KINDS`.
        ridge: as for `fit_matrix`.
    """
    _check_kind(kind, KINDS)
    s_x, s_y, s_xy = moments.with_ridge(ridge)
    if kind.endswith("diagonal"):
        size, correlation = (_diagonal(s_x) * _diagonal(s_y)).sqrt(), _diagonal(s_xy)
    else:
        size = torch.linalg.svdvals(_root(s_x) @ _root(s_y))
        correlation = torch.linalg.eigvalsh(_similar(_root_of_mean(s_x, s_y), s_xy))  # they sum to tr S_xy
    signed = correlation if kind.startswith("real") else -correlation.abs()
    return 2 * (size + signed).sum(-1)


def matrix_loss(moments: SecondMoments, matrix: Tensor) -> Tensor:
    """Return l(A) = E|Ax + A⁻ᵀy|², the mean of the paper's loss (Sec. 2.4), for any invertible A: ``(...)``.

    Args:
        moments: moments of the data, ``(..., d, d)`` each.
        matrix: A as ``(..., d, d)``, or its diagonal with one axis fewer than the moments; real or complex.
    """
    query = matrix.to(torch.complex128)
    if matrix.ndim < moments.queries.ndim:
        query = torch.diag_embed(query)
    key = torch.linalg.inv(query).mT
    s_x, s_y, s_xy = (moment.to(query.dtype) for moment in moments)
    products = (query @ s_x) * query.conj() + (key @ s_y) * key.conj() + 2 * (query @ s_xy) * key.conj()
    return products.sum((-2, -1)).real


def matrix_from_centers(
    query_centers: Tensor, key_centers: Tensor, kind: DiagonalKind, *, limit: float = 3.0
) -> Tensor:
    """Return the paper's diagonal A for every pair of centres: ``(..., n, d), (..., k, d) -> (..., n, k, d)``.

    With r the centre of the queries and s the centre of the keys, aₖ = √|sₖ/rₖ|, times i in the complex kind where
    rₖsₖ > 0. The complex map is then exact at the centres, Ar + A⁻¹s = 0.

    Coordinates near 0 would make A explode or vanish, so |aₖ| is kept within [1/limit, limit]. The ends are
    also the large and the small number that the paper asks for where rₖ or sₖ is 0; where both are 0,
    aₖ = 1. (Its real rule as printed gives aₖ = 0 where sₖ = 0, and A would be singular.) Points spread
    around their centres: where their moments are known, `fit_matrix` has the lower error.

    Args:
        query_centers: centres r.
        key_centers: centres s.
        kind: ``real-diagonal`` or ``complex-diagonal``.
        limit: largest |aₖ|, at least 1. It matches coordinates up to limit² apart; a larger limit only pays for
            clusters whose width is less than a tenth of their distance from 0.
    """
    _check_kind(kind, get_args(DiagonalKind))
    if not limit >= 1:
        raise ValueError(f"limit is {limit}; expected at least 1")
    r, s = query_centers.to(torch.float64).unsqueeze(-2), key_centers.to(torch.float64).unsqueeze(-3)
    ratio = torch.where((r == 0) & (s == 0), 1.0, (s / r).abs())
    sizes = ratio.sqrt().clamp(1 / limit, limit)
    return sizes if kind.startswith("real") else sizes * _units(r.sign() * s.sign(), torch.ones_like(sizes))


def _check_kind(kind: str, allowed: tuple[str, ...]) -> None:
    if kind not in allowed:
        raise ValueError(f"kind is {kind!r}; expected one of {', '.join(map(repr, allowed))}")


def _diagonal(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1)


def _units(correlation: Tensor, size: Tensor) -> Tensor:
    """Return units with u² = −sign: i for a positive correlation, 1 for a negative one or rounding of ``size``."""
    positive = correlation > 1e-12 * size.amax(-1, keepdim=True)
    return torch.complex((~positive).to(correlation.dtype), positive.to(correlation.dtype))


def _root(second: Tensor) -> Tensor:
    """Return the positive root S^½."""
    values, vectors = torch.linalg.eigh(second)
    return (vectors * values.clamp_min(0).sqrt().unsqueeze(-2)) @ vectors.mT


def _root_of_mean(s_x: Tensor, s_y: Tensor) -> Tensor:
    """Return M^½ without squaring a condition number: M = P⁻¹UσUᵀP⁻¹ with P = S_x^½ and P S_y^½ = UσVᵀ."""
    p = _root(s_x)
    u, sigma, _ = torch.linalg.svd(p @ _root(s_y))
    half = torch.linalg.solve(p, u * sigma.sqrt().unsqueeze(-2))  # M = half halfᵀ
    u, sigma, _ = torch.linalg.svd(half)
    return (u * sigma.unsqueeze(-2)) @ u.mT


def _similar(root: Tensor, s_xy: Tensor) -> Tensor:
    """Return C = sym(M^½ S_xy M^{−½})."""
    product = torch.linalg.solve(root, root @ s_xy, left=False)
    return (product + product.mT) / 2


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


def samples(vectors: Tensor, heads: int | None, name: str) -> Tensor:
    """Flatten vectors ``(..., L, d)`` to ``(N, d)``, or ``(..., H, L, d)`` to ``(H, N, d)``, in float64."""
    expected = "(..., L, d)" if heads is None else f"(..., {heads}, L, d)"
    if not isinstance(vectors, Tensor) or not vectors.is_floating_point():
        raise TypeError(f"{name} are not a real floating-point tensor; expected one of shape {expected}")
    if vectors.ndim < (2 if heads is None else 3) or (heads is not None and vectors.shape[-3] != heads):
        raise ValueError(f"{name} have shape {tuple(vectors.shape)}; expected {expected}")
    if not vectors.numel() or not vectors.isfinite().all():
        raise ValueError(f"{name} of shape {tuple(vectors.shape)} are empty or not all finite")
    vectors = vectors.detach().double()
    if heads is None:
        return vectors.reshape(-1, vectors.shape[-1])
    return vectors.movedim(-3, 0).reshape(heads, -1, vectors.shape[-1])


def pair_moments(queries: ClusterMoments, keys: ClusterMoments) -> SecondMoments:
    """Compute second moments of every pair of clusters, all queries with all keys: ``(..., n_q, n_k, d, d)``."""
    cross = queries.means[..., :, None, :, None] * keys.means[..., None, :, None, :]
    return SecondMoments(queries.seconds.unsqueeze(-3), keys.seconds.unsqueeze(-4), cross)


def heavy_keys(centers: Sequence[Tensor], n_keys: Tensor, share: float) -> Tensor:
    """Mark the heaviest key clusters that together hold at most ``share`` of the keys, per query cluster.

    A key cluster weighs rᵢᵀrⱼ + log(number of keys), the logarithm of its part of the softmax denominator.
    Clusters are taken from the heaviest to the lightest; a cluster that no longer fits is skipped.

    Args:
        centers: centres of the queries ``(..., n_q, d)`` and of the keys ``(..., n_k, d)``.
        n_keys: number of keys per cluster, ``(..., n_k)``.
        share: share of all keys; it is refused if no cluster is that small.

    Returns:
        Booleans ``(..., n_q, n_k)``.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"exact_share is {share}; expected between 0 and 1")
    counts = n_keys.double()
    weight = centers[0] @ centers[1].mT + counts.log().unsqueeze(-2)
    order = weight.argsort(-1, descending=True)
    sizes = counts.unsqueeze(-2).expand_as(weight).gather(-1, order)
    left = share * counts.sum(-1)[..., None].expand(sizes.shape[:-1]) * (1 + 1e-9)
    taken = []
    for size in sizes.unbind(-1):
        taken.append((size > 0) & (size <= left))
        left = left - size * taken[-1]
    exact = torch.stack(taken, -1)
    if not exact.any():
        least = float((counts / counts.sum(-1, keepdim=True))[counts > 0].min())
        raise ValueError(
            f"exact_share is {share}, but no cluster holds less than {least:.3g} of the keys; "
            "expected at least that, or more clusters"
        )
    return torch.zeros_like(exact).scatter(-1, order, exact)


def largest_pairs(n_queries: Tensor, n_keys: Tensor, *, share: float) -> Tensor:
    """Mark the largest pairs of clusters that together hold at least ``share`` of all pairs of vectors.

    Returns:
        Booleans ``(..., n_q, n_k)``.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"default_share is {1 - share:g}; expected between 0 and 1")
    sizes = (n_queries.unsqueeze(-1) * n_keys.unsqueeze(-2)).double()
    flat = sizes.flatten(-2)
    order = flat.argsort(-1, descending=True)
    before = flat.gather(-1, order).cumsum(-1) - flat.gather(-1, order)
    taken = before < share * flat.sum(-1, keepdim=True)
    return torch.zeros_like(taken).scatter(-1, order, taken).view(sizes.shape)


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
