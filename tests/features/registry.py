"""One small instance of every map, for the suites that all maps pass through.

Each entry builds the map with or without heads. Norms of `INPUTS` are small: Monte Carlo of
positive features is badly biased where ‖x + y‖ is large.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

import hrf
from examples.centred import CentredPositive
from hrf import coefficients

DIM = 4
M = 6  # base projections: a full orthogonal block and a half
N = 5  # coefficient projections


def _fixed(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, generator=Generator().manual_seed(seed), dtype=torch.float64)


# Vectors of different norms, 0 to 0.9, queries and keys.
X = _fixed(3, DIM, seed=1, scale=0.3) * torch.tensor([[0.0], [1.0], [1.4]], dtype=torch.float64)
Y = _fixed(4, DIM, seed=2, scale=0.35)

REAL_DIAGONAL = torch.tensor([0.7, 1.0, 1.5, -1.2], dtype=torch.float64)
REAL_FULL = torch.eye(DIM, dtype=torch.float64) + _fixed(DIM, DIM, seed=3, scale=0.25)
COMPLEX_DIAGONAL = torch.tensor([0.8, 1j, 1.1 - 0.3j, 0.9j], dtype=torch.complex128)
COMPLEX_FULL = torch.complex(REAL_FULL, _fixed(DIM, DIM, seed=4, scale=0.3))
IMAGINARY_FULL = 1j * REAL_FULL
CENTERS = _fixed(2, DIM, seed=5, scale=0.3)


class Builder:
    """Constructor arguments that all maps share, and the axis of heads of tensors."""

    def __init__(self, heads: int | None, kind: str, seed: int) -> None:
        self.heads, self.kind, self.generator = heads, kind, Generator().manual_seed(seed)

    def common(self, n_projections: int = M) -> dict:
        return {
            "n_projections": n_projections,
            "projection": self.kind,
            "heads": self.heads,
            "generator": self.generator,
        }

    def tensor(self, value: Tensor) -> Tensor:
        return value if self.heads is None else value.expand(self.heads, *value.shape).clone()

    def exponential(self, matrix: Tensor | None = None, **arguments) -> hrf.Exponential:
        matrix = None if matrix is None else self.tensor(matrix)
        return hrf.Exponential(DIM, matrix=matrix, **arguments, **self.common())

    def shifted(self, matrix: Tensor | None = None) -> hrf.Exponential:
        a, b = self.tensor(_fixed(DIM, seed=6, scale=0.3)), self.tensor(_fixed(DIM, seed=7, scale=0.3))
        return self.exponential(matrix, query_shift=a, key_shift=b)

    def bipolar(self, coefficient: coefficients.Coefficient) -> hrf.Hybrid:
        """Positive and trigonometric features, each on its own ω, mixed by a coefficient."""
        bases = [hrf.Positive(DIM, **self.common()), hrf.Trigonometric(DIM, **self.common())]
        return hrf.Hybrid(bases, [coefficient])

    def angular(self) -> hrf.AngularHybrid:
        return hrf.AngularHybrid(DIM, n_coefficient_projections=N, **self.common())

    def three_bases(self) -> hrf.Hybrid:
        """p = 2 with a negative constant for the last base: 1 − ½ − 0.8 < 0."""
        bases = [
            hrf.Positive(DIM, **self.common()),
            self.exponential(REAL_FULL),
            hrf.Trigonometric(DIM, **self.common()),
        ]
        positive = hrf.GaussianKernel(hrf.Positive(DIM, **self.common(N)))
        lam = [
            coefficients.Angular(DIM, **self.common(N)),
            coefficients.FromFeatureMap(positive, constant=0.8, weight=-0.6),
        ]
        return hrf.Hybrid(bases, lam)

    def shared_omega(self) -> hrf.Hybrid:
        """Two matrices, one of them complex, on the same ω, one with ±ω and one without."""
        omega = hrf.Projections(self.kind, M, DIM, heads=self.heads, generator=self.generator)
        common = self.common() | {"projection": omega}
        bases = [
            hrf.Exponential(DIM, matrix=self.tensor(REAL_FULL), antithetic=False, **common),
            hrf.Exponential(DIM, matrix=self.tensor(COMPLEX_DIAGONAL), **common),
        ]
        return hrf.Hybrid(bases, [coefficients.Angular(DIM, **self.common(N))])

    def clustered(self, base: str, *, matrix: Tensor | None = None, **arguments) -> hrf.ClusteredHybrid:
        """Two clusters per side; for the bases of the paper one matrix per pair of clusters."""
        feature_map = None
        if base in ("paper", "moments"):
            scales = torch.tensor([0.8, 1.0, 1.1, 1.3], dtype=torch.float64)[:, None]
            four = self.tensor(scales * matrix).reshape(-1, DIM)
            common = self.common() | {"heads": len(four)}
            feature_map = hrf.Exponential(DIM, matrix=four, **common)
        elif base != "separable":
            feature_map = self.exponential(REAL_DIAGONAL if matrix is None else matrix)
        for name in {"shrinkage", "exact", "served"} & set(arguments):
            arguments[name] = self.tensor(arguments[name])
        if "served" in arguments:
            arguments["default"] = hrf.Positive(DIM, **self.common())
        centers = self.tensor(CENTERS), self.tensor(-CENTERS.flip(-1))
        return hrf.ClusteredHybrid(*centers, base=base, feature_map=feature_map, **arguments)


Factory = Callable[[Builder], hrf.FeatureMap]

MAPS: dict[str, Factory] = {
    "trigonometric": lambda b: hrf.Trigonometric(DIM, **b.common()),
    "positive": lambda b: hrf.Positive(DIM, **b.common()),
    "exponential single": lambda b: b.exponential(antithetic=False),
    "exponential real diagonal": lambda b: b.exponential(REAL_DIAGONAL),
    "exponential real full": lambda b: b.exponential(REAL_FULL),
    "exponential imaginary full": lambda b: b.exponential(IMAGINARY_FULL),
    "exponential imaginary unit": lambda b: b.exponential(torch.full((DIM,), 1j, dtype=torch.complex128)),
    "exponential complex diagonal": lambda b: b.exponential(COMPLEX_DIAGONAL),
    "exponential complex full": lambda b: b.exponential(COMPLEX_FULL),
    "exponential complex full single": lambda b: b.exponential(COMPLEX_FULL, antithetic=False),
    "exponential shifted": lambda b: b.shifted(),
    "exponential shifted complex": lambda b: b.shifted(COMPLEX_FULL),
    "favor++": lambda b: hrf.OptimalPositive(DIM, **b.common()).fit(b.tensor(2 * X), b.tensor(2 * Y)),
    "favor#": lambda b: hrf.DenseExponential(DIM, **b.common()).fit(b.tensor(2 * X), b.tensor(2 * Y)),
    "favor# asymmetric": lambda b: hrf.AsymmetricExponential(
        DIM, matrix=b.tensor(REAL_FULL), **b.common()
    ).fit(b.tensor(2 * X), b.tensor(2 * Y)),
    "angular hybrid": lambda b: b.angular(),
    "angular hybrid independent": lambda b: hrf.AngularHybrid(
        DIM, n_coefficient_projections=N, share_projections=False, **b.common()
    ),
    "gaussian hybrid": lambda b: hrf.GaussianHybrid(
        DIM, n_coefficient_projections=N, sigma=1.2, radius=0.8, **b.common()
    ),
    "gaussian coefficient": lambda b: b.bipolar(
        coefficients.Gaussian(hrf.Positive(DIM, **b.common(N)), matrix=b.tensor(REAL_FULL), scale=1.5)
    ),
    "indicator": lambda b: b.bipolar(
        coefficients.Indicator(b.tensor(CENTERS), b.tensor(-CENTERS), pair=(0, 1))
    ),
    "nested": lambda b: b.bipolar(coefficients.Gaussian.bipolar(b.angular(), sigma=1.0, radius=0.8)),
    "three bases": lambda b: b.three_bases(),
    "shared omega": lambda b: b.shared_omega(),
    "clustered paper": lambda b: b.clustered("paper", matrix=REAL_DIAGONAL),
    "clustered moments": lambda b: b.clustered("moments", matrix=COMPLEX_DIAGONAL),
    "clustered shifted": lambda b: b.clustered("shifted", matrix=COMPLEX_FULL),
    "clustered separable": lambda b: b.clustered("separable"),
    "clustered shrunk": lambda b: b.clustered("shrunk", shrinkage=_SHRINKAGE),
    "clustered with metric": lambda b: b.clustered(
        "shifted", metric=b.tensor(torch.diag(REAL_DIAGONAL.square()))
    ),
    "clustered with default": lambda b: b.clustered("shifted", served=_DIAGONAL),
    "gaussian kernel of positive": lambda b: hrf.GaussianKernel(hrf.Positive(DIM, **b.common())),
    "gaussian kernel of angular": lambda b: hrf.GaussianKernel(b.angular()),
    "centred positive": lambda b: CentredPositive(DIM, **b.common()),
}

_SHRINKAGE = torch.tensor(0.4, dtype=torch.float64)
_DIAGONAL = torch.tensor([[True, False], [False, True]])
_FIRST = torch.tensor([[True, False], [False, False]])
_COLUMN = torch.tensor([[True, False], [True, False]])  # nothing is estimated for the first cluster of keys

# Maps with pairs of clusters that are exact: these have no features, but attention serves them.
PARTLY_EXACT: dict[str, Factory] = {
    "partly exact paper": lambda b: b.clustered("paper", matrix=REAL_DIAGONAL, exact=_FIRST),
    "partly exact moments": lambda b: b.clustered("moments", matrix=COMPLEX_DIAGONAL, exact=_COLUMN),
    "partly exact shifted": lambda b: b.clustered("shifted", matrix=COMPLEX_FULL, exact=_COLUMN),
    "partly exact separable": lambda b: b.clustered("separable", exact=_DIAGONAL),
    "partly exact shrunk": lambda b: b.clustered("shrunk", shrinkage=_SHRINKAGE, exact=_FIRST),
    "partly exact with default": lambda b: b.clustered("shifted", served=~_DIAGONAL, exact=_FIRST),
    "wholly exact": lambda b: b.clustered("separable", exact=torch.ones(2, 2, dtype=torch.bool)),
}

# Maps whose MSE is known for independent rows only.
IID_ONLY = {"favor#", "favor# asymmetric", "centred positive"}
# Maps that accept bias for less variance.
BIASED = {"clustered separable", "clustered shrunk"}


def build(name: str, *, heads: int | None = None, kind: str = "orthogonal", seed: int = 0) -> hrf.FeatureMap:
    """The named map in float64."""
    return (MAPS | PARTLY_EXACT)[name](Builder(heads, kind, seed)).double()
