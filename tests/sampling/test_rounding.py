"""Draws in float32 where classes have very different lengths, and where estimates cancel to rounding noise."""

from __future__ import annotations

import pytest
import torch

import hrf
from hrf import tuning
from hrf.sampling import SoftmaxSampler

DIM, CLASSES, QUERIES = 6, 50, 64
LONG = torch.tensor([0])

MAPS = {
    "positive": lambda: hrf.Positive(DIM, n_projections=16),
    "trigonometric": lambda: hrf.Trigonometric(DIM, n_projections=16),
    "angular": lambda: hrf.AngularHybrid(DIM, n_projections=8, n_coefficient_projections=8),
}


def drawn(seed):
    """Classes, the same with a long one among them, and queries."""
    torch.manual_seed(seed)
    classes = torch.randn(CLASSES, DIM)
    stretched = classes.index_copy(0, LONG, 5.5 * classes[LONG])
    return classes, stretched, torch.randn(QUERIES, DIM)


def log_probs(sampler, queries):
    return sampler.log_prob(queries, torch.arange(sampler.n_classes).expand(len(queries), -1))


def test_every_seed_draws_classes():
    """Beside a class that is estimated below 0, masses of other classes can be subnormal on a common scale."""
    for seed in range(200):
        torch.manual_seed(seed)
        classes = torch.randn(CLASSES, DIM)
        classes[0] *= 5.5
        sampler = SoftmaxSampler(classes, MAPS["trigonometric"]())
        ids, log_q = sampler.sample(torch.randn(QUERIES, DIM), 40)
        assert ids.max() < CLASSES
        assert log_q.isfinite().all()


@pytest.mark.parametrize("factor", [5.5, 30.0])
@pytest.mark.parametrize("leaf_size", [1, 4])
@pytest.mark.parametrize("name", MAPS)
def test_an_update_is_a_rebuild_after_a_long_class_became_short(name, leaf_size, factor, monkeypatch):
    monkeypatch.setattr(tuning, "TREE_TOP", 3)
    for seed in range(5):
        classes, _, queries = drawn(seed)
        phi = MAPS[name]()
        long = classes.index_copy(0, LONG, factor * classes[LONG])
        updated = SoftmaxSampler(long, phi, leaf_size=leaf_size).update_(LONG, classes[LONG])
        fresh = SoftmaxSampler(classes, phi, leaf_size=leaf_size)
        # Features of one class and of many at once differ by rounding, and estimates cancel to a hundredth.
        torch.testing.assert_close(log_probs(updated, queries), log_probs(fresh, queries), rtol=0, atol=1e-3)


@pytest.mark.parametrize("norm", [1, 3, 6])
@pytest.mark.parametrize("name", MAPS)
def test_log_probs_do_not_depend_on_the_batch(name, norm):
    for seed in range(8):
        classes, stretched, queries = drawn(seed)
        for embeddings in (norm * classes, stretched):
            sampler = SoftmaxSampler(embeddings, MAPS[name]())
            together = log_probs(sampler, norm * queries)
            apart = torch.cat([log_probs(sampler, query) for query in (norm * queries).split(1)])
            # At the limit of four roundings an estimate is right to about one of them.
            torch.testing.assert_close(together, apart, rtol=0, atol=0.1)
