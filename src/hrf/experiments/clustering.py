"""Complex exponential estimators for clustered data beside the paper's table, and three that it does not have.

All estimators have m features: "FAVOR+" is the single exponential here, as in the numbers of the paper, and the
trigonometric map has m rows ω. Variants beyond the paper are of the same kind: A from the second moments of the
clusters instead of their centres, the same with imaginary entries, and features of the residuals of the centres.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Generator, Tensor

import hrf
from hrf import fitting
from hrf.experiments.clustered_data import clustered_data
from hrf.experiments.clustering_table import ESTIMATORS, PRINTED, SETS, SIZES
from hrf.experiments.experiment import Claim, Experiment, Part, Results, Table
from hrf.experiments.plotting import GREY, bare, canvas, headline, log_axis
from hrf.experiments.words import number_text

__all__ = ["EXPERIMENT", "Settings"]

_BEYOND = ("second moments", "complex", "shifted")
_COLOURS = dict(
    zip(
        (*ESTIMATORS, *_BEYOND),
        ("#009E73", "#D55E00", "#0072B2", "#E69F00", "#CC79A7", "#000000"),
        strict=True,
    )
)
_UNLIMITED = 1e9  # the paper does not limit the entries of A

Build = Callable[[int, Generator], hrf.FeatureMap]  # from m


@dataclass(frozen=True)
class Settings:
    """``stride`` thins the points over whose pairs the error is taken; centres are of all points."""

    dim: int = 50
    n_points: int = 1000
    sizes: tuple[int, ...] = SIZES
    repetitions: int = 20
    stride: int = 2
    seed: int = 0


@dataclass(frozen=True)
class _Fitted:
    """A data set, thinned, and what estimates on it."""

    x: Tensor
    y: Tensor
    kernel: Tensor
    s: list[float]
    entries: tuple[float, float]
    builders: dict[str, Build]


def parts(settings: Settings) -> dict[str, Part]:
    """Exact errors a set, then one a set and m."""
    work: dict[str, Part] = {f"{name}, exact": partial(_exact, settings, name) for name in SETS}
    work |= {f"{name}, m = {m}": partial(_drawn, settings, name, m) for name in SETS for m in settings.sizes}
    return work


@lru_cache(maxsize=len(SETS))
def _fitted(settings: Settings, name: str) -> _Fitted:
    s, variance = SETS[name]
    generator = Generator().manual_seed(len(SETS) * settings.seed + list(SETS).index(name))  # one a set
    x, y = clustered_data(settings.dim, settings.n_points, variance, s, generator)
    sides = [fitting.kmeans(points, 2, seed=settings.seed) for points in (x, y)]
    centers = sides[0].centers, sides[1].centers
    of_clusters = [
        fitting.moments_by_cluster(points, side.labels, 2) for points, side in zip((x, y), sides, strict=True)
    ]
    moments = fitting.pair_moments(*of_clusters)
    matrix = fitting.matrix_from_centers(*centers, "real-diagonal", limit=_UNLIMITED)
    residuals = fitting.fit_residuals(x, y, (2, 2), "real-diagonal", seed=settings.seed)
    options: dict[str, Any] = {"antithetic": False, "projection": "iid"}

    def by_pairs(a: Tensor) -> Build:
        def build(m: int, generator: Generator) -> hrf.FeatureMap:
            inner = hrf.Exponential(
                settings.dim, n_projections=m, matrix=a.flatten(0, 1), heads=4, generator=generator, **options
            )
            return hrf.ClusteredHybrid(*centers, base="paper", feature_map=inner).float()

        return build

    def shifted(m: int, generator: Generator) -> hrf.FeatureMap:
        inner = hrf.Exponential(
            settings.dim, n_projections=m, matrix=residuals.matrix, generator=generator, **options
        )
        own = residuals.queries.centers, residuals.keys.centers
        return hrf.ClusteredHybrid(*own, base="shifted", feature_map=inner, metric=residuals.metric).float()

    builders: dict[str, Build] = {
        "Hybrid-Cluster": by_pairs(matrix),
        "FAVOR+": lambda m, g: hrf.Exponential(settings.dim, n_projections=m, generator=g, **options),
        "Trigonometric": lambda m, g: hrf.Trigonometric(
            settings.dim, n_projections=m, projection="iid", generator=g
        ),
        "second moments": by_pairs(fitting.fit_matrix(moments, "real-diagonal")),
        "complex": by_pairs(fitting.fit_matrix(moments, "complex-diagonal")),
        "shifted": shifted,
    }
    reached = (matrix * centers[0].unsqueeze(1) + centers[1] / matrix).square().sum(-1)
    x, y = x[:: settings.stride].float(), y[:: settings.stride].float()
    return _Fitted(
        x,
        y,
        hrf.kernels.softmax(x, y),
        s=sorted(reached.flatten().tolist(), reverse=True),
        entries=(float(matrix.min()), float(matrix.max())),
        builders=builders,
    )


def _exact(settings: Settings, name: str) -> dict[str, Any]:
    fitted = _fitted(settings, name)
    x, y = fitted.x[::2], fitted.y[::2]
    errors = {key: float(build(1, Generator()).mse(x, y).mean()) for key, build in fitted.builders.items()}
    return {"s": fitted.s, "entries of A": fitted.entries, "m · MSE": errors}


def _drawn(settings: Settings, name: str, m: int) -> dict[str, Any]:
    fitted = _fitted(settings, name)
    found = {}
    for key, build in fitted.builders.items():
        generator = Generator().manual_seed(settings.seed)
        phi = build(m, generator)
        errors = []
        for _ in range(settings.repetitions):
            gap = phi.redraw_(generator).estimate(fitted.x, fitted.y).sub_(fitted.kernel)
            errors.append(float(gap.square_().mean(dtype=torch.float64)))
        found[key] = {"low": min(errors), "mean": sum(errors) / len(errors), "high": max(errors)}
    return found


def _cells(
    settings: Settings, results: Results
) -> list[tuple[str, int, str, tuple[float, float], dict[str, float]]]:
    """Set, m, estimator, the printed range and ours."""
    return [
        (name, m, key, printed, results[f"{name}, m = {m}"][key])
        for name in SETS
        for m in settings.sizes
        for key, printed in zip(ESTIMATORS, PRINTED[name][m], strict=True)
    ]


def _inside(printed: tuple[float, float], value: float) -> bool:
    # The table has four decimals.
    return printed[0] - 5e-5 <= value <= printed[1] + 5e-5


def tables(settings: Settings, results: Results) -> list[Table]:
    """m · MSE of all estimators; then the whole table of the paper beside ours."""
    summary = [
        (
            name,
            " ".join(f"{value:.2f}".lstrip("0") for value in results[f"{name}, exact"]["s"]),
            *(number_text(results[f"{name}, exact"]["m · MSE"][key]) for key in _COLOURS),
        )
        for name in SETS
    ]
    rows = [
        (
            name,
            f"{m}",
            key,
            f"[{printed[0]:.4f}, {printed[1]:.4f}]",
            f"[{ours['low']:.4f}, {ours['high']:.4f}]",
            f"{ours['mean']:.4f}",
            "yes" if _inside(printed, ours["mean"]) else "no",
        )
        for name, m, key, printed, ours in _cells(settings, results)
    ]
    header = ("data", "m", "estimator", "paper [min, max]", "ours [min, max]", "our mean", "mean inside")
    return [
        Table("m · MSE, exact, mean over pairs", ("data", "s", *_COLOURS), summary),
        Table(f"MSE over {settings.repetitions} repetitions", header, rows, long=True),
    ]


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Of Appendix H."""
    cells = _cells(settings, results)
    inside = [_inside(printed, ours["mean"]) for *_, printed, ours in cells]
    outside = [
        f"{key} at m = {m} of {name} ({ours['mean']:.4f}, printed [{printed[0]:.4f}, {printed[1]:.4f}])"
        for (name, m, key, printed, ours), good in zip(cells, inside, strict=True)
        if not good
    ]
    share = sum(inside) / len(inside)
    exact = {name: results[f"{name}, exact"]["m · MSE"] for name in SETS}
    entries = {name: results[f"{name}, exact"]["entries of A"] for name in SETS}
    gains = {
        rival: [exact[name][rival] / exact[name]["Hybrid-Cluster"] for name in SETS]
        for rival in ESTIMATORS[1:]
    }
    wins = [
        results[f"{name}, m = {m}"]["Hybrid-Cluster"]["mean"]
        < min(results[f"{name}, m = {m}"][rival]["mean"] for rival in ESTIMATORS[1:])
        for name in SETS
        for m in settings.sizes
    ]
    texts = [f"{min(gain):.1f} to {max(gain):.1f}" for gain in gains.values()]
    best = {name: min(_COLOURS, key=lambda key: exact[name][key]) for name in SETS}
    rising = sum(
        results[f"{name}, m = {b}"]["FAVOR+"]["mean"] > results[f"{name}, m = {a}"]["FAVOR+"]["mean"]
        for name in SETS
        for a, b in zip(settings.sizes, settings.sizes[1:], strict=False)
    )
    return [
        Claim(
            claim=f"Minimal and maximal MSE over {settings.repetitions} repetitions (table of Appendix H.3).",
            paper=f"{len(cells)} ranges",
            ours=f"our mean lies in {sum(inside)} of them ({share:.0%})",
            verdict="holds" if share >= 0.8 else "partly" if share >= 0.5 else "fails",
            matching="equal number of features m",
            sentence=f"With queries of norm 0.1 and keys of norm 1 our mean MSE lies in {sum(inside)} of the "
            f"{len(cells)} printed ranges"
            + (f"; outside: {'; '.join(outside)}." if outside else ".")
            + " Entries of A are largest where a coordinate of a centre is near 0, and the rule loses most there: "
            + ", ".join(
                f"up to {largest:.0f} on {name.split(',')[0]}" for name, (_, largest) in entries.items()
            )
            + ", where √10 is typical.",
        ),
        Claim(
            claim="Estimators adapted to clusters consistently provide notable accuracy gains (Appendix H.1).",
            paper="for all variants",
            ours=f"in {sum(wins)} of {len(wins)} cases",
            verdict="holds" if all(wins) else "partly",
            matching="equal number of features m",
            sentence=f"The hybrid has the smaller mean MSE in {sum(wins)} of {len(wins)} cases; that of FAVOR+ is "
            f"{' times its exact MSE, that of trigonometric features '.join(texts)} times.",
        ),
        Claim(
            claim="Real diagonal A from the centres of clusters (Appendix H.3), or another rule?",
            paper="—",
            ours=", ".join(f"{name.split(',')[0]}: {best[name]}" for name in SETS),
            verdict="beyond",
            matching="equal number of features m",
            sentence="The smallest exact m · MSE of all six is that of "
            + ", ".join(
                f"{best[name]} on {name.split(',')[0]} ({number_text(exact[name][best[name]])} against "
                f"{number_text(exact[name]['Hybrid-Cluster'])} of the paper's rule)"
                for name in SETS
            )
            + ".",
        ),
        Claim(
            claim="The empirical error of FAVOR+ is not perfectly monotonic in m (Figure 6).",
            paper="not monotonic",
            ours=f"{rising} rises",
            verdict="holds" if rising else "fails",
            sentence=f"From one m to the next the mean MSE of FAVOR+ over {settings.repetitions} repetitions rises "
            f"{rising} times, by chance: its exact MSE is proportional to 1/m.",
        ),
    ]


def figure(settings: Settings, results: Results) -> Figure:
    """A panel a set: the printed ranges as bars, our means as lines."""
    cells = _cells(settings, results)
    count = sum(_inside(printed, ours["mean"]) for *_, printed, ours in cells)
    drawing = canvas(13, 8.6)
    headline(
        drawing,
        f"Clustered data: {count} of {len(cells)} printed ranges hold our mean; second moments do better still",
        f"Mean squared error over m. Bars: the paper's [min, max] of 20 repetitions. Lines and dots: our mean of "
        f"{settings.repetitions}. Dashed: variants that are not in the paper",
    )
    panels = drawing.subplots(2, 2, sharex=True, sharey=True)
    for axes, name in zip(panels.flat, SETS, strict=True):
        for place, key in enumerate(_COLOURS):
            means = [results[f"{name}, m = {m}"][key]["mean"] for m in settings.sizes]
            style = "o-" if key in ESTIMATORS else "--"
            axes.plot(
                settings.sizes,
                means,
                style,
                color=_COLOURS[key],
                linewidth=1.8,
                markersize=5,
                mec="white",
                label=key,
            )
            if key in ESTIMATORS:
                for m in settings.sizes:
                    low, high = PRINTED[name][m][ESTIMATORS.index(key)]
                    shift = 2.2 * (place - 1)
                    axes.plot([m + shift] * 2, [low, high], color=_COLOURS[key], alpha=0.28, linewidth=5)
        axes.set_title(f"s = {name}", size=11)
    log_axis(panels[0, 0])
    for axes in panels[1]:
        axes.set_xticks(settings.sizes, [f"{m}" for m in settings.sizes])
        axes.set_xlabel("number of features m")
    for axes in panels[:, 0]:
        axes.set_ylabel("MSE")
    bare(panels.flat)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False, labelcolor=GREY)
    return drawing


EXPERIMENT = Experiment(
    name="clustering",
    title="Estimators for clustered data",
    source="Appendix H (Figure 6 and its table)",
    full=Settings(),
    quick=Settings(n_points=100, sizes=(20, 50), repetitions=20, stride=1),
    parts=parts,
    tables=tables,
    claims=claims,
    figure=figure,
)
