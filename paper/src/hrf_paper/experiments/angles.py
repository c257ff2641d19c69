"""Relative error ε = √MSE / K of every estimator over the angle θ of x and y, at one feature width.

On the sphere ‖x‖ = ‖y‖ = r the softmax kernel is K = exp(r² cos θ), and ε depends on θ alone (paper,
Lemma 3.4): trigonometric features are exact at θ = 0 and positive features at θ = π. Lines show the closed form of
each map, dots the error over a number of draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Final

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Generator, Tensor

import hrf
from hrf import catalogue
from hrf.report import count, number
from hrf_paper.experiments.estimators import chunk_size, estimates, fractions, on_sphere, root_and_error
from hrf_paper.experiments.experiment import Claim, Experiment, Part, Results, Table
from hrf_paper.experiments.plotting import COLOURS, GREY, bare, canvas

# Exact and empirical relative errors over the angle, estimator by estimator.
#
# The rows ω are independent throughout: for coupled rows the error of a fitted `hrf.DenseExponential` has no known
# closed form. `hrf.DenseExponential` and `hrf.OptimalPositive` are fitted to these very pairs, which lie in one plane.

_KIND: Final = "iid"
_FITTED = hrf.OptimalPositive | hrf.DenseExponential
# Angles in units of π: a fine grid for the closed forms, and a coarse grid within it for the draws.
ANGLES, SAMPLED_ANGLES = fractions(160), fractions(16)

# The coefficient of the nested hybrid is as wide as the coefficient of the Gaussian hybrid with n = 8.
_NESTED: dict[str, Any] = {"n_projections": 1, "n_coefficient_projections": 3}


@dataclass(frozen=True)
class AnglesSettings:
    """Sizes, draws and seed of a run.

    Attributes:
        radius: r, the length of x and y.
        dim: d.
        features: the width that every estimator gets, to the nearest size it can have.
        draws: random draws behind each empirical error.
        seed: the seed of the draws; every estimator starts from it anew.
        n_coefficient_projections: n of the angular and the Gaussian hybrid.
        sigma: σ of the Gaussian hybrid.
        nested_sigma: σ of the nested hybrid. Its λ is estimated by an angular hybrid, whose error grows
            like exp(2σ²r²) and multiplies the error of the bases: a wide window keeps it small.
    """

    radius: float = 1.5
    dim: int = 64
    features: int = 256
    draws: int = 2000
    seed: int = 0
    n_coefficient_projections: int = 8
    sigma: float = 1.0
    nested_sigma: float = 0.25


@dataclass(frozen=True)
class _Recipe:
    """Size of an estimator, and how to build its map from a number of heads."""

    n_projections: int
    build: Callable[[int | None, Generator], hrf.FeatureMap]


def parts(settings: AnglesSettings) -> dict[str, Part]:
    """Return one part per estimator."""
    return {name: partial(_part, settings, recipe) for name, recipe in _recipes(settings).items()}


def _part(settings: AnglesSettings, recipe: _Recipe) -> dict[str, Any]:
    x, y = on_sphere(settings.radius, settings.dim, ANGLES)
    feature_map = recipe.build(None, Generator())  # ω does not enter the closed forms
    if isinstance(feature_map, _FITTED):
        feature_map.fit(x, y)
    empirical, standard_error = _sample(recipe, feature_map, settings)
    return {
        "fitted": isinstance(feature_map, _FITTED),
        "n_projections": recipe.n_projections,
        "width": feature_map.feature_dim,
        "flops": feature_map.flops(),
        "exact": feature_map.relative_error(x, y)[0].tolist(),
        "empirical": empirical.tolist(),
        "standard_error": standard_error.tolist(),
    }


def _sample(recipe: _Recipe, fitted: hrf.FeatureMap, settings: AnglesSettings) -> tuple[Tensor, Tensor]:
    """Return the root of the mean of (K̂/K − 1)² over the draws, and its standard error: ``(S,)`` each."""
    generator = Generator().manual_seed(settings.seed)
    drawn = recipe.build(chunk_size(settings.draws, settings.dim, recipe.n_projections), generator)
    if isinstance(drawn, _FITTED) and isinstance(fitted, _FITTED):
        drawn.curvature.copy_(fitted.curvature)
        drawn.basis.copy_(fitted.basis)
    x, y = on_sphere(settings.radius, settings.dim, SAMPLED_ANGLES)
    values = torch.cat(list(estimates(drawn, x, y, draws=settings.draws, generator=generator)))
    return root_and_error(values, hrf.kernels.softmax(x, y)[0])


# Estimators.


def _recipes(settings: AnglesSettings) -> dict[str, _Recipe]:
    """Return every estimator at the size whose width is nearest to the budget."""
    n = settings.n_coefficient_projections
    window = {"sigma": settings.sigma, "radius": settings.radius}
    return {
        "trigonometric": _plain(settings, "Trig", 2),
        "FAVOR+": _plain(settings, "FAVOR+", 2),
        "FAVOR++": _plain(settings, "FAVOR++", 1),
        "FAVOR#": _plain(settings, "FAVOR#", 1),
        "angular hybrid": _plain(settings, "HRF-A", 4 * (n + 1), n),
        "Gaussian hybrid": _plain(settings, "HRF-G", 4 * (2 * n + 1), n, **window),
        "nested hybrid": _Recipe(_size(settings, _nested_width()), partial(_nested, settings)),
    }


def _size(settings: AnglesSettings, width_of_one: int) -> int:
    return max(1, round(settings.features / width_of_one))


def _plain(
    settings: AnglesSettings, family: str, width_of_one: int, n: int | None = None, **window: Any
) -> _Recipe:
    """Return the recipe of a map whose width is proportional to its number of projections."""
    m = _size(settings, width_of_one)
    build = partial(catalogue.build, catalogue.label(family, m, n), settings.dim, projection=_KIND, **window)
    return _Recipe(m, lambda heads, generator: build(heads=heads, generator=generator))


def _nested(settings: AnglesSettings, heads: int | None, generator: Generator) -> hrf.FeatureMap:
    """Build the hybrid whose Gaussian coefficient is estimated by an angular hybrid."""
    d, m = settings.dim, _size(settings, _nested_width())
    shared: dict[str, Any] = {"heads": heads, "generator": generator}
    omega = hrf.Projections(_KIND, m, d, **shared)
    bases = [
        base(d, n_projections=m, projection=omega, heads=heads) for base in (hrf.Positive, hrf.Trigonometric)
    ]
    angular = hrf.AngularHybrid(d, projection=_KIND, **_NESTED, **shared)
    window = {"sigma": settings.nested_sigma, "radius": settings.radius}
    return hrf.Hybrid(bases, [hrf.coefficients.Gaussian.bipolar(angular, **window)])


def _nested_width() -> int:
    """Return the width of the nested hybrid per projection of its bases."""
    coefficient: int = 4 * _NESTED["n_projections"] * (_NESTED["n_coefficient_projections"] + 1)
    return 4 * (coefficient + 1)


# Curves of relative errors over the angle, and questions about them: peaks, winners.


# An error below this is rounding: the estimator is exact there.
ROUNDING = 1e-12
# Errors that differ by less than this share are equal.
TIE = 1e-9


@dataclass(frozen=True)
class Curve:
    """One estimator: its size, its cost and its relative errors.

    Attributes:
        name: the name of the estimator.
        fitted: whether it was fitted to these very pairs.
        n_projections: m.
        width: the number of features.
        flops: operations per vector.
        exact: errors at `Curves.angles`.
        empirical: errors at `Curves.sampled_angles`.
        standard_error: standard errors of the empirical errors.
    """

    name: str
    fitted: bool
    n_projections: int
    width: int
    flops: int
    exact: list[float]
    empirical: list[float]
    standard_error: list[float]

    @property
    def largest(self) -> float:
        """The maximum of the exact relative error over the angles."""
        return max(self.exact)

    @property
    def called(self) -> str:
        """The name as it stands in a sentence."""
        return f"the {self.name}" if "hybrid" in self.name else self.name


@dataclass(frozen=True)
class Curves:
    """All curves of a run, with angles in units of π."""

    settings: AnglesSettings
    curves: list[Curve]
    angles: list[float]
    sampled_angles: list[float]

    def exact_where_sampled(self, curve: Curve) -> list[float]:
        """Return the exact errors at the sampled angles."""
        return curve.exact[:: (len(self.angles) - 1) // (len(self.sampled_angles) - 1)]

    def peak(self, curve: Curve) -> float:
        """Return the angle at which a curve is largest."""
        return self.angles[curve.exact.index(curve.largest)]

    def winners(self) -> list[tuple[Curve, float, float]]:
        """Return ranges of angles, each with the curve that has the smallest exact error there.

        The two ends do not count: several estimators are exact there.
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


def curves(settings: AnglesSettings, results: Results) -> Curves:
    """Read the curves from the results of all parts."""
    names = [field.name for field in fields(Curve) if field.name != "name"]
    found = [Curve(name, *(part[key] for key in names)) for name, part in results.items()]
    return Curves(settings, found, ANGLES, SAMPLED_ANGLES)


def angle_text(share: float) -> str:
    """Format an angle in units of π, in at most five characters."""
    return {0.0: "0", 1.0: "π"}.get(share, f"{share:.2f}π")


# Sizes, costs and exact errors at five angles.

_ANGLES = {0.0: "0", 0.25: "π/4", 0.5: "π/2", 0.75: "3π/4", 1.0: "π"}
_HEADER = ("estimator", "width", "FLOPs", *(f"{angle} " for angle in _ANGLES.values()), "max ", "at θ")
# Black does not show on a dark terminal.
_STYLES = {name: "bold" if name == "FAVOR#" else f"bold {colour}" for name, colour in COLOURS.items()}


def tables(settings: AnglesSettings, results: Results) -> list[Table]:
    """Show size, cost, errors at five angles, and the maximum; an asterisk marks the smallest error of a column."""
    s, found = settings, curves(settings, results)
    places = [found.angles.index(angle) for angle in _ANGLES]
    errors = [[*(curve.exact[k] for k in places), curve.largest] for curve in found.curves]
    smallest = [max(min(column) * (1 + TIE), ROUNDING) for column in zip(*errors, strict=True)]
    rows = [
        (
            curve.name,
            f"{curve.width}",
            count(curve.flops),
            *(f"{number(e)}{'*' if e <= best else ' '}" for e, best in zip(row, smallest, strict=True)),
            angle_text(found.peak(curve)),
        )
        for curve, row in zip(found.curves, errors, strict=True)
    ]
    shown = Table(
        f"Relative error ε = √MSE/K at radius {s.radius:g}, d = {s.dim}, feature width ≈ {s.features}",
        _HEADER,
        rows,
        caption=f"exact, for independent projections (iid); * smallest of its column; seed {s.seed}",
        styles=_STYLES,
        padding=0,
    )
    return [shown]


# Statements of the paper on relative errors over the angle, and which estimator is best where.


# Whether an estimator is exact at θ = 0 and at θ = π.
_EXACT = {"trigonometric": (True, False), "FAVOR+": (False, True), "angular hybrid": (True, True)}
_RIVALS = ("trigonometric", "FAVOR+", "Gaussian hybrid")
# An empirical error within this share of the exact error shows it.
_NEAR = 0.2


def claims(settings: AnglesSettings, results: Results) -> list[Claim]:
    """Judge Section 3 of the paper."""
    found = curves(settings, results)
    return [_ends(found), _smallest(found), _ranges(found), _draws(found)]


def _ends(found: Curves) -> Claim:
    named = {curve.name: curve for curve in found.curves}
    zeros = {name: (named[name].exact[0] <= ROUNDING, named[name].exact[-1] <= ROUNDING) for name in _EXACT}
    hits = [zero == said for name in _EXACT for zero, said in zip(zeros[name], _EXACT[name], strict=True)]
    texts = [f"{name}: {_where(*zeros[name])}" for name in _EXACT]
    return Claim(
        claim="Trigonometric features are exact at θ = 0, FAVOR+ at θ = π, and the angular hybrid at both (Section 3).",
        paper="zero at one end, at both for the hybrid",
        ours=", ".join(texts),
        hits=hits,
        cases="ends",
        sentence=f"The exact relative error is zero where the paper says in {sum(hits)} of {len(hits)} cases "
        f"({'; '.join(texts)}).",
    )


def _where(at_zero: bool, at_pi: bool) -> str:
    ends = [end for end, zero in (("0", at_zero), ("π", at_pi)) if zero]
    return " and ".join(ends) or "neither end"


def _smallest(found: Curves) -> Claim:
    largest = {curve.name: curve.largest for curve in found.curves}
    wins = [largest["angular hybrid"] < largest[name] for name in _RIVALS]
    texts = ", ".join(f"{number(largest[name])} ({name})" for name in ("angular hybrid", *_RIVALS))
    return Claim(
        claim="The angular hybrid has a smaller largest relative error than the other estimators (Section 4.1).",
        paper="smallest",
        ours=texts,
        hits=wins,
        cases="comparisons",
        matching="equal width",
        sentence=_about_maxima(found),
    )


def _ranges(found: Curves) -> Claim:
    names = list(dict.fromkeys(curve.name for curve, _, _ in found.winners()))
    return Claim(
        claim="Which estimator is the most accurate at which angle, maps that came after the paper included?",
        paper="—",
        ours=", ".join(names),
        matching="equal width",
        sentence=_about_ranges(found),
    )


def _draws(found: Curves) -> Claim:
    ratios = [ratio for ratio, _, _ in _ratios(found)]
    return Claim(
        claim=f"Empirical errors of {found.settings.draws:,} draws show the exact errors (as in Figures 2 and 5).",
        paper="shown as the errors",
        ours=f"{min(ratios):.2f} to {max(ratios):.2f} of the exact errors",
        hits=[abs(ratio - 1) <= _NEAR for ratio in ratios],
        cases="errors",
        criterion=f"within {_NEAR:.0%}",
        sentence=_about_draws(found),
    )


def _about_maxima(found: Curves) -> str:
    ordered = sorted(found.curves, key=lambda curve: curve.largest)
    best, (free, second) = ordered[0], [curve for curve in ordered if not curve.fitted][:2]
    text = f"{_capital(best.called)} has the smallest maximal error, {_peak(found, best)}"
    if best.fitted:
        text += (
            f", but it was fitted to these very pairs; of the estimators that see no data, {free.called} "
            f"has the smallest, {_peak(found, free)}"
        )
    tie = math.isclose(free.largest, second.largest, rel_tol=TIE)
    rival = "has the same" if tie else f"follows with {number(second.largest)}"
    return f"{text}, with {free.flops:,} FLOPs per vector; {second.called} {rival} and {second.flops:,}."


def _about_ranges(found: Curves) -> str:
    ranges = found.winners()
    if len(ranges) == 1:
        return f"{_capital(ranges[0][0].called)} has the smallest error at every angle between 0 and π."
    texts = [f"{curve.called} from {angle_text(start)} to {angle_text(end)}" for curve, start, end in ranges]
    return f"The smallest error by angle: {', '.join(texts)}."


def _about_draws(found: Curves) -> str:
    draws = f"{found.settings.draws:,} draws"
    ratios = _ratios(found)
    ratio, name, angle = min(ratios)
    if ratio > 1 - _NEAR:
        largest = max(abs(ratio - 1) for ratio, _, _ in ratios)
        return f"The errors seen in {draws} lie within {largest:.0%} of the exact errors."
    share = f"{ratio:.0%}" if ratio > 0.01 else "less than 1%"
    return (
        f"In {draws} the error of {name} at θ={angle} looks {share} as large as it is: "
        "the rest comes from estimates too rare to be seen."
    )


def _ratios(found: Curves) -> list[tuple[float, str, str]]:
    """Return empirical over exact error, estimator and angle, wherever the estimator is not exact."""
    return [
        (empirical / exact, curve.called, angle_text(angle))
        for curve in found.curves
        for angle, exact, empirical in zip(
            found.sampled_angles, found.exact_where_sampled(curve), curve.empirical, strict=True
        )
        if exact > ROUNDING
    ]


def _capital(text: str) -> str:
    """Put the first letter in upper case and leave the rest as it is."""
    return text[0].upper() + text[1:]


def _peak(found: Curves, curve: Curve) -> str:
    return f"{number(curve.largest)} at θ={angle_text(found.peak(curve))}"


# Figure of relative errors over the angle.


def figure(settings: AnglesSettings, results: Results) -> Figure:
    """Draw errors over angles: lines are exact, dots come from draws; the strip below names the best estimators."""
    s, found = settings, curves(settings, results)
    drawing = canvas(11, 6.6)
    axes, strip = drawing.subplots(2, 1, sharex=True, height_ratios=[22, 1])
    for curve in sorted(found.curves, key=lambda curve: -curve.largest):
        _draw_curve(axes, found, curve)
    _style(axes, found)
    axes.set_title(
        f"Softmax kernel, x and y of length {s.radius:g} in {s.dim} dimensions, feature width ≈ {s.features}",
        loc="left",
        size=10.5,
        color=GREY,
    )
    axes.annotate(_headline(found), (0, 1), (0, 26), "axes fraction", "offset points", weight="bold", size=15)
    _draw_strip(strip, found)
    bare((axes, strip), grid=False)
    return drawing


def _style(axes: Axes, found: Curves) -> None:
    axes.set_yscale("log")
    axes.set_ylim(*_limits(found))
    axes.set_ylabel("relative error  ε = √MSE / K")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(which="major", color="#e2e2e2", linewidth=0.7)
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(1.0, 1.02),
        frameon=False,
        title="by largest error",
        title_fontproperties={"weight": "bold"},
        alignment="left",
        labelspacing=0.8,
    )
    axes.text(1.02, 0.0, _note(found), transform=axes.transAxes, size=8.5, color=GREY, linespacing=1.4)


def _note(found: Curves) -> str:
    lines = (
        "Lines: exact, iid projections.",
        f"Dots: {found.settings.draws:,} draws, ± one",
        "standard error. They lie below",
        "their line where rarer draws",
        "make up the error.",
        "An estimator is exact where",
        "its line leaves below.",
    )
    return "\n".join(lines)


def _draw_curve(axes: Axes, found: Curves, curve: Curve) -> None:
    colour, fitted = COLOURS[curve.name], ", fitted" if curve.fitted else ""
    axes.plot(
        found.angles,
        [max(value, ROUNDING) for value in curve.exact],
        color=colour,
        linewidth=2.6 if "hybrid" in curve.name else 1.7,
        linestyle="--" if curve.fitted else "-",
        label=f"{curve.name}{fitted}\nm = {curve.n_projections}, max {number(curve.largest)}",
    )
    exact = found.exact_where_sampled(curve)
    columns = zip(found.sampled_angles, exact, curve.empirical, curve.standard_error, strict=True)
    seen = [(angle, value, bar) for angle, known, value, bar in columns if min(known, value) > ROUNDING]
    angles, values, bars = zip(*seen, strict=True)
    # A log scale has no 0.
    lower = [min(bar, 0.9 * value) for value, bar in zip(values, bars, strict=True)]
    axes.plot(angles, values, color=colour, linewidth=0.8, linestyle=":", alpha=0.8)
    axes.errorbar(
        angles,
        values,
        yerr=(lower, bars),
        fmt="o",
        color=colour,
        markersize=4.5,
        markeredgecolor="white",
        markeredgewidth=0.6,
        elinewidth=0.9,
        zorder=3,
    )


def _limits(found: Curves) -> tuple[float, float]:
    """Return limits that show all dots, but not the descent of lines that end at 0."""
    inner = [value for curve in found.curves for value in curve.empirical[1:-1] if value > ROUNDING]
    return min(inner) / 2, 1.5 * max(max(inner), max(curve.largest for curve in found.curves))


def _draw_strip(strip: Axes, found: Curves) -> None:
    for curve, start, end in found.winners():
        strip.axvspan(start, end, color=COLOURS[curve.name], linewidth=0)
        if end - start > 0.12:
            strip.text(
                (start + end) / 2,
                0.45,
                curve.name,
                color="white",
                size=9,
                weight="bold",
                ha="center",
                va="center",
            )
    strip.set_yticks([0.5], ["smallest ε"])
    strip.set_ylim(0, 1)
    strip.set_xlim(-0.01, 1.01)
    strip.set_xticks(
        [k / 8 for k in range(9)], ["0", "π/8", "π/4", "3π/8", "π/2", "5π/8", "3π/4", "7π/8", "π"]
    )
    strip.set_xlabel("angle θ between x and y")


def _headline(found: Curves) -> str:
    names = {curve.name for curve, _, _ in found.winners()}
    if len(names) == 1:
        name = names.pop()
        return f"{_capital(name)} is the most accurate at every angle"
    return "Which estimator is the most accurate depends on the angle"


EXPERIMENT = Experiment(
    name="angles",
    title="Relative error of every estimator over the angle",
    source="Section 3 (Lemma 3.4)",
    full=AnglesSettings(),
    quick=AnglesSettings(dim=16, features=128, draws=200),
    parts=parts,
    tables=tables,
    claims=claims,
    figure=figure,
)
