"""Estimators of the paper by name and size, and the sizes at which hybrids are compared with bases.

The paper gives hybrids "the configuration leading to the similar number of FLOPS" as bases with D projections,
and pairs D with (m, n) = (D/8, 8), so that m·n = D. This gives neither the same number of operations nor the
same width, so hybrids are compared at all three matchings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

import hrf
from hrf import catalogue
from hrf.advice.candidates import largest_within

BASES = ("trigonometric", "FAVOR+")
HYBRIDS = ("angular hybrid", "Gaussian hybrid")
MATCHINGS = ("m·n = D", "equal FLOPs", "equal width")


@dataclass(frozen=True)
class Estimator:
    """Recipe of a map: call it with a number of heads and a generator.

    Attributes:
        name: one of `BASES` or `HYBRIDS`.
        dim: d.
        n_projections: m.
        n_coefficient_projections: n of a hybrid.
        projection: kind of all rows ω.
        sigma: σ of the Gaussian hybrid.
        radius: r of the Gaussian hybrid.
    """

    name: str
    dim: int
    n_projections: int
    n_coefficient_projections: int = 0
    projection: str = "iid"
    sigma: float = 1.0
    radius: float = 1.0

    def __call__(self, heads: int | None, generator: Generator) -> hrf.FeatureMap:
        """Draw the map."""
        n = self.n_coefficient_projections if self.name in HYBRIDS else None
        is_gaussian = self.name == "Gaussian hybrid"
        window: dict[str, Any] = {"sigma": self.sigma, "radius": self.radius} if is_gaussian else {}
        return catalogue.build(
            catalogue.label(self.name, self.n_projections, n),
            self.dim,
            heads=heads,
            generator=generator,
            projection=self.projection,
            **window,
        )

    def one(self) -> hrf.FeatureMap:
        """Draw a map for closed forms, costs and widths, which do not depend on the draw."""
        return self(None, Generator())


def matched(estimator: Estimator, matching: str, n_features: int) -> Estimator:
    """Return the hybrid at the size that one of `MATCHINGS` gives it against bases with ``n_features`` projections."""
    if matching == "m·n = D":
        return replace(estimator, n_projections=n_features // estimator.n_coefficient_projections)
    cost: Callable[[hrf.FeatureMap], int] = (
        (lambda phi: phi.active_width) if matching == "equal width" else (lambda phi: phi.flops())
    )
    limit = cost(replace(estimator, name="FAVOR+", n_projections=n_features).one())
    m = largest_within(lambda m: replace(estimator, n_projections=m).one(), cost, limit)
    return replace(estimator, n_projections=m)


# Many draws of a map's estimates: heads are independent, so a map with H heads makes H draws in one product.


# Standard errors within which a mean over draws agrees with its closed form.
CLOSE = 5.0

# Numbers in one chunk of draws: 8 MiB in float64, and about a dozen tensors of that size at a time.
_CHUNK = 1 << 20


def chunk_size(draws: int, dim: int, n_projections: int) -> int:
    """Return how many draws to make at a time, for maps with ``n_projections`` rows of ω: their number of heads."""
    return min(draws, max(1, _CHUNK // (dim * max(dim, n_projections))))


def estimates(
    drawn: hrf.FeatureMap | hrf.coefficients.Coefficient,
    x: Tensor,
    y: Tensor,
    *,
    draws: int,
    generator: Generator,
) -> Iterator[Tensor]:
    """Yield the estimates for one query ``(1, d)`` and keys ``(S, d)``, in chunks ``(count, S)`` of all draws.

    Args:
        drawn: the map or coefficient, with `chunk_size` heads.
        x: the query.
        y: the keys.
        draws: the number of draws.
        generator: the generator that ``drawn`` was drawn with, for further draws.
    """
    assert drawn.heads is not None
    for done in range(0, draws, drawn.heads):
        if done:
            drawn.redraw_(generator)
        yield drawn.estimate(x[None], y[None])[: draws - done, 0]


def all_estimates(estimator: Estimator, x: Tensor, y: Tensor, *, draws: int, seed: int) -> Tensor:
    """Return the estimates of all draws at once: ``(draws, S)``."""
    rows = estimator.n_projections + estimator.n_coefficient_projections
    generator = Generator().manual_seed(seed)
    drawn = estimator(chunk_size(draws, x.shape[-1], rows), generator)
    return torch.cat(list(estimates(drawn, x, y, draws=draws, generator=generator)))


def mean_and_error(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean over draws and its standard error: ``(draws, S) -> (S,)`` each."""
    return values.mean(0), values.std(0) / math.sqrt(len(values))


def root_and_error(values: Tensor, exact: Tensor) -> tuple[Tensor, Tensor]:
    """Return the root of the mean of (values/exact − 1)² over draws, and its standard error."""
    mean, error = mean_and_error((values / exact - 1).square())
    root = mean.sqrt()
    return root, torch.where(root > 0, error / (2 * root), 0.0)  # d√v = dv / 2√v


def deviations(seen: Tensor, error: Tensor, exact: Tensor) -> list[float]:
    """Return the gap between seen and exact values in standard errors; 0 where both agree to rounding."""
    gap = (seen - exact).abs()
    return torch.where(gap <= 1e-9 * exact.abs() + 1e-12, 0.0, gap / error).tolist()


def on_sphere(radius: float, dim: int, angles: list[float]) -> tuple[Tensor, Tensor]:
    """Return one query ``(1, d)`` and one key per angle ``(S, d)``, all in one plane; any plane would do.

    Args:
        radius: the length of all vectors.
        dim: d.
        angles: angles between the query and the keys, in units of π.
    """
    theta = torch.tensor(angles, dtype=torch.float64) * math.pi
    x, y = (torch.zeros(count, dim, dtype=torch.float64) for count in (1, len(angles)))
    x[0, 0] = radius
    # Rounded so that the last key is the opposite of the query to the last bit: sin π is not 0 in floats.
    y[:, 0], y[:, 1] = theta.cos().round(decimals=15), theta.sin().round(decimals=15)
    return x, y * radius


def fractions(steps: int) -> list[float]:
    """Return angles from 0 to π in equal steps, in units of π."""
    return [k / steps for k in range(steps + 1)]
