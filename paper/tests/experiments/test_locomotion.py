"""Claims, tables and figure of the locomotion experiment, on made-up returns."""

from __future__ import annotations

import base64

import numpy as np

from hrf_paper.experiments.locomotion import EXPERIMENT, FRAMES, HYBRID, SCALED, curves, frames, key, outcome
from hrf_paper.locomotion.terrain import level_depth

RETURNS = dict.fromkeys(SCALED.methods, 4.0) | {"blind": 0.4}
FLOPS = {
    "exact": 250,
    "FAVOR+ 256": 1400,
    HYBRID: 380,
    "FAVOR+ 58": 370,
    "Trig 58": 370,
    "uniform": 30,
    "blind": 0,
}


def part(method: str, mean: float) -> dict:
    return {
        "flops": FLOPS[method],
        "ranking_flops": FLOPS[method] if method not in ("uniform", "blind") else 0,
        "diverged": "",
        "curve": [[1, 0.5], [20, mean]],
        "returns": [mean - 0.1, mean + 0.1],
        "crossed": [mean > 3, mean > 1],
        "timings": {"training CPU seconds": 30.0},
    }


def encoded(values: np.ndarray) -> str:
    return base64.b64encode(values.astype(np.uint8).tobytes()).decode()


def frame(keep_gaps: bool) -> dict:
    """Return a frame with a gap in the middle of the belly camera's image."""
    depth = level_depth()
    depth[1, 10:14] = 1.0
    gap = np.zeros(depth.shape, bool)
    gap[1, 10:14] = True
    kept = gap if keep_gaps else ~gap
    return {"x": 1.0, "depth": encoded(255 * depth), "kept": encoded(np.packbits(kept))}


def results(returns: dict[str, float], keep_gaps: bool = True) -> dict:
    found = {
        key(method, run): part(method, returns[method] + 0.01 * run)
        for method in SCALED.methods
        for run in range(SCALED.runs)
    }
    return found | {FRAMES: {"frames": [frame(keep_gaps)] * 3, "shape": [2, 24, 32]}}


def claims(found: dict) -> list:
    return EXPERIMENT.claims(SCALED, found)


def test_equal_returns_reproduce_the_quality_and_nothing_diverges():
    quality, diverges, looks, *others = claims(results(RETURNS))
    assert (quality.matched, quality.total, quality.verdict) == (2, 2, "holds")
    assert "3.7× fewer" in quality.ours
    assert (diverges.matched, diverges.total, diverges.verdict) == (0, 6, "fails")
    assert (looks.matched, looks.total, looks.verdict) == (3, 3, "holds")
    assert [claim.verdict for claim in others] == ["beyond", "beyond"]


def test_a_worse_hybrid_is_not_as_good():
    quality = claims(results(RETURNS | {HYBRID: 3.0}))[0]
    assert (quality.matched, quality.verdict) == (1, "partly")


def test_runs_that_are_not_finite_count_as_diverged():
    found = results(RETURNS | {"Trig 58": 0.1})
    found[key("FAVOR+ 58", 1)] = {
        "flops": 370,
        "ranking_flops": 300,
        "diverged": "attention by Positive is not finite",
        "curve": [],
    } | {"timings": {}}
    diverges = claims(found)[1]
    assert (diverges.matched, diverges.verdict) == (4, "partly")
    assert outcome(SCALED, found, "FAVOR+ 58").diverged == 1
    assert len(curves(SCALED, found, "FAVOR+ 58")) == 2
    EXPERIMENT.tables(SCALED, found)


def test_a_policy_that_masks_the_gaps_does_not_look_at_them():
    looks = claims(results(RETURNS, keep_gaps=False))[2]
    assert (looks.matched, looks.verdict) == (0, "fails")


def test_frames_come_back_as_they_were():
    (stored, *_) = frames(results(RETURNS))
    np.testing.assert_allclose(stored.depth[0], level_depth()[0], atol=1 / 255)
    assert stored.kept.sum() == 4 * 32


def test_tables_and_figure_show_every_method():
    found = results(RETURNS)
    table = EXPERIMENT.tables(SCALED, found)[0]
    assert [row[0] for row in table.rows] == list(SCALED.methods)
    drawing = EXPERIMENT.figure(SCALED, found)
    texts = {text.get_text() for axes in drawing.axes for text in axes.texts}
    assert {"blind", HYBRID, "exact"} <= texts
