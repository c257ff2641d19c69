"""Operations and microseconds over the width."""

from __future__ import annotations

from matplotlib.figure import Figure

from hrf_paper.experiments.cost.measure import Settings, by_size, key
from hrf_paper.experiments.experiment import Results
from hrf_paper.experiments.shared.plotting import PALETTE, bare, canvas, headline, log_axis

__all__ = ["figure"]


def figure(settings: Settings, results: Results) -> Figure:
    """Draw operations and microseconds per vector over the width."""
    drawing = canvas(12, 5.4)
    every = by_size(settings, results).values()
    ratios = [part["flops"]["base"] / part["flops"]["hybrid"] for part in every]
    faster = [part["timings"]["base"] > part["timings"]["hybrid"] for part in every]
    headline(
        drawing,
        f"{min(ratios):.1f} to {max(ratios):.0f} times fewer operations than a base; faster in {sum(faster)} of "
        f"{len(faster)} cases",
        "To map one vector, m = n. Solid: angular hybrid. Dashed: base of the same width",
    )
    panels = drawing.subplots(1, 2)
    for dim, colour in zip(settings.dims, PALETTE, strict=False):
        found = [results[key(dim, size)] for size in settings.sizes]
        widths = [part["width"] for part in found]
        for name, style in (("hybrid", "o-"), ("base", "o--")):
            label = f"d = {dim}" if name == "hybrid" else None
            flops = [part["flops"][name] for part in found]
            times = [1e6 * part["timings"][name] for part in found]
            for axes, values in zip(panels, (flops, times), strict=True):
                axes.plot(
                    widths, values, style, color=colour, linewidth=2, markersize=5, mec="white", label=label
                )
    for axes, title in zip(panels, ("operations", "microseconds, measured"), strict=True):
        axes.set_xscale("log")
        axes.set_xticks(widths, [f"{width:,}" for width in widths])
        axes.minorticks_off()
        axes.set_xlabel("feature width 4m(n + 1)")
        axes.set_title(title, size=11)
        log_axis(axes)
        axes.legend(frameon=False)
    bare(panels)
    return drawing
