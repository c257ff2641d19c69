"""Relative error ε = √MSE / K of every estimator over the angle θ of x and y, at one feature width.

On the sphere ‖x‖ = ‖y‖ = r the softmax kernel is K = exp(r² cos θ), and ε depends on θ alone (paper,
Lemma 3.4): trigonometric features are exact at θ = 0 and positive ones at θ = π. Two witnesses stand side
by side, the closed form of each map and the error that a number of draws shows.

The rows ω are independent throughout: for coupled ones the error of a fitted `hrf.DenseExponential` has no
known closed form. It and `hrf.OptimalPositive` are fitted to these very pairs, which lie in one plane.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Generator, Tensor

import hrf
from hrf_paper.experiments.shared.draws import estimates, fractions, on_sphere

__all__ = ["Curve", "Result", "Settings", "run"]

Progress = Callable[[str, int, int], None]  # name of the estimator, draws done, draws in all

_KIND = "iid"
_FITTED = hrf.OptimalPositive | hrf.DenseExponential
# Angles in units of π: a fine grid for the closed forms, a coarse one within it for the draws.
_STEPS, _SAMPLED_STEPS = 160, 16


@dataclass(frozen=True)
class Settings:
    """What a run depends on.

    Attributes:
        radius: r, the length of x and y.
        dim: d.
        features: the width that every estimator gets, to the nearest size it can have.
        draws: random draws behind each empirical error.
        seed: of the draws; every estimator starts from it anew.
        n_coefficient_projections: n of the angular and the Gaussian hybrid.
        sigma: σ of the Gaussian hybrid.
        nested_sigma: σ of the nested hybrid. Its λ is estimated by an angular hybrid, whose error grows
            like exp(2σ²r²) and is then multiplied into that of the bases: a wide window keeps it small.
    """

    radius: float = 1.5
    dim: int = 64
    features: int = 256
    draws: int = 2000
    seed: int = 0
    n_coefficient_projections: int = 8
    sigma: float = 1.0
    nested_sigma: float = 0.25

    def __post_init__(self) -> None:
        # ε grows like exp(2r²), so that farther out rounding shows even where an estimator is exact.
        _check_range("radius", self.radius, 0.01, 4)
        _check_range("dim", self.dim, 2, 4096)
        _check_range("features", self.features, _nested_width(), 1 << 16)
        _check_range("draws", self.draws, 2, math.inf)
        _check_range("seed", self.seed, 0, 2**63 - 1)


@dataclass(frozen=True)
class Curve:
    """One estimator: its size, its cost and its relative errors."""

    name: str
    fitted: bool  # to these very pairs
    n_projections: int
    width: int
    flops: int
    exact: list[float]  # at Result.angles
    empirical: list[float]  # at Result.sampled_angles
    standard_error: list[float]  # of the empirical ones

    @property
    def largest(self) -> float:
        """The maximum of the exact relative error over the angles."""
        return max(self.exact)


@dataclass(frozen=True)
class Result:
    """A run: angles in units of π and a curve an estimator."""

    settings: Settings
    versions: dict[str, str]
    angles: list[float]
    sampled_angles: list[float]
    curves: list[Curve]
    projection: str = _KIND
    experiment: Literal["angles"] = "angles"

    def exact_where_sampled(self, curve: Curve) -> list[float]:
        """The exact errors at the sampled angles."""
        return curve.exact[:: (len(self.angles) - 1) // (len(self.sampled_angles) - 1)]

    def peak(self, curve: Curve) -> float:
        """The angle at which a curve is largest, in units of π."""
        return self.angles[curve.exact.index(curve.largest)]

    def winners(self) -> list[tuple[Curve, float, float]]:
        """The curve with the smallest exact error, from which angle to which, in units of π.

        The two ends are not looked at: several estimators are exact there.
        """
        inner = range(1, len(self.angles) - 1)
        best = [min(self.curves, key=lambda curve: curve.exact[k]) for k in inner]
        ranges, start = [], 0.0
        for k in inner:
            if k == inner[-1] or best[k] is not best[k - 1]:  # best[k − 1] belongs to angle k
                end = 1.0 if k == inner[-1] else (self.angles[k] + self.angles[k + 1]) / 2
                ranges.append((best[k - 1], start, end))
                start = end
        return ranges

    def to_dict(self) -> dict[str, Any]:
        """Numbers, texts, lists and dictionaries only, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Result:
        """The result that `to_dict` described."""
        curves = [Curve(**curve) for curve in data["curves"]]
        return cls(**data | {"settings": Settings(**data["settings"]), "curves": curves})


def run(settings: Settings, progress: Progress | None = None) -> Result:
    """Exact and empirical relative errors of all estimators.

    Args:
        settings: sizes, draws and seed.
        progress: called with an estimator's name, the draws done and the draws of the whole run.
    """
    estimators = _estimators(settings)
    x, y = on_sphere(settings.radius, settings.dim, fractions(_STEPS))
    curves = []
    for index, estimator in enumerate(estimators):

        def advance(done: int, name: str = estimator.name, before: int = index * settings.draws) -> None:
            if progress is not None:
                progress(name, before + done, len(estimators) * settings.draws)

        feature_map = estimator.build(None, Generator())  # ω does not enter the closed forms
        if isinstance(feature_map, _FITTED):
            feature_map.fit(x, y)
        empirical, standard_error = _sample(estimator, feature_map, settings, advance)
        curves.append(
            Curve(
                name=estimator.name,
                fitted=isinstance(feature_map, _FITTED),
                n_projections=estimator.n_projections,
                width=feature_map.feature_dim,
                flops=feature_map.flops(),
                exact=feature_map.relative_error(x, y)[0].tolist(),
                empirical=empirical.tolist(),
                standard_error=standard_error.tolist(),
            )
        )
    versions = {"hrf": hrf.__version__, "torch": str(torch.__version__), "python": platform.python_version()}
    return Result(settings, versions, fractions(_STEPS), fractions(_SAMPLED_STEPS), curves)


@dataclass(frozen=True)
class _Estimator:
    name: str
    n_projections: int
    build: Callable[[int | None, Generator], hrf.FeatureMap]  # from a number of heads


def _estimators(settings: Settings) -> list[_Estimator]:
    """Every estimator at the size whose width is nearest to the budget."""
    d, n, r = settings.dim, settings.n_coefficient_projections, settings.radius

    def size(width_of_one: int) -> int:
        return max(1, round(settings.features / width_of_one))

    def plain(
        name: str, cls: Callable[..., hrf.FeatureMap], width_of_one: int, **arguments: Any
    ) -> _Estimator:
        m = size(width_of_one)
        return _Estimator(
            name,
            m,
            lambda heads, g: cls(d, n_projections=m, projection=_KIND, heads=heads, generator=g, **arguments),
        )

    def nested(heads: int | None, generator: Generator) -> hrf.FeatureMap:
        shared: dict[str, Any] = {"heads": heads, "generator": generator}
        m = size(_nested_width())
        omega = hrf.Projections(_KIND, m, d, **shared)
        bases = [
            base(d, n_projections=m, projection=omega, heads=heads)
            for base in (hrf.Positive, hrf.Trigonometric)
        ]
        angular = hrf.AngularHybrid(d, projection=_KIND, **_NESTED, **shared)
        return hrf.Hybrid(
            bases, [hrf.coefficients.Gaussian.bipolar(angular, sigma=settings.nested_sigma, radius=r)]
        )

    coefficient = {"n_coefficient_projections": n}
    return [
        plain("trigonometric", hrf.Trigonometric, 2),
        plain("FAVOR+", hrf.Positive, 2),
        plain("FAVOR++", hrf.OptimalPositive, 1),
        plain("FAVOR#", hrf.DenseExponential, 1),
        plain("angular hybrid", hrf.AngularHybrid, 4 * (n + 1), **coefficient),
        plain(
            "Gaussian hybrid",
            hrf.GaussianHybrid,
            4 * (2 * n + 1),
            **coefficient,
            sigma=settings.sigma,
            radius=r,
        ),
        _Estimator("nested hybrid", size(_nested_width()), nested),
    ]


# The nested hybrid's coefficient: as wide as that of the Gaussian hybrid with n = 8.
_NESTED: dict[str, Any] = {"n_projections": 1, "n_coefficient_projections": 3}


def _nested_width() -> int:
    """Width of the nested hybrid for each projection of its bases."""
    coefficient: int = 4 * _NESTED["n_projections"] * (_NESTED["n_coefficient_projections"] + 1)
    return 4 * (coefficient + 1)


def _sample(
    estimator: _Estimator, fitted: hrf.FeatureMap, settings: Settings, advance: Callable[[int], None]
) -> tuple[Tensor, Tensor]:
    """Root of the mean of (K̂/K − 1)² over the draws, and its standard error: ``(S,)`` each."""

    def build(heads: int | None, generator: Generator) -> hrf.FeatureMap:
        feature_map = estimator.build(heads, generator)
        if isinstance(feature_map, _FITTED) and isinstance(fitted, _FITTED):
            feature_map.curvature.copy_(fitted.curvature)
            feature_map.basis.copy_(fitted.basis)
        return feature_map

    x, y = on_sphere(settings.radius, settings.dim, fractions(_SAMPLED_STEPS))
    kernel = hrf.kernels.softmax(x, y)
    first, second = torch.zeros(2, len(y), dtype=torch.float64)
    done = 0
    for chunk in estimates(
        build, x, y, draws=settings.draws, seed=settings.seed, n_projections=estimator.n_projections
    ):
        squares = (chunk / kernel - 1).square()  # (count, S)
        first += squares.sum(0)
        second += squares.square().sum(0)
        done += len(chunk)
        advance(done)
    mean = first / settings.draws
    variance = (second / settings.draws - mean.square()).clamp(min=0) / (settings.draws - 1)
    error = mean.sqrt()
    # d√v = dv / 2√v
    return error, torch.where(error > 0, variance.sqrt() / (2 * error), 0.0)


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        bounds = f"at least {low}" if math.isinf(high) else f"from {low} to {high}"
        raise ValueError(f"{name} is {value}; expected a number {bounds}")
