import math
from dataclasses import asdict, replace
from itertools import pairwise

import pytest
import torch

import hrf
from hrf import theory
from hrf_paper.experiments import estimators, experiment
from hrf_paper.experiments.angles import AnglesSettings, Curve, Curves, curves, parts

SMALL = AnglesSettings(radius=1.0, dim=4, features=80, draws=11, seed=3)


def run(settings: AnglesSettings) -> Curves:
    return curves(settings, experiment.run(parts(settings)))


@pytest.fixture(scope="module")
def result() -> Curves:
    return run(SMALL)


def curve(result: Curves, name: str) -> Curve:
    return next(curve for curve in result.curves if curve.name == name)


def inner(values):
    """Drop the two ends, where logarithms of 0 would be compared."""
    return torch.as_tensor(values, dtype=torch.float64)[1:-1]


def on_sphere(result: Curves) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all pairs in another plane than the experiment's."""
    theta = torch.tensor(result.angles, dtype=torch.float64)[:, None] * math.pi
    u, v = torch.linalg.qr(
        torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    )[0].T
    return u.expand(len(theta), 4), theta.cos() * u + theta.sin() * v


def test_lines_follow_the_lemmas_of_the_sphere(result):
    theta = torch.tensor(result.angles, dtype=torch.float64) * math.pi
    m = {c.name: c.n_projections for c in result.curves}
    expected = {
        "trigonometric": theory.sphere_relative_error_trigonometric(theta, 1.0, m["trigonometric"]),
        "FAVOR+": theory.sphere_relative_error_positive(theta, 1.0, m["FAVOR+"]),
        "angular hybrid": theory.sphere_relative_error_angular(theta, 1.0, m["angular hybrid"], 8),
    }
    for name, errors in expected.items():
        torch.testing.assert_close(inner(curve(result, name).exact), inner(errors), rtol=1e-9, atol=0)


def test_line_of_the_gaussian_hybrid_follows_its_theorem(result):
    x, y = on_sphere(result)
    gaussian = curve(result, "Gaussian hybrid")
    mse = theory.gaussian_hybrid_mse(x, y, gaussian.n_projections, 8, sigma=1.0, radius=1.0)
    errors = mse.sqrt() / (x * y).sum(-1).exp()
    torch.testing.assert_close(inner(gaussian.exact), inner(errors), rtol=1e-9, atol=0)


def test_exact_ends(result):
    ends = {c.name: (c.exact[0], c.exact[-1]) for c in result.curves}
    assert ends["trigonometric"][0] == 0 < ends["trigonometric"][1]
    assert ends["FAVOR+"][1] == 0 < ends["FAVOR+"][0]
    assert ends["angular hybrid"] == (0, 0)
    assert ends["Gaussian hybrid"][0] == 0 < ends["Gaussian hybrid"][1]
    assert ends["nested hybrid"] == pytest.approx((0, 0), abs=1e-12)
    assert min(*ends["FAVOR++"], *ends["FAVOR#"]) > 0


@pytest.mark.stat
def test_dots_lie_on_the_lines():
    # A small radius: the tails of positive features are light there.
    settings = AnglesSettings(radius=0.3, dim=3, features=68, draws=4000, seed=0)
    result = run(settings)
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
    monkeypatch.setattr(
        estimators, "_CHUNK", 4 * 80 * 3
    )  # 80 projections then take 3 of the 11 draws at a time
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
    ("setting", "value", "changed"),
    [("sigma", 0.5, {"Gaussian hybrid"}), ("nested_sigma", 0.5, {"nested hybrid"})],
)
def test_each_sigma_belongs_to_one_hybrid(result, setting, value, changed):
    other = run(replace(SMALL, **{setting: value}))
    pairs = zip(result.curves, other.curves, strict=True)
    assert {a.name for a, b in pairs if a.exact != b.exact} == changed


def test_winners_cover_all_angles_and_are_the_smallest(result):
    ranges = result.winners()
    assert ranges[0][1] == 0
    assert ranges[-1][2] == 1
    assert all(a[2] == b[1] and a[0] is not b[0] for a, b in pairwise(ranges))
    for k in range(1, len(result.angles) - 1):
        (best,) = [c for c, start, end in ranges if start <= result.angles[k] < end]
        assert best.exact[k] == min(c.exact[k] for c in result.curves)


def test_peak(result):
    assert result.peak(curve(result, "trigonometric")) == 1
    assert result.peak(curve(result, "FAVOR+")) == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("radius", 0.0),
        ("radius", -1.0),
        ("radius", math.nan),
        ("radius", 40.0),
        ("dim", 1),
        ("features", 67),
        ("draws", 1),
        ("seed", -1),
    ],
)
def test_settings_out_of_range(name, value):
    with pytest.raises(ValueError, match=f"^{name} is {value}; expected a number "):
        replace(SMALL, **{name: value})
