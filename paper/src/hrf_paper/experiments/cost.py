"""Cost of Θ(mn)-wide features by the angular hybrid and by a base: operations and seconds.

The hybrid with m rows ω and n sign bits is 4m(n + 1) wide; the base beside it has as many features, from half as
many rows. Operations are O(nd + md + mn) against O(mnd).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Generator

from hrf.advice.candidates import seconds
from hrf_paper.experiments.estimators import Estimator
from hrf_paper.experiments.experiment import Claim, Experiment, Part, Results, Table
from hrf_paper.experiments.plotting import PALETTE, bare, canvas, headline, log_axis

# Operations and seconds of the angular hybrid and of a base of the same width.

PAIRS = (64, 128, 256, 512)  # D of the paper's baselines, beside (m, n) = (D/8, 8)
PAIRED_DIMS = (64, 200, 650)
_PAIRED = "pairs of the paper"
_REPEATS = 35  # the fastest counts: other processes only ever add time


@dataclass(frozen=True)
class CostSettings:
    """m = n = each of ``sizes``; times are the best of several, for a batch of ``vectors`` vectors."""

    dims: tuple[int, ...] = (64, 256, 1024)
    sizes: tuple[int, ...] = (4, 8, 16, 32)
    vectors: int = 512
    seed: int = 0


def parts(settings: CostSettings) -> dict[str, Part]:
    """Return one part per dimension and size, and one for the paper's pairs."""
    work: dict[str, Part] = {
        key(dim, size): partial(_part, settings, dim, size)
        for dim in settings.dims
        for size in settings.sizes
    }
    return work | {_PAIRED: _pairs}


def key(dim: int, size: int) -> str:
    """Return the name of a part."""
    return f"d = {dim}, m = n = {size}"


def by_size(settings: CostSettings, results: Results) -> dict[tuple[int, int], dict[str, Any]]:
    """Return the parts by dimension and size."""
    return {(dim, size): results[key(dim, size)] for dim in settings.dims for size in settings.sizes}


def paired_shares(results: Results) -> list[float]:
    """Return FLOPs of hybrids over FLOPs of bases for all of the paper's pairs and dimensions."""
    return [share for name, row in results[_PAIRED].items() if name != "timings" for share in row]


def _part(settings: CostSettings, dim: int, size: int) -> dict[str, Any]:
    generator = Generator().manual_seed(settings.seed)
    x = torch.randn(settings.vectors, dim, generator=generator) / dim**0.5
    hybrid = Estimator("angular hybrid", dim, size, size)(None, generator)
    base = Estimator("FAVOR+", dim, hybrid.feature_dim // 2)(None, generator)
    maps = {"hybrid": hybrid, "base": base}
    return {
        "width": hybrid.feature_dim,
        "flops": {name: phi.flops() for name, phi in maps.items()},
        "formula": 2 * dim * 2 * size + 8 * size + size + 4 * size * size,  # 2d(m + n) + 8m + n + 4mn
        "timings": {name: seconds(phi, x, repeats=_REPEATS) for name, phi in maps.items()},
    }


def _pairs() -> dict[str, Any]:
    """Divide the FLOPs of the hybrid with m·n = D by the FLOPs of the base with D projections."""
    return {
        f"d = {dim}": [
            Estimator("angular hybrid", dim, count // 8, 8).one().flops()
            / Estimator("FAVOR+", dim, count).one().flops()
            for count in PAIRS
        ]
        for dim in PAIRED_DIMS
    }


# Operations and microseconds per vector.

_HEADER = ("d", "m = n", "width", "FLOPs", "base", "ratio", "µs", "base", "ratio")


def tables(settings: CostSettings, results: Results) -> list[Table]:
    """Show operations and microseconds per vector, hybrid and base side by side."""
    rows = []
    for (dim, size), part in by_size(settings, results).items():
        flops, times = part["flops"], part["timings"]
        rows.append(
            (
                f"{dim}",
                f"{size}",
                f"{part['width']:,}",
                f"{flops['hybrid']:,}",
                f"{flops['base']:,}",
                f"{flops['base'] / flops['hybrid']:.1f}",
                f"{1e6 * times['hybrid']:.2f}",
                f"{1e6 * times['base']:.2f}",
                f"{times['base'] / times['hybrid']:.1f}",
            )
        )
    return [Table("To map one vector: angular hybrid and base of the same width", _HEADER, rows)]


# Statements of Section 3 and the appendices on cost.

_FORMULA = "2d(m + n) + 8m + n + 4mn"
_SIMILAR = (0.8, 1.25)  # of the base's FLOPs


def claims(settings: CostSettings, results: Results) -> list[Claim]:
    """Judge Section 3 and the appendices."""
    return [_operations(settings, results), _similar(results), _gains(settings, results)]


def _operations(settings: CostSettings, results: Results) -> Claim:
    found = by_size(settings, results).values()
    exact = [part["flops"]["hybrid"] == part["formula"] for part in found]
    ratios = [part["flops"]["base"] / part["flops"]["hybrid"] for part in found]
    return Claim(
        claim="Θ(mn)-wide features take O(nd + md + mn) by the hybrid, O(mnd) by a base (Section 3).",
        paper="O(nd + md + mn)",
        ours=_FORMULA if all(exact) else "another count",
        hits=exact,
        cases="sizes",
        matching="equal width",
        sentence=f"The hybrid takes {_FORMULA} operations per vector, {min(ratios):.1f} to "
        f"{max(ratios):.1f} times fewer than a base of the same width for d of {settings.dims[0]} to "
        f"{settings.dims[-1]} and m = n of {settings.sizes[0]} to {settings.sizes[-1]}.",
    )


def _similar(results: Results) -> Claim:
    shares = paired_shares(results)
    similar = [_SIMILAR[0] < share < _SIMILAR[1] for share in shares]
    return Claim(
        claim="Hybrids of (m, n) = (D/8, 8) have a similar number of FLOPS as bases with D features (Section 4).",
        paper="similar",
        ours=f"{min(shares):.2f} to {max(shares):.2f} of them",
        hits=similar,
        cases="sizes",
        criterion=f"between {_SIMILAR[0]:g} and {_SIMILAR[1]:g} of the FLOPs",
        matching="m·n = D",
        sentence=f"With D from {PAIRS[0]} to {PAIRS[-1]} rows and d of {', '.join(map(str, PAIRED_DIMS))} "
        f"the hybrid takes {min(shares):.2f} to {max(shares):.2f} of the operations of the base: the comparisons "
        "are harder on the hybrid than the paper says.",
    )


def _gains(settings: CostSettings, results: Results) -> Claim:
    found = by_size(settings, results)
    speeds = {size: part["timings"]["base"] / part["timings"]["hybrid"] for size, part in found.items()}
    faster = [speed > 1 for speed in speeds.values()]
    (d, m), at_largest = list(speeds.items())[-1]
    return Claim(
        claim="Substantial computational gains (Appendix on the discussion of Theorem 3.5).",
        paper="substantial",
        ours=f"{min(speeds.values()):.1f} to {max(speeds.values()):.1f} times as fast",
        hits=faster,
        cases="sizes",
        criterion="faster at all",
        matching="equal width",
        sentence=f"Measured on {settings.vectors} vectors the hybrid is faster than a base of the same width at "
        f"{sum(faster)} of {len(speeds)} sizes, {at_largest:.1f} times at d = {d}, m = n = {m}.",
        measured=True,
    )


# Operations and microseconds over the width.


def figure(settings: CostSettings, results: Results) -> Figure:
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


EXPERIMENT = Experiment(
    name="cost",
    title="What wide features cost",
    source="Section 3, appendix on computational gains",
    full=CostSettings(),
    quick=CostSettings(dims=(64, 256), sizes=(4, 8, 16), vectors=128),
    parts=parts,
    tables=tables,
    claims=claims,
    figure=figure,
)
