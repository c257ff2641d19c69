"""The tree against its definition, for every map."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from torch import Generator
from torch.nn import functional as F

import hrf
from features.registry import DIM, MAPS, build
from hrf import tuning
from hrf.sampling import SoftmaxSampler

CLASSES = 43  # not a multiple of anything
CLASS_EMBEDDINGS = 0.4 * torch.randn(CLASSES, DIM, generator=Generator().manual_seed(0), dtype=torch.float64)
QUERIES = 0.5 * torch.randn(3, DIM, generator=Generator().manual_seed(1), dtype=torch.float64)
EVERYTHING = torch.arange(CLASSES).expand(len(QUERIES), CLASSES)


@pytest.fixture(autouse=True)
def _narrow(monkeypatch):
    monkeypatch.setattr(tuning, "TREE_TOP", 3)  # so that few classes make several levels
    monkeypatch.setattr(tuning, "TREE_FLOATS", 1 << 10)
    monkeypatch.setattr(tuning, "TREE_QUERIES", 2)


def probabilities(sampler, queries=QUERIES):
    return sampler.log_prob(queries, torch.arange(sampler.n_classes).expand(len(queries), -1)).exp()


def by_definition(feature_map, x, y, leaf_size, share):
    """Branch by branch from pairwise estimates, in Python: the naive twin, ``(C,)`` for one query."""
    estimates = feature_map.estimate(x[None], y)[0].tolist()
    spans = [leaf_size]
    while math.ceil(len(y) / spans[0]) > tuning.TREE_TOP:
        spans.insert(0, spans[0] * tuning.TREE_FAN)
    if leaf_size > 1:
        spans.append(1)

    def divide(classes, spans):
        if not spans:
            return {classes[0]: 1.0}
        branches = [classes[i : i + spans[0]] for i in range(0, len(classes), spans[0])]
        masses = [max(0.0, sum(estimates[c] for c in branch)) for branch in branches]
        if not sum(masses):
            masses = [len(branch) for branch in branches]
        return {
            c: p * mass / sum(masses)
            for branch, mass in zip(branches, masses, strict=True)
            for c, p in divide(branch, spans[1:]).items()
        }

    found = divide(list(range(len(y))), spans)
    q = torch.tensor([found[c] for c in range(len(y))], dtype=torch.float64)
    return (1 - share) * q + share / len(y)


def test_long_embeddings_of_positive_features_leave_no_class_out():
    """Estimates differ by more than the range of float32; true probabilities do not."""
    generator = Generator().manual_seed(0)
    y, x = (16 * F.normalize(torch.randn(n, 64, generator=generator), dim=-1) for n in (1000, 20))
    sampler = SoftmaxSampler(y, hrf.Positive(64, n_projections=64, seed=0))
    assert probabilities(sampler, x).min() >= (1 - 1e-5) * 0.1 / 1000


@pytest.mark.parametrize("name", MAPS)
def test_probabilities_follow_the_definition(name):
    phi = build(name)
    for leaf_size in (1, 3):
        sampler = SoftmaxSampler(CLASS_EMBEDDINGS, phi, leaf_size=leaf_size)
        assert len(sampler.levels) == 3
        received, share = probabilities(sampler), sampler.uniform_share
        expected = [by_definition(phi, x, CLASS_EMBEDDINGS, leaf_size, share) for x in QUERIES]
        # Estimates are sums of at most some 400 features; a class's share can cancel to a hundredth of their size.
        torch.testing.assert_close(received, torch.stack(expected), rtol=1e-10, atol=1e-10)
        if phi.nonnegative:
            estimates = phi.estimate(QUERIES, CLASS_EMBEDDINGS)
            mixed = 0.9 * estimates / estimates.sum(-1, keepdim=True) + 0.1 / CLASSES
            torch.testing.assert_close(received, mixed, rtol=1e-10, atol=0)


@pytest.mark.parametrize("leaf_size", [1, 4])
def test_where_all_estimates_are_negative_draws_are_uniform(leaf_size):
    phi = hrf.Trigonometric(1, n_projections=1).double()
    phi.projection.omega.fill_(1.0)  # the estimate is then a multiple of cos(x − y)
    y = torch.linspace(2.0, 4.0, CLASSES, dtype=torch.float64)[:, None]
    sampler = SoftmaxSampler(y, phi, leaf_size=leaf_size, uniform_share=0.0)
    q = probabilities(sampler, torch.zeros(1, 1, dtype=torch.float64))
    torch.testing.assert_close(q, torch.full_like(q, 1 / CLASSES))


def test_features_of_all_classes_are_held_where_they_are_small(monkeypatch):
    phi = build("positive")
    monkeypatch.setattr(tuning, "TREE_HELD_BYTES", 8 * CLASSES * phi.feature_dim)
    assert SoftmaxSampler(CLASS_EMBEDDINGS, phi).leaf_size == 1
    assert SoftmaxSampler(CLASS_EMBEDDINGS.repeat(2, 1), phi).leaf_size == 4


@pytest.mark.parametrize(("name", "leaf_size"), [("positive", 1), ("angular hybrid", 4)])
def test_a_hundred_updates_equal_a_rebuild(name, leaf_size):
    generator, eps = Generator().manual_seed(2), torch.finfo(torch.float32).eps
    sampler = SoftmaxSampler(CLASS_EMBEDDINGS.float(), build(name).float(), leaf_size=leaf_size)
    y = sampler.embeddings.clone()
    for _ in range(100):
        ids = torch.randperm(CLASSES, generator=generator)[:3]
        y[ids] = 0.4 * torch.randn(3, DIM, generator=generator)
        sampler.update_(ids, y[ids])
    fresh = SoftmaxSampler(y, build(name).float(), leaf_size=leaf_size)
    for mine, theirs in zip(
        (*sampler.levels, *sampler.log_scales), (*fresh.levels, *fresh.log_scales), strict=True
    ):
        # A few roundings of exponentials, and no trace of so many steps.
        torch.testing.assert_close(mine, theirs, rtol=0, atol=50 * eps)


def test_probabilities_are_right_even_for_sums_that_are_out_of_date():
    sampler = SoftmaxSampler(CLASS_EMBEDDINGS, build("positive"), leaf_size=4)
    sampler.embeddings.mul_(-1)
    sampler.feature_map.redraw_()
    total = probabilities(sampler).sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=1e-13, atol=0)
    stale = probabilities(sampler)
    assert not stale.allclose(probabilities(sampler.rebuild_()))


def test_a_radius_normalises_queries_and_embeddings():
    phi = build("positive")
    normalised = [1.5 * F.normalize(u, dim=-1) for u in (QUERIES, CLASS_EMBEDDINGS)]
    expected = phi.estimate(*normalised)
    sampler = SoftmaxSampler(CLASS_EMBEDDINGS, phi, radius=1.5, uniform_share=0.0)
    torch.testing.assert_close(probabilities(sampler), expected / expected.sum(-1, keepdim=True))
    sampler.update_(torch.tensor([5]), 7 * CLASS_EMBEDDINGS[5:6])
    torch.testing.assert_close(probabilities(sampler), expected / expected.sum(-1, keepdim=True))


def test_maps_that_do_not_fit_are_refused():
    exact = build("clustered separable")
    exact.exact = torch.eye(2, dtype=torch.bool)
    for phi, options, says in (
        (hrf.Positive(5, n_projections=2), {}, "class_embeddings has 4 columns, the map was built for 5"),
        (build("positive", heads=2), {}, "heads=2"),
        (exact, {}, "factorised=False"),
        (build("positive"), {"uniform_share": 1.0}, r"uniform_share is 1\.0"),
        (build("positive"), {"leaf_size": 0}, "leaf_size is 0"),
        (build("positive"), {"radius": 0.0}, "radius is 0"),
    ):
        with pytest.raises(ValueError, match=says):
            SoftmaxSampler(CLASS_EMBEDDINGS, phi, **options)
    with pytest.raises(TypeError, match="feature_map is of type int"):
        SoftmaxSampler(CLASS_EMBEDDINGS, 3)


SCRIPT = """
import resource, torch, hrf

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

torch.set_num_threads(1)
phi = hrf.Positive(200, n_projections=128)
classes, queries = torch.randn(300_000, 200) * 0.07, torch.randn(700, 200)
hrf.sampling.SoftmaxSampler(classes[:100], phi).sample(queries[:2], 40)  # what the first call loads
before = peak()
sampler = hrf.sampling.SoftmaxSampler(classes, phi)
ids, log_probs = sampler.sample(queries, 40)
ids = ids.unique()
sampler.update_(ids, classes[ids])
assert log_probs.isfinite().all()
print(peak() - before)
"""


@pytest.mark.slow
def test_three_hundred_thousand_classes_take_the_memory_that_is_stated():
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    held = 4 * 300_000 * 200 + 4 * 4 / 3 * 300_000 / 4 * 256  # embeddings and nodes
    # An update holds its new embeddings, their copy and sums of their leaves; all else is in blocks.
    update = 4 * 28_000 * (2 * 200 + 2 * 256)
    assert int(run.stdout) < held + update + (128 << 20)
