"""Every family of maps at one budget, fitted to queries and keys.

The families: isotropic maps (trigonometric, positive, FAVOR++), hybrids of the two (angular, Gaussian), maps
fitted to second moments (FAVOR#, `Exponential` with a fitted A, about the origin or about the means), and
clustered maps. Apart from them stand two that are no features of one vector alone: centres that follow the
keys at hand, and clusters that are met exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from hrf.advice.cost import Cost, active_width, largest_measured, largest_within
from hrf.advice.errors import Problem
from hrf.features.asymmetric import AsymmetricExponential
from hrf.features.base import FeatureMap
from hrf.features.clustered import ClusteredHybrid
from hrf.features.exponential import Exponential, Positive, Trigonometric
from hrf.features.hybrid import AngularHybrid, GaussianHybrid
from hrf.features.optimal import DenseExponential, OptimalPositive
from hrf.fitting import ResidualFit, fit_residuals

__all__ = ["Proposal", "Workshop", "proposals"]

_POINTS_PER_CLUSTER = 4
_MOST_CLUSTERS = 256  # more take minutes to fit
_MOST_PAIRED_CLUSTERS = 16  # of ``moments``: it holds a matrix for each pair of clusters
_EXACT_SHARE = 0.2
# No map has more active features than this many budgets, however cheap they are to make: attention has to touch
# every one of them.
_WIDEST = 16


class Proposal(NamedTuple):
    """A candidate to be: its family, and how to make it.

    Attributes:
        name: unique, such as ``clustered separable 64``.
        family: ``isotropic``, ``hybrid``, ``fitted`` or ``clustered``.
        make: fits and draws the map.
        note: what a user has to know.
        apart: whether it has more to it than features, and so is not ranked with the others.
    """

    name: str
    family: str
    make: Callable[[], FeatureMap]
    note: str = ""
    apart: bool = False


class Workshop(NamedTuple):
    """What maps are made from.

    Attributes:
        queries: to fit to, ``(N, d)``.
        keys: to fit to, ``(S, d)``.
        practice: the problem on the fitting data by which settings of a hybrid are chosen.
        budget: the width of positive features that cost as much as a map may.
        unit: in which cost is counted.
        cost: what a map costs, at most 1.
        seed: of ω and of k-means.
    """

    queries: Tensor
    keys: Tensor
    practice: Problem
    budget: int
    unit: str
    cost: Cost
    seed: int

    @property
    def dim(self) -> int:
        """Length d of the vectors."""
        return self.queries.shape[-1]

    def generator(self) -> Generator:
        """The source of ω; the same for every map, so that they are compared on equal terms."""
        return Generator().manual_seed(self.seed)

    def fits(self, feature_map: FeatureMap) -> bool:
        """Whether a map is within the budget."""
        wide = active_width(feature_map) > _WIDEST * self.budget
        return not wide and self.cost(feature_map) <= 1 + 1e-9

    def size(self, build: Callable[[int], FeatureMap]) -> int:
        """The largest number of projections within the budget."""
        widest = largest_within(build, active_width, _WIDEST * self.budget)
        if self.unit == "time":
            return min(widest, largest_measured(build, self.cost, 1, min(widest, self.budget // 2)))
        return min(widest, largest_within(build, self.cost, 1))

    def sized(self, build: Callable[..., FeatureMap]) -> FeatureMap:
        """The largest map within the budget of those that ``build(n_projections=, generator=)`` makes."""

        def of_size(n_projections: int) -> FeatureMap:
            return build(n_projections=n_projections, generator=self.generator())

        return of_size(self.size(of_size))


def proposals(shop: Workshop) -> Iterator[Proposal]:
    """All candidates, cheap ones first."""
    positive = "never negative"
    yield Proposal("trigonometric", "isotropic", partial(shop.sized, partial(Trigonometric, shop.dim)))
    plain = partial(shop.sized, partial(Positive, shop.dim))
    yield Proposal("positive", "isotropic", plain, f"FAVOR+; {positive}")
    yield Proposal("FAVOR++", "isotropic", partial(_fitted_positive, shop, OptimalPositive), positive)
    yield Proposal("FAVOR#", "fitted", partial(_fitted_positive, shop, DenseExponential), positive)
    yield Proposal("angular hybrid", "hybrid", partial(_best_hybrid, shop, AngularHybrid, [{}]))
    gaussian = partial(_best_hybrid, shop, GaussianHybrid, _gaussian_settings(shop))
    yield Proposal("Gaussian hybrid", "hybrid", gaussian)

    def exponential(**arguments: Any) -> Callable[[], FeatureMap]:
        return partial(shop.sized, partial(Exponential.fit, shop.queries, shop.keys, **arguments))

    about = "positive features about the means"
    yield Proposal("centred", "fitted", exponential(matrix=None, shift=True), about)
    for kind in ("real-diagonal", "real-full", "complex-full"):
        yield Proposal(kind, "fitted", exponential(matrix=kind, shift=False))
        # About the means E xyᵀ is 0, so nothing tells a complex matrix where to be imaginary.
        if kind.startswith("real"):
            yield Proposal(f"{kind}, centred", "fitted", exponential(matrix=kind, shift=True))
    yield from _clustered(shop)


def _fitted_positive(shop: Workshop, cls: type[OptimalPositive | DenseExponential]) -> FeatureMap:
    feature_map = shop.sized(partial(cls, shop.dim))
    assert isinstance(feature_map, cls)
    return feature_map.fit(shop.queries, shop.keys)


def _best_hybrid(
    shop: Workshop, cls: Callable[..., FeatureMap], settings: list[dict[str, Any]]
) -> FeatureMap:
    """The hybrid whose n, and other settings, do best on the fitting data in two draws."""
    made: list[tuple[float, int, FeatureMap]] = []
    for n in (1, 2, 4, 8, 16):
        for chosen in settings:
            try:
                feature_map = shop.sized(partial(cls, shop.dim, n_coefficient_projections=n, **chosen))
            except ValueError:  # no projection is left for the bases
                continue
            made.append((shop.practice.error(feature_map, 2, shop.generator()).value, len(made), feature_map))
    if not made:
        raise ValueError("even one projection costs more than the budget")
    return min(made)[-1]


def _gaussian_settings(shop: Workshop) -> list[dict[str, Any]]:
    """λ leaves 0 at once or slowly, on the sphere that the vectors are on."""
    square = (shop.queries.square().sum(-1).mean() + shop.keys.square().sum(-1).mean()) / 2
    radius = float(square.sqrt().clamp(min=1e-3))
    return [{"sigma": steepness / radius, "radius": radius} for steepness in (0.5, 1.0)]


def _clustered(shop: Workshop) -> Iterator[Proposal]:
    """For each base three numbers of clusters: the largest that budget and data allow, by factors of four."""

    @cache
    def clusters(n: int) -> ResidualFit:
        """The same for all bases."""
        return fit_residuals(shop.queries, shop.keys, (n, n), "real-full", seed=shop.seed)

    biased = "biased, with little variance"
    for base, note in (("shifted", ""), ("shrunk", biased)):
        for n in _numbers_of_clusters(shop, base):
            make = partial(_residual_map, shop, base, n, clusters)
            yield Proposal(f"clustered {base} {n}", "clustered", make, note)
    for n in _numbers_of_clusters(shop, "moments"):
        yield Proposal(f"clustered moments {n}", "clustered", partial(_paired_map, shop, n))
    n = 0
    for n in _numbers_of_clusters(shop, "separable"):
        make = partial(_residual_map, shop, "separable", n, clusters)
        yield Proposal(f"clustered separable {n}", "clustered", make, biased)
    if not n:
        return
    yield Proposal(
        f"clustered separable {n}, recentred",
        "clustered",
        partial(_residual_map, shop, "separable", n, clusters, recenter=True),
        "centres move to the keys at hand: use estimate, or at(keys)",
        apart=True,
    )
    yield Proposal(
        f"clustered separable {n}, {_EXACT_SHARE:.0%} exact",
        "clustered",
        partial(_residual_map, shop, "separable", n, clusters, exact_share=_EXACT_SHARE),
        f"up to {_EXACT_SHARE:.0%} of the pairs are computed exactly, in quadratic time: use estimate",
        apart=True,
    )


def _residual_map(
    shop: Workshop, base: str, n: int, clusters: Callable[[int], ResidualFit], **arguments: Any
) -> FeatureMap:
    if base != "separable":
        m = shop.size(partial(_blank, shop, base, n))
        arguments |= {"n_projections": m, "features": "dense", "generator": shop.generator()}
    return ClusteredHybrid.fit(
        shop.queries, shop.keys, base=base, clusters=clusters(n), seed=shop.seed, **arguments
    )


def _paired_map(shop: Workshop, n: int) -> FeatureMap:
    return ClusteredHybrid.fit(
        shop.queries,
        shop.keys,
        n_clusters=(n, n),
        base="moments",
        n_projections=shop.size(partial(_blank, shop, "moments", n)),
        seed=shop.seed,
        generator=shop.generator(),
    )


def _numbers_of_clusters(shop: Workshop, base: str) -> list[int]:
    """Of the largest power of two for ``separable``, its fourth and so on, the first three that will do.

    All bases so have the same clusters. Each of these has enough points, and each base two projections.
    """
    rows = min(len(shop.queries), len(shop.keys))
    most = _MOST_PAIRED_CLUSTERS if base == "moments" else _MOST_CLUSTERS
    n = 1
    while 2 * n <= min(rows // _POINTS_PER_CLUSTER, _MOST_CLUSTERS) and shop.fits(
        _blank(shop, "separable", 2 * n, 2)
    ):
        n *= 2
    series = [n >> shift for shift in range(0, n.bit_length() - 1, 2)]  # down to 2 or 4
    return [n for n in series if n <= most and shop.fits(_blank(shop, base, n, 2))][:3][::-1]


def _blank(shop: Workshop, base: str, n: int, n_projections: int) -> ClusteredHybrid:
    """A map of the right sizes, fitted to nothing: its cost is known before any data are clustered."""
    d, centers = shop.dim, torch.zeros(n, shop.dim)
    common: dict[str, Any] = {
        "n_projections": n_projections,
        "projection": "iid",
        "generator": shop.generator(),
    }
    inner: FeatureMap | None = None
    if base == "moments":
        inner = Exponential(d, matrix=torch.full((n * n, d), 2.0), heads=n * n, **common)
    elif base != "separable":
        inner = AsymmetricExponential(d, matrix=2 * torch.eye(d), **common)
    shrinkage = torch.ones(()) if base == "shrunk" else None
    return ClusteredHybrid(centers, centers, base=base, feature_map=inner, shrinkage=shrinkage)
