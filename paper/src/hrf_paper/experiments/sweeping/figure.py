"""Delivered share over training with bands, and against the FLOPs of the encoder."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hrf_paper.experiments.experiment import Results
from hrf_paper.experiments.shared.plotting import GREY, bare, canvas, headline
from hrf_paper.experiments.sweeping.measure import Settings, key
from hrf_paper.experiments.sweeping.shares import curves, share

__all__ = ["figure"]

_COLOURS = {
    "exact": "#000000",
    "FAVOR+ 256": "#D55E00",
    "HRF-A (8,8)": "#009E73",
    "Trig 256": "#0072B2",
    "uniform": "#CC79A7",
    "blind": "#888888",
}
_OTHER = "#E69F00"


def figure(settings: Settings, results: Results) -> Figure:
    """Draw curves on the left, and quality against cost on the right."""
    drawing = canvas(14.0, 6.2)
    shares = {name: share(settings, results, name) for name in settings.methods}
    finding = ", ".join(
        f"{name} {shares[name].mean:.0f} %"
        for name in ("exact", "HRF-A (8,8)", "FAVOR+ 256")
        if name in shares
    )
    tuned = f", {settings.tuned_steps} more after maps took the place of exact attention"
    tuned = tuned if settings.tuned_steps else ""
    headline(
        drawing,
        f"Balls delivered on unseen starts: {finding}",
        f"two arms, 12 balls, {settings.training.steps:,} steps of implicit behaviour cloning{tuned}; "
        f"trainings per method: {settings.runs * len(settings.learning_rates)}\n"
        f"left: {settings.training.judged_episodes} episodes per point, band from the worst to the best training; "
        f"right: {settings.episodes} other episodes per training",
    )
    left, right = drawing.subplots(1, 2, sharey=True, width_ratios=(1.1, 1))
    _draw_curves(left, settings, results)
    _draw_costs(right, settings, results)
    left.set_ylabel("delivered, % of the balls")
    left.set_ylim(-2, 102)
    bare((left, right))
    return drawing


def _draw_curves(axes: Axes, settings: Settings, results: Results) -> None:
    for name in settings.methods:
        steps, found = curves(settings, results, name)
        values = np.array(found)
        colour = _COLOURS.get(name, _OTHER)
        axes.plot(steps, values.mean(0), color=colour, linewidth=2, label=name)
        axes.fill_between(steps, values.min(0), values.max(0), color=colour, alpha=0.1, linewidth=0)
    axes.set_xlabel("steps of training")
    axes.legend(frameon=False, fontsize=9, loc="lower left", ncols=2)


def _draw_costs(axes: Axes, settings: Settings, results: Results) -> None:
    axes.set_xlabel("FLOPs of the encoder per decision, millions")
    for place, name in enumerate(name for name in settings.methods if name != "blind"):
        found = share(settings, results, name)
        flops = results[key(name, 0, settings.learning_rates[0])]["flops"]["ours"]["encoder"] / 1e6
        colour = _COLOURS.get(name, _OTHER)
        axes.plot([flops, flops], [min(found.values), max(found.values)], color=colour, linewidth=1.5)
        axes.plot([flops], [found.mean], "o", color=colour, markersize=8)
        axes.annotate(
            name,
            (flops, max(found.values) if place % 2 == 0 else min(found.values)),
            xytext=(0, 5) if place % 2 == 0 else (0, -5),
            textcoords="offset points",
            va="bottom" if place % 2 == 0 else "top",
            ha="center",
            color=colour,
            size=9,
        )
    if "blind" in settings.methods:
        blind = share(settings, results, "blind").mean
        axes.axhline(blind, color=GREY, linewidth=1, linestyle=":")
        axes.text(
            0.01, blind + 1, f"blind {blind:.0f} %", transform=axes.get_yaxis_transform(), color=GREY, size=9
        )
    axes.margins(x=0.2)
