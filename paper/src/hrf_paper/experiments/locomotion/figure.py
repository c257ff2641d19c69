"""Training curves with bands, returns against FLOPs, and frames with what was masked out in red."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hrf_paper.experiments.experiment import Results
from hrf_paper.experiments.locomotion.measure import HYBRID, Settings
from hrf_paper.experiments.locomotion.outcomes import Frame, curves, frames, outcome
from hrf_paper.experiments.shared.plotting import GREY, bare, canvas, headline

__all__ = ["figure"]

_COLOURS = {
    "exact": "#000000",
    "FAVOR+ 256": "#D55E00",
    "FAVOR+ small": "#E69F00",
    HYBRID: "#009E73",
    "Trig small": "#0072B2",
    "uniform": "#CC79A7",
    "blind": "#999999",
}
_CROWD = ("FAVOR+ small", HYBRID, "Trig small")


def figure(settings: Settings, results: Results) -> Figure:
    """Draw two panels, and the frames below them."""
    hybrid, baseline = (outcome(settings, results, name) for name in (HYBRID, "FAVOR+ 256"))
    drawing = canvas(13.5, 8.4)
    headline(
        drawing,
        f"{HYBRID} returns {hybrid.mean:.2f} and FAVOR+ 256 {baseline.mean:.2f}, "
        f"for {baseline.flops / hybrid.flops:.1f} times the FLOPs",
        f"Laikago on stepping stones; runs per method: {settings.runs}; curves: unseen fields while training, bands "
        "from the worst run to the best;\nright: unseen fields of 4 m after training, one dot per run; below: front "
        f"and belly camera of {HYBRID}, masked patches in red",
    )
    seen = frames(results)
    grid = drawing.add_gridspec(2, 2 * len(seen), height_ratios=(3.2, 1))
    left = drawing.add_subplot(grid[0, : len(seen)])
    right = drawing.add_subplot(grid[0, len(seen) :])
    _draw_curves(left, settings, results)
    _draw_costs(right, settings, results)
    bare((left, right))
    for place, frame in enumerate(seen):
        _draw_frame(drawing.add_subplot(grid[1, 2 * place : 2 * place + 2]), frame)
    return drawing


def _draw_curves(axes: Axes, settings: Settings, results: Results) -> None:
    for method in settings.methods:
        points = curves(settings, results, method)
        if not len(points):
            continue
        iterations, returns = points[0, :, 0], points[..., 1]
        colour = _COLOURS[method]
        axes.plot(iterations, returns.mean(0), color=colour, linewidth=2, label=method)
        axes.fill_between(iterations, returns.min(0), returns.max(0), color=colour, alpha=0.1, linewidth=0)
    axes.axvline(settings.training.rehearsals, color=GREY, linewidth=1, linestyle=":")
    axes.set_xlabel("iteration; walks in the simulation from the dotted line on")
    axes.set_ylabel("return")
    axes.legend(frameon=False, fontsize=9, ncols=2)


def _draw_costs(axes: Axes, settings: Settings, results: Results) -> None:
    """Draw FLOPs on a logarithmic axis; the blind policy has none, and is a line."""
    axes.set_xscale("log")
    axes.set_xlabel("FLOPs per decision")
    axes.set_ylabel("return on unseen fields")
    found = {method: outcome(settings, results, method) for method in settings.methods}
    axes.axhline(found["blind"].mean, color=_COLOURS["blind"], linestyle=":")
    axes.text(
        0.01, found["blind"].mean, "blind", transform=axes.get_yaxis_transform(), color=GREY, va="bottom"
    )
    shown = [name for name in found if name != "blind" and found[name].returns]
    # Methods of the hybrid's FLOPs stand above each other, and so do their labels.
    crowd = sorted((name for name in shown if name in _CROWD), key=lambda name: found[name].mean)
    for name in shown:
        o, colour = found[name], _COLOURS[name]
        axes.plot([o.flops] * len(o.returns), o.returns, "o", color=colour, alpha=0.6)
        axes.plot([o.flops], [o.mean], "_", color=colour, markersize=22, markeredgewidth=2.5)
        x, side = (16, "left") if name in crowd or name == "uniform" else (-16, "right")
        y = 13 * (crowd.index(name) - 1) if name in crowd else 12
        axes.annotate(
            name,
            (o.flops, o.mean),
            xytext=(x, y),
            textcoords="offset points",
            ha=side,
            va="center",
            color=colour,
            size=9,
        )


def _draw_frame(axes: Axes, frame: Frame) -> None:
    from hrf_paper.locomotion.replay import masked_images

    axes.imshow(masked_images(frame.depth, frame.kept), interpolation="nearest")
    axes.set_title(f"at {frame.x:.1f} m", size=9, color=GREY)
    axes.set_axis_off()
