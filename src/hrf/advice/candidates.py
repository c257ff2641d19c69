"""Candidates of `advise`: every family of maps at one budget, fitted to queries and keys.

The families: isotropic maps (trigonometric, positive, FAVOR++), hybrids of the first two (angular, Gaussian),
maps fitted to second moments (FAVOR#, `Exponential` with a fitted A, about the origin or about the means), and
clustered maps. Two more are measured but not ranked, since their estimates are no products of features: a map
whose centres follow the keys at hand, and a map that computes pairs of some clusters exactly.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

from hrf.advice.builder import MOST_COLUMNS, Builder, check_matrix
from hrf.features.base import FeatureMap
from hrf.features.clustered import ClusterBase, ClusteredHybrid
from hrf.features.exponential import Exponential, Positive, Trigonometric
from hrf.features.hybrid import AngularHybrid, GaussianHybrid
from hrf.features.optimal import DenseExponential, OptimalPositive
from hrf.fitting import ResidualFit, fit_residuals

__all__ = ["Proposal", "proposals"]

_POINTS_PER_CLUSTER = 4
_MOST_CLUSTERS = 256  # more take minutes to fit
_MOST_PAIRED_CLUSTERS = 16  # for ``moments``, which holds a matrix per pair of clusters
_EXACT_SHARE = 0.2


class Proposal(NamedTuple):
    """A candidate before it is fitted.

    Attributes:
        name: unique, such as ``clustered separable 64``.
        family: ``isotropic``, ``hybrid``, ``fitted`` or ``clustered``.
        make: fits and draws the map.
        note: a remark for users of the map.
        apart: whether estimates are more than products of features, so that the map is not ranked.
    """

    name: str
    family: str
    make: Callable[[], FeatureMap]
    note: str = ""
    apart: bool = False


def proposals(builder: Builder) -> Iterator[Proposal]:
    """Yield all candidates, cheap ones first."""
    positive = "never negative"
    yield Proposal("trigonometric", "isotropic", partial(builder.sized, partial(Trigonometric, builder.dim)))
    plain = partial(builder.sized, partial(Positive, builder.dim))
    yield Proposal("positive", "isotropic", plain, f"FAVOR+; {positive}")
    yield Proposal("angular hybrid", "hybrid", partial(_best_hybrid, builder, AngularHybrid, [{}]))
    gaussian = partial(_best_hybrid, builder, GaussianHybrid, _gaussian_settings(builder))
    yield Proposal("Gaussian hybrid", "hybrid", gaussian)

    def exponential(**arguments: Any) -> Callable[[], FeatureMap]:
        return partial(builder.sized, partial(Exponential.fit, builder.queries, builder.keys, **arguments))

    about = "positive features about the means"
    yield Proposal("centred", "fitted", exponential(matrix=None, shift=True), about)
    if builder.dim > MOST_COLUMNS:
        yield Proposal("maps with a matrix", "fitted", partial(_refused, builder))
        return
    yield Proposal("FAVOR++", "isotropic", partial(_fitted_positive, builder, OptimalPositive), positive)
    yield Proposal("FAVOR#", "fitted", partial(_fitted_positive, builder, DenseExponential), positive)
    for kind in ("real-diagonal", "real-full", "complex-full"):
        yield Proposal(kind, "fitted", exponential(matrix=kind, shift=False))
        # About the means E xyᵀ is 0, so nothing tells a complex matrix where to be imaginary.
        if kind.startswith("real"):
            yield Proposal(f"{kind}, centred", "fitted", exponential(matrix=kind, shift=True))
    yield from _clustered(builder)


def _refused(builder: Builder) -> FeatureMap:
    check_matrix(builder.dim)
    raise AssertionError("there is no map to build")


def _fitted_positive(builder: Builder, cls: type[OptimalPositive | DenseExponential]) -> FeatureMap:
    feature_map = builder.sized(partial(cls, builder.dim))
    assert isinstance(feature_map, cls)
    return feature_map.fit(builder.queries, builder.keys)


def _best_hybrid(
    builder: Builder, cls: Callable[..., FeatureMap], settings: list[dict[str, Any]]
) -> FeatureMap:
    """Build the hybrid whose n and other settings have the least error on the fitting data in two draws."""
    made: list[tuple[float, float, int, FeatureMap]] = []
    for n in (1, 2, 4, 8, 16):
        for chosen in settings:
            try:
                feature_map = builder.sized(partial(cls, builder.dim, n_coefficient_projections=n, **chosen))
            except ValueError:  # no projection is left for the bases
                continue
            error = builder.practice.error(feature_map, 2, builder.generator()).value
            made.append((builder.slowness(feature_map), error, len(made), feature_map))
    if not made:
        raise ValueError("even one projection costs more than the budget")
    return min(made)[-1]


def _gaussian_settings(builder: Builder) -> list[dict[str, Any]]:
    """Return two steepnesses of λ for a sphere with the mean norm of the vectors."""
    square = (builder.queries.square().sum(-1).mean() + builder.keys.square().sum(-1).mean()) / 2
    radius = float(square.sqrt().clamp(min=1e-3))
    return [{"sigma": steepness / radius, "radius": radius} for steepness in (0.5, 1.0)]


def _clustered(builder: Builder) -> Iterator[Proposal]:
    """Yield up to three numbers of clusters per base: the largest that budget and data allow, by factors of four."""

    @cache
    def clusters(n: int) -> ResidualFit:
        """Fit clusters once for all bases."""
        return fit_residuals(builder.queries, builder.keys, (n, n), "real-full", seed=builder.seed)

    biased = "biased, with little variance"
    notes: dict[ClusterBase, str] = {"shifted": "", "shrunk": biased}
    for base, note in notes.items():
        for n in _numbers_of_clusters(builder, base):
            make = partial(_residual_map, builder, base, n, clusters)
            yield Proposal(f"clustered {base} {n}", "clustered", make, note)
    for n in _numbers_of_clusters(builder, "moments"):
        yield Proposal(f"clustered moments {n}", "clustered", partial(_paired_map, builder, n))
    yield from _too_large(builder)
    n = 0
    for n in _numbers_of_clusters(builder, "separable"):
        make = partial(_residual_map, builder, "separable", n, clusters)
        yield Proposal(f"clustered separable {n}", "clustered", make, biased)
    if not n:
        return
    yield Proposal(
        f"clustered separable {n}, recentred",
        "clustered",
        partial(_residual_map, builder, "separable", n, clusters, recenter=True),
        "centres move to the keys at hand: for hrf.attention and estimate, or at(keys) for features",
        apart=True,
    )
    yield Proposal(
        f"clustered separable {n}, {_EXACT_SHARE:.0%} exact",
        "clustered",
        partial(_residual_map, builder, "separable", n, clusters, exact_share=_EXACT_SHARE),
        f"up to {_EXACT_SHARE:.0%} of pairs are exact, in quadratic time: for hrf.attention and estimate",
        apart=True,
    )


def _too_large(builder: Builder) -> Iterator[Proposal]:
    """Yield maps that only the size of their state leaves out, unfitted, so that the advice can say so."""
    boundless = builder._replace(most_features=math.inf)
    for base in ("shifted", "shrunk", "moments", "separable"):
        for n in _numbers_of_clusters(boundless, base):
            blank = builder.blank(base, n, 2)
            if blank.feature_dim > builder.most_features:
                yield Proposal(f"clustered {base} {n}", "clustered", partial(copy.deepcopy, blank))


def _residual_map(
    builder: Builder, base: ClusterBase, n: int, clusters: Callable[[int], ResidualFit], **arguments: Any
) -> FeatureMap:
    if base != "separable":
        m = builder.size(partial(builder.blank, base, n))
        arguments |= {"n_projections": m, "features": "dense"}
    return ClusteredHybrid.fit(
        builder.queries, builder.keys, base=base, clusters=clusters(n), seed=builder.seed, **arguments
    )


def _paired_map(builder: Builder, n: int) -> FeatureMap:
    return ClusteredHybrid.fit(
        builder.queries,
        builder.keys,
        n_clusters=(n, n),
        base="moments",
        n_projections=builder.size(partial(builder.blank, "moments", n)),
        seed=builder.seed,
    )


def _numbers_of_clusters(builder: Builder, base: ClusterBase) -> list[int]:
    """Return up to three numbers of clusters, ascending: powers of two, each four times the one before.

    All bases draw from the series that starts at the largest number possible for ``separable``, so that they share
    clusters. Every cluster has enough points, and every base at least two projections.
    """
    most = _MOST_PAIRED_CLUSTERS if base == "moments" else _MOST_CLUSTERS
    n = _most_clusters(builder)
    series = [n >> shift for shift in range(0, n.bit_length() - 1, 2)]  # down to 2 or 4
    return [n for n in series if n <= most and builder.fits(builder.blank(base, n, 2))][:3][::-1]


def _most_clusters(builder: Builder) -> int:
    """Return the largest power of two of clusters that budget, state and data allow for ``separable``."""
    rows = min(len(builder.queries), len(builder.keys))
    n = 1
    while 2 * n <= min(rows // _POINTS_PER_CLUSTER, _MOST_CLUSTERS) and builder.fits(
        builder.blank("separable", 2 * n, 2)
    ):
        n *= 2
    return n
