"""All samplers keep their promise: stated probabilities match the draws."""

from __future__ import annotations

import copy

import pytest
import torch
from scipy import stats
from torch import Generator

import hrf
from hrf.sampling import ExactSoftmaxSampler, LogUniformSampler, SoftmaxSampler, UniformSampler

DIM, CLASSES = 4, 21
FIVE_SIGMA = stats.norm.sf(5)

CLASS_EMBEDDINGS = 0.6 * torch.randn(CLASSES, DIM, generator=Generator().manual_seed(0), dtype=torch.float64)
QUERIES = torch.randn(2, 3, DIM, generator=Generator().manual_seed(1), dtype=torch.float64)


def tree(kind, **options):
    phi = kind(DIM, n_projections=8, generator=Generator().manual_seed(2)).double()
    return SoftmaxSampler(CLASS_EMBEDDINGS, phi, **options)


SAMPLERS = {
    "uniform": lambda: UniformSampler(CLASSES),
    "log-uniform": lambda: LogUniformSampler(CLASSES),
    "exact": lambda: ExactSoftmaxSampler(CLASS_EMBEDDINGS),
    "positive": lambda: tree(hrf.Positive, leaf_size=4),
    "positive, features held": lambda: tree(hrf.Positive),
    "trigonometric": lambda: tree(hrf.Trigonometric, leaf_size=4),
}


LOOKING = ["exact", "positive", "positive, features held", "trigonometric"]  # at queries and embeddings


@pytest.fixture(params=SAMPLERS)
def sampler(request, monkeypatch):
    monkeypatch.setattr("hrf.tuning.TREE_TOP", 2)  # so that few classes make several levels
    return SAMPLERS[request.param]()


def everything(queries=QUERIES):
    return torch.arange(CLASSES).expand(*queries.shape[:-1], CLASSES)


def seeded(seed=0):
    return Generator().manual_seed(seed)


def assert_fits(counts, expected):
    """Pearson's chi-square test at five standard errors."""
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert float(statistic) <= stats.chi2.isf(FIVE_SIGMA, counts.numel() - 1)


def test_probabilities_sum_to_one(sampler):
    total = sampler.log_prob(QUERIES, everything()).exp().sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=1e-13, atol=0)  # rounding of some 20 terms


def test_draws_come_with_their_probabilities(sampler):
    ids, log_probs = sampler.sample(QUERIES, 5, seeded())
    assert ids.shape == log_probs.shape == (2, 3, 5)
    torch.testing.assert_close(log_probs, sampler.log_prob(QUERIES, ids), rtol=1e-13, atol=1e-13)


@pytest.mark.stat
def test_frequencies_are_the_stated_probabilities(sampler):
    n = 20_000
    query = QUERIES[0, 0]
    ids, _ = sampler.sample(query.expand(n, DIM), 1, seeded())
    probabilities = sampler.log_prob(query, torch.arange(CLASSES)).exp()
    assert_fits(ids.flatten().bincount(minlength=CLASSES), n * probabilities)


@pytest.mark.stat
def test_draws_of_a_query_are_independent_or_distinct(sampler):
    n = 40_000
    query = QUERIES[0, 1]
    ids, _ = sampler.sample(query.expand(n, DIM), 2, seeded())
    probabilities = sampler.log_prob(query, torch.arange(CLASSES)).exp()
    pairs = (ids[:, 0] * CLASSES + ids[:, 1]).bincount(minlength=CLASSES**2).view(CLASSES, CLASSES)
    if isinstance(sampler, UniformSampler):
        assert not pairs.diagonal().any()
        sets = (pairs + pairs.mT)[torch.ones_like(pairs).triu(1).bool()]  # their order says nothing
        assert_fits(sets, torch.full(sets.shape, n / sets.numel()))
    else:
        # Rare pairs together: the statistic's distribution needs some five expected in each cell.
        expected = n * probabilities.outer(probabilities)
        rare = expected < 5
        counts = torch.cat([pairs[~rare], pairs[rare].sum()[None]])
        assert_fits(counts, torch.cat([expected[~rare], expected[rare].sum().clamp(min=1e-9)[None]]))


def test_all_queries_of_a_batch_have_their_own_distribution(sampler):
    flat, each = QUERIES.flatten(0, 1), everything().flatten(0, 1)
    apart = torch.stack([sampler.log_prob(q, ids) for q, ids in zip(flat, each, strict=True)])
    torch.testing.assert_close(
        sampler.log_prob(QUERIES, everything()).flatten(0, 1), apart, rtol=1e-12, atol=1e-12
    )


def test_the_generator_decides(sampler):
    first, again, other = (sampler.sample(QUERIES, 10, seeded(seed)).ids for seed in (0, 0, 1))
    assert first.equal(again)
    assert not first.equal(other)


def test_probabilities_take_nothing_from_the_random_stream(sampler):
    before = torch.random.get_rng_state()
    sampler.log_prob(QUERIES, everything())
    assert torch.random.get_rng_state().equal(before)


def test_copies_draw_the_same(sampler):
    other = SAMPLERS["exact"]() if isinstance(sampler, ExactSoftmaxSampler) else copy.deepcopy(sampler)
    other.rebuild_(torch.zeros(CLASSES, DIM, dtype=torch.float64))
    other.load_state_dict(sampler.state_dict())
    for copied in (copy.deepcopy(sampler), other):
        assert copied.sample(QUERIES, 10, seeded()).ids.equal(sampler.sample(QUERIES, 10, seeded()).ids)


def test_updates_reach_the_probabilities(sampler):
    ids, new = torch.tensor([20, 3, 4]), torch.randn(3, DIM, generator=seeded(3), dtype=torch.float64)
    changed = CLASS_EMBEDDINGS.clone().index_copy_(0, ids, new)
    before = sampler.log_prob(QUERIES, everything())
    rebuilt = copy.deepcopy(sampler).rebuild_(changed).log_prob(QUERIES, everything())
    updated = sampler.update_(ids, new).log_prob(QUERIES, everything())
    assert before.equal(updated) == isinstance(sampler, UniformSampler | LogUniformSampler)
    torch.testing.assert_close(updated, rebuilt, rtol=1e-12, atol=1e-12)


def test_half_precision_and_autocast_are_computed_in_float32(sampler):
    queries = QUERIES.bfloat16()
    expected = sampler.log_prob(queries.float(), everything())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        received = sampler.log_prob(queries, everything())
    torch.testing.assert_close(received, expected)


def test_queries_of_other_shapes(sampler):
    assert sampler.sample(QUERIES[0, 0], 5).ids.shape == (5,)
    assert sampler.sample(QUERIES.expand(2, 2, 3, DIM), 1).ids.shape == (2, 2, 3, 1)


def test_errors_say_what_was_received(sampler):
    with pytest.raises(ValueError, match="k is 22; expected at most the number of classes, 21"):
        sampler.sample(QUERIES, CLASSES + 1)
    with pytest.raises(ValueError, match="k is 0"):
        sampler.sample(QUERIES, 0)
    with pytest.raises(ValueError, match=r"queries has shape \(0, 4\); .* at least one query"):
        sampler.sample(QUERIES[0, :0], 1)
    with pytest.raises(ValueError, match="queries has 1 value that is NaN"):
        sampler.sample(torch.tensor([[0.0, torch.nan, 0.0, 0.0]]), 1)
    with pytest.raises(TypeError, match=r"a tensor of torch\.int64"):
        sampler.sample(torch.ones(1, DIM, dtype=torch.long), 1)
    with pytest.raises(ValueError, match="ids run from 3 to 21"):
        sampler.log_prob(QUERIES[0, 0], torch.tensor([3, 21]))
    with pytest.raises(ValueError, match=r"ids has shape \(2,\); expected \(2, 3, n\)"):
        sampler.log_prob(QUERIES, torch.tensor([3, 4]))
    with pytest.raises(TypeError, match=r"ids is a tensor of torch\.float32"):
        sampler.log_prob(QUERIES[0, 0], torch.tensor([3.0]))


@pytest.mark.parametrize("sampler", LOOKING, indirect=True)
def test_embeddings_are_looked_at(sampler):
    bad = CLASS_EMBEDDINGS.index_fill(0, torch.tensor(2), torch.nan)
    with pytest.raises(ValueError, match="class_embeddings has values that are NaN"):
        sampler.rebuild_(bad)
    with pytest.raises(ValueError, match="class_embeddings has values that are NaN"):
        sampler.update_(torch.tensor([2]), bad[2:3])
    with pytest.raises(ValueError, match=r"class_embeddings has shape \(1, 5\); expected \(1, 4\)"):
        sampler.update_(torch.tensor([2]), torch.zeros(1, 5))
    with pytest.raises(ValueError, match="repeats a class"):
        sampler.update_(torch.tensor([2, 2]), torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"expected \(..., 4\)"):
        sampler.sample(torch.zeros(3, 5), 1)
    empty = torch.empty(0, dtype=torch.long)
    assert sampler.update_(empty, torch.empty(0, DIM)) is sampler


def test_an_embedding_matrix_is_needed():
    for kind in (ExactSoftmaxSampler, lambda y: SoftmaxSampler(y, hrf.Positive(DIM, n_projections=8))):
        with pytest.raises(ValueError, match=r"class_embeddings is .*3.*; expected a tensor \(C, d\)"):
            kind(torch.zeros(3))
        with pytest.raises(ValueError, match="class_embeddings has values that are NaN"):
            kind(torch.full((3, DIM), torch.nan))
        with pytest.raises(ValueError, match="n_classes is 0"):
            kind(torch.zeros(0, DIM))


@pytest.mark.parametrize("k", [1, 20, 21])
def test_uniform_draws_are_distinct(k):
    ids, log_probs = UniformSampler(CLASSES).sample(QUERIES, k)
    assert all(row.unique().numel() == k for row in ids.flatten(0, 1))
    torch.testing.assert_close(log_probs.exp(), torch.full_like(log_probs, 1 / CLASSES))


def test_log_uniform_is_zipfs_law():
    probabilities = LogUniformSampler(3).log_prob(torch.zeros(1, dtype=torch.float64), torch.arange(3)).exp()
    expected = torch.tensor([2.0, 3 / 2, 4 / 3], dtype=torch.float64).log() / torch.tensor(4.0).double().log()
    torch.testing.assert_close(probabilities, expected)


def test_the_exact_sampler_states_the_softmax(monkeypatch):
    monkeypatch.setattr("hrf.tuning.EXACT_LOGITS", 2 * CLASSES)
    sampler = ExactSoftmaxSampler(CLASS_EMBEDDINGS)
    expected = (QUERIES @ CLASS_EMBEDDINGS.mT).log_softmax(-1)
    torch.testing.assert_close(sampler.log_prob(QUERIES, everything()), expected)
    ids, log_probs = sampler.sample(QUERIES, 20)
    torch.testing.assert_close(log_probs, expected.gather(-1, ids))
