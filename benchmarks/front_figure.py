"""The figure of README.md, why hybrids: ``python -m benchmarks.front_figure``. All of it is in closed form.

Left: relative error over the angle between x and y, at about equal FLOPs per vector. Right: the largest error over all
angles, over the FLOPs. Written to ``docs/figures/front.png``.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hrf import AngularHybrid, FeatureMap, Positive, Trigonometric
from hrf.report import png, write

PATH = Path("docs/figures/front.png")
DIM, RADIUS = 64, 1.0
SIZES = (16, 32, 64, 128, 256, 512)  # numbers of projections
AT = 128  # of the maps on the left
COLOURS = {"trigonometric": "#0072b2", "positive (FAVOR+)": "#d55e00", "angular hybrid": "#009e73"}


def maps(m: int) -> dict[str, FeatureMap]:
    """Return one map per family: bases with m projections, and a hybrid with m/2 at about their FLOPs."""
    options: dict[str, Any] = {"projection": "iid", "seed": 0}
    hybrid = AngularHybrid(DIM, n_projections=m // 2, n_coefficient_projections=max(2, m // 8), **options)
    bases = (kind(DIM, n_projections=m, **options) for kind in (Trigonometric, Positive))
    return dict(zip(COLOURS, (*bases, hybrid), strict=True))


def relative_errors(phi: FeatureMap, angles: Tensor) -> Tensor:
    """Return √MSE/K for x and y of length `RADIUS` at some angles."""
    x, y = torch.zeros(1, DIM, dtype=torch.float64), torch.zeros(len(angles), DIM, dtype=torch.float64)
    x[0, 0] = RADIUS
    y[:, 0], y[:, 1] = RADIUS * angles.cos(), RADIUS * angles.sin()
    phi = phi.double()
    return (phi.mse(x, y)[0].clamp(min=0).sqrt() / phi.log_kernel(x, y)[0].exp()).detach()


def draw() -> Any:
    """Draw both panels; return a matplotlib figure."""
    from matplotlib.figure import Figure

    angles = torch.linspace(0, math.pi, 361, dtype=torch.float64)
    figure = Figure(figsize=(9, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, phi in maps(AT).items():
        errors = relative_errors(phi, angles)
        top = int(errors.argmax())
        left.plot(angles, errors, color=COLOURS[name], lw=2.5, label=name)
        left.plot(angles[top], errors[top], "o", color=COLOURS[name], ms=8, clip_on=False)
    for name, colour in COLOURS.items():
        each = [maps(m)[name] for m in SIZES]
        worst = [float(relative_errors(phi, angles).max()) for phi in each]
        # Both bases have the same largest error: dashes show the second.
        style = "--" if name.startswith("positive") else "-"
        right.plot([phi.flops() for phi in each], worst, "o", ls=style, color=colour, lw=2.5)
    left.set(xticks=[0, math.pi / 2, math.pi], xticklabels=["0", "π/2", "π"], ylim=(0, None))
    left.set_xlabel("angle between x and y")
    left.set_title("relative error, equal FLOPs; dots: the worst", fontsize=12, loc="left")
    right.set(xscale="log", yscale="log")
    right.set_xlabel("FLOPs per vector")
    right.set_title("worst error over all angles", fontsize=12, loc="left")
    right.set_yticks([0.1, 0.2, 0.5, 1], ["0.1", "0.2", "0.5", "1"])
    right.minorticks_off()
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#dddddd")
        axes.tick_params(labelsize=12)
        axes.xaxis.label.set_size(12)
    figure.legend(
        *left.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=13
    )
    return figure


if __name__ == "__main__":
    write(PATH, png(draw()))
