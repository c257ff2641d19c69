"""Surfaces of the MSE over angle and length, above slices."""

from __future__ import annotations

import math
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hrf_paper.experiments.experiment import Results
from hrf_paper.experiments.mse_surface.claims import called
from hrf_paper.experiments.mse_surface.measure import NAMES, Settings, ends, radii
from hrf_paper.experiments.shared.draws import fractions
from hrf_paper.experiments.shared.plotting import COLOURS, GREY, angle_axis, bare, canvas, headline, log_axis

__all__ = ["figure"]


def figure(settings: Settings, results: Results) -> Figure:
    """Draw surfaces on a logarithmic scale, lengths mirrored at 0, above slices with the draws."""
    drawing = canvas(13, 8.4)
    whole = [called(name) for name in NAMES if all(map(all, ends(results, name)))]
    headline(
        drawing,
        f"Exact at both ends of the angle: {' and '.join(whole) or 'none'}",
        f"MSE of estimates of exp(xᵀy), ‖x‖ = ‖y‖ = r, m = {settings.n_projections}, "
        f"n = {settings.n_coefficient_projections}. Above: exact, negative lengths mirror positive ones, grey: "
        f"r = {settings.largest_radius:g}.\nBelow: slices, exact (lines) and from {settings.draws:,} draws (dots)",
    )
    upper = [drawing.add_subplot(2, 3, k + 1, projection="3d") for k in range(3)]
    lower = drawing.subplots(2, 3)
    for blank in lower[0]:
        blank.remove()
    for axes, name in zip(upper, NAMES, strict=True):
        _draw_surface(axes, settings, results[name]["exact"], name)
    for axes, name in zip(lower[1], NAMES, strict=True):
        _draw_slices(axes, settings, results[name]["drawn"], name)
    lower[1][0].set_ylabel("MSE")
    bare(lower[1])
    return drawing


def _draw_slices(axes: Axes, settings: Settings, slices: dict[str, Any], name: str) -> None:
    angles = fractions(16)
    for shade, radius in zip((0.45, 0.7, 1.0), settings.drawn_radii, strict=False):
        drawn = slices[f"{radius:g}"]
        exact, points = (
            [value if value > 1e-9 else math.nan for value in drawn[kind]] for kind in ("exact", "seen")
        )
        style: dict[str, Any] = {"color": COLOURS[name], "alpha": shade}
        axes.plot(angles, exact, linewidth=2, label=f"r = {radius:g}", **style)
        axes.plot(angles, points, "o", markersize=4, mec="white", mew=0.5, **style)
    axes.set_ylim(1e-5, 2e5)
    log_axis(axes)
    angle_axis(axes)
    axes.legend(frameon=False, fontsize=9, loc="lower center", ncols=3, columnspacing=1)


def _draw_surface(axes: Any, settings: Settings, exact: list[list[float]], name: str) -> None:
    lengths = np.array([-r for r in reversed(radii(settings))] + radii(settings))
    rows = torch.tensor([*reversed(exact), *exact], dtype=torch.float64)
    floor = -4.0
    height = rows.log10().clamp(min=floor).numpy()
    theta = np.array(fractions(settings.n_angles))
    grid = np.meshgrid(theta, lengths)
    axes.plot_surface(
        *grid, height, cmap=matplotlib.colormaps["viridis"], linewidth=0, antialiased=True, alpha=0.9
    )
    axes.plot(theta, lengths[-1] * np.ones_like(theta), height[-1], color=GREY, linewidth=3)
    axes.set_title(name, size=12, color=COLOURS[name], weight="bold", y=1.0)
    axes.set_xticks([0, 0.5, 1], ["0", "π/2", "π"])
    axes.set_xlabel("θ", labelpad=-2)
    axes.set_ylabel("length r", labelpad=-2)
    axes.set_zlabel("log₁₀ MSE", labelpad=-2)
    axes.tick_params(labelsize=8, pad=0, labelcolor=GREY)
    axes.view_init(elev=24, azim=-58)
    axes.set_box_aspect(None, zoom=0.88)
