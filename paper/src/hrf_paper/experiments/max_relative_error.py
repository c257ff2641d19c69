"""Largest relative error on a sphere of radius r: exact, the bound of Theorem 3.5, and two bounds that hold.

All errors here are shares of W(r)/√(2m), the largest error of the trigonometric and the positive estimator: m
drops out, and r can be as large as one likes. The theorem promises a share of the order 1/r for every number
n of coefficient projections; the exact share falls like 1/√r once r is larger than n, and exceeds the bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import hrf
from hrf import theory
from hrf.report import number
from hrf_paper.experiments.estimators import (
    CLOSE,
    Estimator,
    all_estimates,
    deviations,
    fractions,
    on_sphere,
    root_and_error,
)
from hrf_paper.experiments.experiment import Claim, Experiment, Part, Results, Table
from hrf_paper.experiments.plotting import GREY, PALETTE, bare, canvas, headline, log_axis, note

# Exact largest errors, bounds, and errors over draws.

BOUNDS = {
    "printed": theory.log_paper_bound,
    "corrected": theory.log_corrected_bound,
    "tight": theory.log_tight_bound,
}
LARGEST = 60.0  # radius up to which the printed bound is compared with the error
SMALL_ANGLE = 1e-6


@dataclass(frozen=True)
class MaxRelativeErrorSettings:
    """Radii from 1 to ``largest_radius`` in equal ratios; draws have n = 8 and the smaller ``drawn_radii``."""

    n_coefficient_projections: tuple[int, ...] = (1, 2, 4, 8, 16)
    n_radii: int = 121
    largest_radius: float = 30.0
    drawn_radii: tuple[float, ...] = (0.25, 0.5, 0.75)
    drawn_projections: tuple[int, int] = (32, 8)
    dim: int = 16
    draws: int = 40_000
    seed: int = 0


def parts(settings: MaxRelativeErrorSettings) -> dict[str, Part]:
    """Return one part per n (exact shares, bounds, crossing, limits at the ends) and one per drawn radius."""
    work: dict[str, Part] = {
        f"n = {n}": partial(_exact, settings, n) for n in settings.n_coefficient_projections
    }
    work |= {f"draws, r = {r:g}": partial(_drawn, settings, r) for r in settings.drawn_radii}
    return work


def radii(settings: MaxRelativeErrorSettings) -> list[float]:
    """Return the grid of radii."""
    return torch.logspace(0, math.log10(settings.largest_radius), settings.n_radii).double().tolist()


def _exact(settings: MaxRelativeErrorSettings, n: int) -> dict[str, Any]:
    r = torch.tensor(radii(settings), dtype=torch.float64)
    base = theory.log_max_relative_error_base(r, 1)
    exact = theory.log_max_relative_error(r, 1, n) - base
    half = settings.largest_radius / 2
    ends = torch.tensor([half, 2 * half], dtype=torch.float64)
    low, high = theory.log_max_relative_error(ends, 1, n) - theory.log_max_relative_error_base(ends, 1)
    theta = torch.tensor([SMALL_ANGLE, math.pi - SMALL_ANGLE], dtype=torch.float64)
    limits = theory.log_sphere_relative_error_angular(theta, 1.5, 1, n) - math.log(SMALL_ANGLE) / 2
    return {
        "exact": exact.exp().tolist(),
        **{name: (bound(r, 1, n) - base).exp().tolist() for name, bound in BOUNDS.items()},
        "crossing": _crossing(n),
        "slope": float((high - low) / math.log(2)),
        "limits": (limits - theory.log_limit_ratio(1.5, 1, n)).exp().tolist(),
    }


def _crossing(n: int) -> float | None:
    """Return the radius from which on the exact error exceeds the printed bound, on finer and finer grids."""
    low, high = 1.0, LARGEST
    for _ in range(4):
        grid = torch.linspace(low, high, 65, dtype=torch.float64)
        above = theory.log_max_relative_error(grid, 1, n) > theory.log_paper_bound(grid, 1, n)
        if not above[-1]:
            return None
        first = int(above.nonzero()[0])
        low, high = float(grid[first - 1]), float(grid[first])
    return high


def _drawn(settings: MaxRelativeErrorSettings, radius: float) -> dict[str, Any]:
    m, n = settings.drawn_projections
    angles = fractions(16)
    x, y = on_sphere(radius, settings.dim, angles)
    estimator = Estimator("angular hybrid", settings.dim, m, n)
    values = all_estimates(estimator, x, y, draws=settings.draws, seed=settings.seed)
    error, standard_error = root_and_error(values, hrf.kernels.softmax(x, y))
    theta = torch.tensor(angles, dtype=torch.float64) * math.pi
    exact = theory.log_sphere_relative_error_angular(theta, radius, m, n).exp()
    return {
        "angles": angles,
        "exact": exact.tolist(),
        "seen": error.tolist(),
        "standard_error": standard_error.tolist(),
        "deviations": deviations(error, standard_error, exact),
    }


# Shares of the bases' error, and where the printed bound fails.


def tables(settings: MaxRelativeErrorSettings, results: Results) -> list[Table]:
    """Show shares at three radii, and where the printed bound fails."""
    grid = radii(settings)
    rows = []
    for n, part in _by_n(settings, results).items():
        for wanted in (1.0, 5.0, 20.0):
            k = min(range(len(grid)), key=lambda k: abs(grid[k] - wanted))
            shares = [part[name][k] for name in ("exact", *BOUNDS)]
            rows.append((f"{n}", f"{grid[k]:.1f}", *(number(share) for share in shares)))
    known = {n: part["crossing"] for n, part in _by_n(settings, results).items()}
    crossings = [(f"{n}", "—" if r is None else f"{r:.3f}") for n, r in known.items()]
    return [
        Table("Largest error as a share of W(r)/√(2m)", ("n", "r", "exact", *BOUNDS), rows),
        Table("Where Theorem 3.5 fails", ("n", "from r ="), crossings),
    ]


# Statements of Section 3 on the largest relative error.

_SLOPE = -0.95  # slopes below count as −1
_LIMIT = 1e-3  # share of the limit within which a ratio reaches it


def claims(settings: MaxRelativeErrorSettings, results: Results) -> list[Claim]:
    """Judge Section 3."""
    judged = (_smaller, _bound, _slope, _limits, _closed_forms)
    return [claim(settings, results) for claim in judged]


def _by_n(settings: MaxRelativeErrorSettings, results: Results) -> dict[int, dict[str, Any]]:
    return {n: results[f"n = {n}"] for n in settings.n_coefficient_projections}


def _largest_ratio(settings: MaxRelativeErrorSettings, results: Results, bound: str) -> float:
    """Return the largest ratio of the exact error and a bound, over all n and radii."""
    return max(
        share / limit
        for part in _by_n(settings, results).values()
        for share, limit in zip(part["exact"], part[bound], strict=True)
    )


def _smaller(settings: MaxRelativeErrorSettings, results: Results) -> Claim:
    shares = [share for part in _by_n(settings, results).values() for share in part["exact"]]
    return Claim(
        claim="The angular hybrid has a smaller largest error than either base (Section 3).",
        paper="smaller",
        ours=f"at most {max(shares):.3f} of theirs",
        hits=[share < 1 for share in shares],
        cases="radii and n",
        matching="equal m",
        sentence=f"For r from 1 to {settings.largest_radius:g} and n of {_listed(settings.n_coefficient_projections)} "
        f"the largest error of the hybrid is at most {max(shares):.3f} of the largest error of its bases at equal m.",
    )


def _bound(settings: MaxRelativeErrorSettings, results: Results) -> Claim:
    found = _by_n(settings, results)
    failing = {n: part["crossing"] for n, part in found.items() if part["crossing"] is not None}
    where = ", ".join(f"{r:.2f} (n = {n})" for n, r in failing.items())
    if failing:
        sentence = (
            f"The exact error exceeds the printed bound from r = {where} on, by a factor of up to "
            f"{_largest_ratio(settings, results, 'printed'):.2f} for r ≤ {settings.largest_radius:g}; "
            "the proof drops a factor r."
        )
    else:
        sentence = f"The exact error stays below the printed bound up to r = {LARGEST:g}."
    return Claim(
        claim="The largest error is at most (W/(r√2m)) √(1/π − 1/(nπ) + 1/(n√π)) for r ≥ 1 (Theorem 3.5).",
        paper="for every r and n",
        ours=f"false from r = {where}" if failing else f"true up to r = {LARGEST:g}",
        hits=[n not in failing for n in found],
        cases="values of n",
        criterion=f"up to r = {LARGEST:g}",
        matching="equal m",
        sentence=sentence,
    )


def _slope(settings: MaxRelativeErrorSettings, results: Results) -> Claim:
    slopes = {n: part["slope"] for n, part in _by_n(settings, results).items()}
    top = settings.largest_radius
    return Claim(
        claim="The largest error scales as e^{2r²}/r in r (Section 3).",
        paper="slope −1",
        ours=", ".join(f"{slope:.2f} (n = {n})" for n, slope in slopes.items()),
        hits=[slope < _SLOPE for slope in slopes.values()],
        cases="slopes",
        criterion=f"below {_SLOPE:g}",
        matching="equal m",
        sentence=f"Between r = {top / 2:g} and {top:g} the share of the bases' error falls like "
        f"r to the power {_listed(f'{slope:.2f}' for slope in slopes.values())} for n of {_listed(slopes)}: "
        "like 1/√r at a fixed n; 1/r would need an n that grows with r.",
    )


def _limits(settings: MaxRelativeErrorSettings, results: Results) -> Claim:
    gaps = [abs(value - 1) for part in _by_n(settings, results).values() for value in part["limits"]]
    return Claim(
        claim="ε/√θ tends to W(r)/√(2πmn) as θ → 0, and ε/√(π − θ) as θ → π (Theorem 3.5).",
        paper="W(r)/√(2πmn)",
        ours=f"the same to {max(gaps):.0e}",
        hits=[gap < _LIMIT for gap in gaps],
        cases="limits",
        criterion=f"within {_LIMIT:g} of the limit",
        sentence=f"At {SMALL_ANGLE:g} from either end, and r = 1.5, the ratio differs from the limit by "
        f"{max(gaps):.0e} of it.",
    )


def _closed_forms(settings: MaxRelativeErrorSettings, results: Results) -> Claim:
    gaps = [value for r in settings.drawn_radii for value in results[f"draws, r = {r:g}"]["deviations"]]
    ratios = {name: _largest_ratio(settings, results, name) for name in BOUNDS}
    return Claim(
        claim="The exact errors are the errors of the estimator (draws against closed forms).",
        paper="Theorem 3.1, Lemma 3.2",
        ours=f"within {max(gaps):.1f} standard errors",
        hits=[gap <= CLOSE for gap in gaps],
        cases="errors",
        criterion=f"within {CLOSE:g} standard errors",
        sentence=f"In {settings.draws:,} draws at each of the radii {_listed(f'{r:g}' for r in settings.drawn_radii)} "
        f"the errors at 17 angles lie within {max(gaps):.1f} standard errors of the closed form. "
        f"The error never exceeds the corrected bound (largest ratio {ratios['corrected']:.3f}), nor the tight bound "
        f"({ratios['tight']:.3f}).",
    )


def _listed(values: Iterable[Any]) -> str:
    texts = [str(value) for value in values]
    return f"{', '.join(texts[:-1])} and {texts[-1]}" if len(texts) > 1 else texts[0]


# Shares of the bases' error over r, and the exact error over the printed bound.

_STYLES = {"exact": "-", "printed": "--", "corrected": ":", "tight": "-."}


def figure(settings: MaxRelativeErrorSettings, results: Results) -> Figure:
    """Draw shares over r with the three bounds, and the exact error over the printed bound."""
    numbers = settings.n_coefficient_projections
    failing = [n for n in numbers if results[f"n = {n}"]["crossing"] is not None]
    drawing = canvas(12, 5.6)
    headline(
        drawing,
        f"Theorem 3.5 fails for large r at every n up to {max(failing)}; a corrected bound holds"
        if failing
        else "Theorem 3.5 holds at all radii looked at",
        "Largest relative error of the angular hybrid on the sphere of radius r, exact",
    )
    left, right = drawing.subplots(1, 2)
    _draw_shares(left, settings, results)
    _draw_ratios(right, settings, results)
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xlim(1, radii(settings)[-1])
        axes.set_xticks([1, 2, 5, 10, 20, 30], ["1", "2", "5", "10", "20", "30"])
        axes.set_xlabel("radius r")
    log_axis(left)
    bare((left, right))
    return drawing


def _draw_shares(axes: Axes, settings: MaxRelativeErrorSettings, results: Results) -> None:
    numbers = settings.n_coefficient_projections
    for n, colour in zip((numbers[0], numbers[-2]), PALETTE, strict=False):
        for name, style in _STYLES.items():
            axes.plot(
                radii(settings),
                results[f"n = {n}"][name],
                style,
                color=colour,
                linewidth=2.4 if name == "exact" else 1.3,
                label=f"{'exact' if name == 'exact' else f'{name} bound'}, n = {n}",
            )
    axes.set_ylabel("share of the bases' largest error")
    axes.legend(frameon=False, fontsize=8.5, loc="lower left")


def _draw_ratios(axes: Axes, settings: MaxRelativeErrorSettings, results: Results) -> None:
    grid = radii(settings)
    for n, colour in zip(settings.n_coefficient_projections, PALETTE, strict=False):
        part = results[f"n = {n}"]
        ratio = [share / bound for share, bound in zip(part["exact"], part["printed"], strict=True)]
        crossing, label = part["crossing"], f"n = {n}"
        if crossing is not None and crossing > grid[-1]:
            label += f", violated from r = {crossing:.2f}"
        axes.plot(grid, ratio, color=colour, linewidth=2, label=label)
        if crossing is not None and crossing <= grid[-1]:
            _mark(axes, crossing, colour)
    axes.set_ylim(0.3, axes.get_ylim()[1])
    axes.axhspan(1, axes.get_ylim()[1], color="#D55E00", alpha=0.08, linewidth=0)
    axes.text(1.05, 1.02, "theorem violated", size=9, color="#a83a00", va="bottom")
    axes.axhline(1, color=GREY, linewidth=0.8)
    axes.set_ylabel("exact error / printed bound")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, 0.9))


def _mark(axes: Axes, crossing: float, colour: str) -> None:
    axes.plot([crossing], [1], "o", color=colour, markersize=6, zorder=3)
    note(axes, f"{crossing:.2f}", (crossing, 1), (-4, 5), colour, ha="right")


EXPERIMENT = Experiment(
    name="max-relative-error",
    title="The largest relative error, and where its bound fails",
    source="Lemma 3.4, Theorem 3.5",
    full=MaxRelativeErrorSettings(),
    quick=MaxRelativeErrorSettings(n_radii=61, draws=4000),
    parts=parts,
    tables=tables,
    claims=claims,
    figure=figure,
)
