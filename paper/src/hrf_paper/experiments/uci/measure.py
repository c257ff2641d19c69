"""Errors of hybrids and of quasi-Monte Carlo features on pairs of points from wine and Boston (paper, Table 1).

The paper says neither how the data were scaled, nor whether its baselines are trigonometric or positive
features, so all choices are tried: five lengths r of the vectors, four ways of scaling, both kinds of features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor

from hrf_paper import datasets
from hrf_paper.experiments.experiment import Part, Results
from hrf_paper.experiments.shared.estimators import MATCHINGS, Estimator, matched
from hrf_paper.experiments.uci.printed import PRINTED, UNIT

__all__ = [
    "BASELINES",
    "HYBRIDS",
    "KINDS",
    "SCALINGS",
    "Settings",
    "all_cases",
    "case_key",
    "closest",
    "distance",
    "exact",
    "parts",
    "table_row",
]

_LOADERS = {"wine": datasets.wine, "Boston": datasets.boston}
BASELINES = {"ORF-reg": "orthogonal", "ORF-Had": "hadamard", "Halton-R": "halton"}
KINDS = {"trigonometric": "trigonometric", "positive": "FAVOR+"}
HYBRIDS = {"HRF-ort": "orthogonal", "HRF-iid": "iid"}
_DIM = 13  # of both data sets
_CHUNK = 10  # pairs at a time


@dataclass(frozen=True)
class Settings:
    """``features`` is the number D of projections of the baselines."""

    features: int = 512
    n_coefficient_projections: int = 8
    radii: tuple[float, ...] = (0.5, 0.8, 1.0, 1.25, 1.5)
    pairs: int = 100
    draws: int = 100
    seed: int = 0


def _normalised(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def _on_average(x: Tensor) -> Tensor:
    return x / x.square().sum(-1).mean().sqrt()


def _standardised(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / x.std(0)


def _unit_interval(x: Tensor) -> Tensor:
    low, high = x.amin(0), x.amax(0)
    return (x - low) / (high - low)


# Vectors of length 1, or of mean square length 1.
SCALINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "standardised, rows of one length": lambda x: _normalised(_standardised(x)),
    "standardised": lambda x: _on_average(_standardised(x)),
    "columns in [0, 1]": lambda x: _on_average(_unit_interval(x)),
    "raw": _on_average,
}


def parts(settings: Settings) -> dict[str, Part]:
    """Return one part per estimator, on all data."""
    data = dict(_data(settings))
    return {
        name: partial(_part, settings, estimator, data) for name, estimator in _estimators(settings).items()
    }


def _estimators(settings: Settings) -> dict[str, Estimator]:
    n = settings.n_coefficient_projections
    found = {}
    for name, projection in HYBRIDS.items():
        for matching in MATCHINGS:
            hybrid = Estimator("angular hybrid", _DIM, 1, n, projection)
            found[f"{name}, {matching}"] = matched(hybrid, matching, settings.features)
    for name, projection in BASELINES.items():
        for kind, base in KINDS.items():
            found[f"{name}, {kind}"] = Estimator(base, _DIM, settings.features, projection=projection)
    return found


def _data(settings: Settings) -> Iterator[tuple[str, tuple[Tensor, Tensor]]]:
    """Yield random pairs of points by case: ``(pairs, d)`` each."""
    for name, load in _LOADERS.items():
        points = load()
        generator = Generator().manual_seed(settings.seed)
        rows = torch.stack(
            [torch.randperm(len(points), generator=generator)[:2] for _ in range(settings.pairs)]
        )
        for scaling, scale in SCALINGS.items():
            x = scale(points)
            for radius in settings.radii:
                yield case_key(name, scaling, radius), (radius * x[rows[:, 0]], radius * x[rows[:, 1]])


def case_key(name: str, scaling: str, radius: float) -> str:
    """Return the name of a case in the results."""
    return f"{name}, {scaling}, r = {radius:g}"


def _part(settings: Settings, estimator: Estimator, data: dict[str, tuple[Tensor, Tensor]]) -> dict[str, Any]:
    phi = estimator(settings.draws, Generator().manual_seed(settings.seed))
    found: dict[str, Any] = {"m": estimator.n_projections, "width": phi.feature_dim, "flops": phi.flops()}
    for key, (x, y) in data.items():
        kernel = (x * y).sum(-1).exp()
        # Pairs form the batch, draws are heads: (pairs, 1, 1, d) -> (pairs, draws, 1, 1).
        pairs = (u.float()[:, None, None].split(_CHUNK) for u in (x, y))
        estimates = torch.cat([phi.estimate(*chunk)[..., 0, 0] for chunk in zip(*pairs, strict=True)])
        errors = (estimates - kernel[:, None]).square().mean(0)  # (draws,)
        found[key] = {"mean": float(errors.mean()), "deviation": float(errors.std())}
        if estimator.projection in ("iid", "orthogonal"):
            one = estimator.one()
            found[key]["exact"] = float(one.mse(x[:, None], y[:, None]).mean())
    return found


def table_row(results: Results, key: str, kind: str, matching: str = MATCHINGS[0]) -> dict[str, float]:
    """Return the five numbers of a row of Table 1 in its units: means over draws."""
    names = {**dict.fromkeys(HYBRIDS, matching), **dict.fromkeys(BASELINES, kind)}
    return {name: results[f"{name}, {label}"][key]["mean"] / UNIT for name, label in names.items()}


def exact(results: Results, name: str, key: str) -> float | None:
    """Return the exact MSE in the units of Table 1, ``None`` for estimators without a closed form."""
    value = results[name][key].get("exact")
    return None if value is None else value / UNIT


def all_cases(settings: Settings) -> list[tuple[str, str, float]]:
    """Return data, scaling and length of every case."""
    return [(name, scaling, r) for name in PRINTED for scaling in SCALINGS for r in settings.radii]


def distance(row: dict[str, float], name: str) -> float:
    """Return the root mean square of log₂(ours/printed) over a row of Table 1."""
    gaps = [math.log2(row[key] / value) for key, (value, _) in PRINTED[name].items()]
    return math.sqrt(sum(gap * gap for gap in gaps) / len(gaps))


def closest(settings: Settings, results: Results, name: str) -> tuple[str, float, str]:
    """Return the scaling, the length and the kind of baselines whose row is nearest to the printed row."""
    choices = [(scaling, r, kind) for _, scaling, r in all_cases(settings) for kind in KINDS]
    return min(choices, key=lambda c: distance(table_row(results, case_key(name, c[0], c[1]), c[2]), name))
