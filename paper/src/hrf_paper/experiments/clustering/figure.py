"""MSE over the number of features, on four sets."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hrf_paper.experiments.clustering.measure import Settings
from hrf_paper.experiments.clustering.printed import ESTIMATORS, PRINTED, SETS
from hrf_paper.experiments.clustering.tables import ALL_ESTIMATORS, cells
from hrf_paper.experiments.experiment import Results
from hrf_paper.experiments.shared.plotting import GREY, bare, canvas, headline, log_axis

__all__ = ["figure"]

_PALETTE = ("#009E73", "#D55E00", "#0072B2", "#E69F00", "#CC79A7", "#000000")
_COLOURS = dict(zip(ALL_ESTIMATORS, _PALETTE, strict=True))


def figure(settings: Settings, results: Results) -> Figure:
    """Draw one panel per set: the printed ranges as bars, our means as lines."""
    found = cells(settings, results)
    count = sum(cell.holds for cell in found)
    errors = [results[f"{name}, exact"]["m · MSE"] for name in SETS]
    better = sum(row["second moments"] < row["Hybrid-Cluster"] for row in errors)
    drawing = canvas(13, 8.6)
    headline(
        drawing,
        f"Clustered data: {count} of {len(found)} printed ranges hold our mean; second moments do better on {better} "
        f"of {len(SETS)} sets",
        f"Mean squared error over m. Bars: the paper's [min, max] of 20 repetitions. Lines and dots: our mean of "
        f"{settings.repetitions}. Dashed: variants that are not in the paper",
    )
    panels = drawing.subplots(2, 2, sharex=True, sharey=True)
    for axes, name in zip(panels.flat, SETS, strict=True):
        _draw_set(axes, settings, results, name)
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


def _draw_set(axes: Axes, settings: Settings, results: Results, name: str) -> None:
    for place, (key, colour) in enumerate(_COLOURS.items()):
        means = [results[f"{name}, m = {m}"][key]["mean"] for m in settings.sizes]
        style = "o-" if key in ESTIMATORS else "--"
        axes.plot(
            settings.sizes, means, style, color=colour, linewidth=1.8, markersize=5, mec="white", label=key
        )
        if key in ESTIMATORS:
            for m in settings.sizes:
                low, high = PRINTED[name][m][ESTIMATORS.index(key)]
                axes.plot([m + 2.2 * (place - 1)] * 2, [low, high], color=colour, alpha=0.28, linewidth=5)
