"""Relative errors over the angle: closed forms, draws, sentences, the table and the figure."""

import io
import math
from dataclasses import asdict, replace
from itertools import pairwise

import matplotlib.image
import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from rich.console import Console

import hrf
from hrf import theory
from hrf_paper.experiments import angles, estimators, experiment
from hrf_paper.experiments.angles import EXPERIMENT, AnglesSettings, Curve, Curves, angle_text, curves, parts
from hrf_paper.experiments.plotting import COLOURS
from hrf_paper.report import grid
from hrf_paper.runner import drawing

SMALL = AnglesSettings(radius=1.0, dim=4, features=80, draws=11, seed=3)
RISING, FALLING, FLAT = [0.0, 0.1, 0.4, 0.9, 1.6], [1.7, 0.9, 0.5, 0.1, 0.0], [0.3] * 5


@pytest.fixture(scope="module")
def results():
    return experiment.run(parts(SMALL))


@pytest.fixture(scope="module")
def result(results) -> Curves:
    return curves(SMALL, results)


def run(settings: AnglesSettings) -> Curves:
    return curves(settings, experiment.run(parts(settings)))


def curve(result: Curves, name: str) -> Curve:
    return next(curve for curve in result.curves if curve.name == name)


def inner(values):
    """Drop the two ends, where logarithms of 0 would be compared."""
    return torch.as_tensor(values, dtype=torch.float64)[1:-1]


def on_sphere(result: Curves) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all pairs in another plane than the experiment's."""
    theta = torch.tensor(result.angles, dtype=torch.float64)[:, None] * math.pi
    rows = torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    u, v = torch.linalg.qr(rows)[0].T
    return u.expand(len(theta), 4), theta.cos() * u + theta.sin() * v


# Curves.


def test_lines_follow_the_lemmas_of_the_sphere(result):
    theta = torch.tensor(result.angles, dtype=torch.float64) * math.pi
    m = {c.name: c.n_projections for c in result.curves}
    x, y = on_sphere(result)
    gaussian = theory.gaussian_hybrid_log_mse(x, y, m["Gaussian hybrid"], 8, sigma=1.0, radius=1.0)
    expected = {
        "trigonometric": theory.log_sphere_relative_error_trigonometric(theta, 1.0, m["trigonometric"]),
        "FAVOR+": theory.log_sphere_relative_error_positive(theta, 1.0, m["FAVOR+"]),
        "angular hybrid": theory.log_sphere_relative_error_angular(theta, 1.0, m["angular hybrid"], 8),
        "Gaussian hybrid": gaussian / 2 - (x * y).sum(-1),
    }
    for name, logarithms in expected.items():
        found = inner(curve(result, name).exact)
        torch.testing.assert_close(found, inner(logarithms.exp()), rtol=1e-9, atol=0)


def test_exact_ends_and_peaks(result):
    ends = {c.name: (c.exact[0], c.exact[-1]) for c in result.curves}
    assert ends["trigonometric"][0] == 0 < ends["trigonometric"][1]
    assert ends["FAVOR+"][1] == 0 < ends["FAVOR+"][0]
    assert ends["angular hybrid"] == (0, 0)
    assert ends["Gaussian hybrid"][0] == 0 < ends["Gaussian hybrid"][1]
    assert ends["nested hybrid"] == pytest.approx((0, 0), abs=1e-12)
    assert min(*ends["FAVOR++"], *ends["FAVOR#"]) > 0
    assert [result.peak(curve(result, name)) for name in ("trigonometric", "FAVOR+")] == [1, 0]


@pytest.mark.stat
def test_dots_lie_on_the_lines():
    # A small radius: the tails of positive features are light there.
    result = run(AnglesSettings(radius=0.3, dim=3, features=68, draws=4000, seed=0))
    for c in result.curves:
        exact = torch.tensor(result.exact_where_sampled(c))
        seen, bar = torch.tensor(c.empirical), torch.tensor(c.standard_error)
        assert ((seen - exact).abs() <= 5 * bar + 1e-12).all(), c.name
        assert (bar[1:-1] < 0.15 * exact[1:-1]).all(), c.name


def test_widths_are_the_nearest_to_the_budget(result):
    for c in result.curves:
        assert abs(c.width - SMALL.features) <= c.width / c.n_projections / 2


def test_a_seed_gives_one_result_and_another_seed_other_dots(result):
    assert asdict(run(SMALL)) == asdict(result)
    other = run(replace(SMALL, seed=4))
    for a, b in zip(result.curves, other.curves, strict=True):
        assert a.exact == b.exact
        assert a.empirical != b.empirical


def test_chunks_make_up_the_draws(monkeypatch):
    monkeypatch.setattr(estimators, "_CHUNK", 4 * 80 * 3)  # 80 projections take 3 of the 11 draws at a time
    x, y = estimators.on_sphere(1.0, 4, estimators.fractions(2))
    heads, generator = estimators.chunk_size(11, 4, 80), torch.Generator().manual_seed(3)
    phi = hrf.Positive(4, n_projections=80, projection="iid", heads=heads, generator=generator)
    chunks = list(estimators.estimates(phi, x, y, draws=11, generator=generator))
    assert [chunk.shape for chunk in chunks] == [(3, 3)] * 3 + [(2, 3)]
    assert len(torch.cat(chunks)[:, 1].unique()) == 11


def test_the_last_chunk_counts_no_more_than_its_draws(monkeypatch):
    # Three draws in chunks of two: the fourth is drawn but has to be left out.
    monkeypatch.setattr(estimators, "_CHUNK", 4 * 40 * 2)
    three = curve(run(replace(SMALL, draws=3)), "FAVOR+")
    generator = torch.Generator().manual_seed(SMALL.seed)
    x, y = torch.tensor([[[1.0, 0, 0, 0]]]), torch.tensor([[[0.0, 1, 0, 0]]])  # K = 1, at θ = π/2
    phi = hrf.Positive(4, n_projections=40, projection="iid", heads=2, generator=generator)
    estimates = torch.cat([phi.estimate(x, y).flatten(), phi.redraw_(generator).estimate(x, y).flatten()])
    expected = (estimates[:3] - 1).square().mean().sqrt()
    assert three.empirical[8] == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize(
    ("setting", "changed"), [("sigma", "Gaussian hybrid"), ("nested_sigma", "nested hybrid")]
)
def test_each_sigma_belongs_to_one_hybrid(result, setting, changed):
    other = run(replace(SMALL, **{setting: 0.5}))
    pairs = zip(result.curves, other.curves, strict=True)
    assert [a.name for a, b in pairs if a.exact != b.exact] == [changed]


def test_winners_cover_all_angles_and_are_the_smallest(result):
    ranges = result.winners()
    assert (ranges[0][1], ranges[-1][2]) == (0, 1)
    assert all(a[2] == b[1] and a[0] is not b[0] for a, b in pairwise(ranges))
    for k in range(1, len(result.angles) - 1):
        (best,) = [c for c, start, end in ranges if start <= result.angles[k] < end]
        assert best.exact[k] == min(c.exact[k] for c in result.curves)


# Sentences and claims.


def sentences(*made: tuple[str, bool, list[float], list[float]]) -> list[str]:
    """Return sentences about curves on five angles, sampled at all of them."""
    places = [0.0, 0.25, 0.5, 0.75, 1.0]
    built = [
        Curve(name, fitted, 8, 16, 1600 + k, exact, seen, [0.0] * 5)
        for k, (name, fitted, exact, seen) in enumerate(made)
    ]
    found = Curves(AnglesSettings(draws=1234), built, places, places)
    return [about(found) for about in (angles._about_maxima, angles._about_ranges, angles._about_draws)]


def test_sentences_about_a_fitted_winner():
    maxima, ranges, draws = sentences(
        ("one hybrid", False, RISING, RISING), ("two", False, FALLING, FALLING), ("three", True, FLAT, FLAT)
    )
    assert maxima == (
        "Three has the smallest maximal error, 0.300 at θ=0, but it was fitted to these very pairs; of the "
        "estimators that see no data, the one hybrid has the smallest, 1.60 at θ=π, with 1,600 FLOPs per "
        "vector; two follows with 1.70 and 1,601."
    )
    assert ranges == (
        "The smallest error by angle: the one hybrid from 0 to 0.38π, three from 0.38π to 0.62π, "
        "two from 0.62π to π."
    )
    assert draws == "The errors seen in 1,234 draws lie within 0% of the exact errors."


def test_sentences_about_a_winner_everywhere_and_a_tie():
    bent = [0.3, 0.4, 0.4, 0.4, 0.3]
    maxima, ranges, draws = sentences(
        ("one", False, FLAT, FLAT), ("two", False, bent, FLAT), ("three", False, FLAT, FLAT)
    )
    assert maxima == (
        "One has the smallest maximal error, 0.300 at θ=0, with 1,600 FLOPs per vector; "
        "three has the same and 1,602."
    )
    assert ranges == "One has the smallest error at every angle between 0 and π."
    assert "two at θ=0.25π looks 75% as large as it is" in draws


def test_an_error_of_zero_is_no_miss():
    found = sentences(("one", False, RISING, RISING), ("two", False, FALLING, [1.7, 0.9, 0.6, 0.1, 1e-16]))
    assert found[2] == "The errors seen in 1,234 draws lie within 20% of the exact errors."


def test_angle_text():
    assert [angle_text(share) for share in (0.0, 0.1875, 0.5, 1.0)] == ["0", "0.19π", "0.50π", "π"]


def test_claims_are_judged_by_their_cases(results):
    ends, smallest, ranges, draws = EXPERIMENT.claims(SMALL, results)
    assert (ends.verdict, ends.matched, ends.total) == ("holds", 6, 6)
    rivals = ("trigonometric", "FAVOR+", "Gaussian hybrid")
    largest = {name: max(part["exact"]) for name, part in results.items()}
    assert smallest.matched == sum(largest["angular hybrid"] < largest[name] for name in rivals)
    assert smallest.total == 3
    assert ranges.verdict == "beyond"
    assert 0 < draws.matched <= draws.total == 7 * 17 - 7  # seven ends are exact, and have no ratio
    wrong = results | {"angular hybrid": results["angular hybrid"] | {"exact": [0.1] * 161}}
    ends = EXPERIMENT.claims(SMALL, wrong)[0]
    assert (ends.verdict, ends.matched, ends.total) == ("partly", 4, 6)
    assert "angular hybrid: neither end" in ends.ours


# The figure and the table.


def printed(results, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(grid(EXPERIMENT.tables(SMALL, results)[0]))
    return console.file.getvalue().splitlines()


def test_figure_shows_every_curve(result, results):
    pixels = matplotlib.image.imread(io.BytesIO(drawing(EXPERIMENT, SMALL, results)))[..., :3]
    assert pixels.shape[1] > 1000
    assert np.allclose(pixels[0, 0], 1)
    left = pixels[:, : int(0.8 * pixels.shape[1])]  # without the legend, which shows all colours anyway
    for curve in result.curves:
        near = np.abs(left - to_rgb(COLOURS[curve.name])).max(-1) < 0.02
        assert near.sum() > 200, curve.name


def test_lines_of_the_figure_are_the_exact_errors_on_a_log_scale_without_zeros(result, results):
    axes = EXPERIMENT.figure(SMALL, results).axes[0]
    lines = {line.get_label().split("\n")[0]: line for line in axes.lines}
    for curve in result.curves:
        line = lines[f"{curve.name}, fitted" if curve.fitted else curve.name]
        assert np.allclose(line.get_xdata(), result.angles)
        assert np.allclose(line.get_ydata(), curve.exact, rtol=1e-12, atol=1e-11)
    low, high = axes.get_ylim()
    assert 0 < low < min(min(curve.empirical[1:-1]) for curve in result.curves)
    assert high > max(curve.largest for curve in result.curves)


def test_table_marks_the_smallest_of_each_column(result, results):
    rows = {line.split("  ")[0].strip(): line for line in printed(results) if "." in line}
    header = next(line for line in printed(results) if line.startswith("estimator"))
    assert header.split() == ["estimator", "width", "FLOPs", "0", "π/4", "π/2", "3π/4", "π", "max", "at", "θ"]
    for curve in result.curves:
        cells = rows[curve.name].removeprefix(curve.name).split()
        assert cells[0] == str(curve.width)
        for cell, k in zip(cells[2:7], range(0, 161, 40), strict=True):
            smallest = min(other.exact[k] for other in result.curves)
            assert cell.endswith("*") == (curve.exact[k] <= max(smallest * (1 + 1e-9), 1e-12))
        smallest = min(other.largest for other in result.curves)
        assert cells[7].endswith("*") == (curve.largest <= smallest * (1 + 1e-9))


def test_a_narrow_table_keeps_its_numbers(results):
    wide, narrow = (
        [word for line in printed(results, width)[3:-1] for word in line.split() if word[0].isdigit()]
        for width in (200, 71)
    )
    assert len(wide) >= 7 * 8
    assert narrow == wide
