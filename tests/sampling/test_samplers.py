"""Samplers: stated probabilities match the draws, single steps of a draw, and one sentence for each mistake."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Generator

import hrf
from hrf import choice
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
def test_draws_of_a_query_are_independent_or_distinct(sampler):
    n, query = 40_000, QUERIES[0, 1]
    ids, _ = sampler.sample(query.expand(n, DIM), 2, seeded())
    probabilities = sampler.log_prob(query, torch.arange(CLASSES)).exp()
    pairs = (ids[:, 0] * CLASSES + ids[:, 1]).bincount(minlength=CLASSES**2).view(CLASSES, CLASSES)
    if isinstance(sampler, UniformSampler):
        assert not pairs.diagonal().any()
        sets = (pairs + pairs.mT)[torch.ones_like(pairs).triu(1).bool()]  # their order says nothing
        assert_fits(sets, torch.full(sets.shape, n / sets.numel()))
    else:
        assert_fits(ids[:, 0].bincount(minlength=CLASSES), n * probabilities)
        # Rare pairs together: the statistic's distribution needs some five expected in each cell.
        expected = n * probabilities.outer(probabilities)
        rare = expected < 5
        counts = torch.cat([pairs[~rare], pairs[rare].sum()[None]])
        assert_fits(counts, torch.cat([expected[~rare], expected[rare].sum().clamp(min=1e-9)[None]]))


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
    one = QUERIES[0, 0]
    for call, error, says in (
        (
            lambda: sampler.sample(QUERIES, 22),
            ValueError,
            "k is 22; expected at most the number of classes, 21",
        ),
        (lambda: sampler.sample(QUERIES, 0), ValueError, "k is 0"),
        (lambda: sampler.sample(QUERIES[0, :0], 1), ValueError, r"shape \(0, 4\); .* at least one query"),
        (
            lambda: sampler.sample(one.index_fill(0, torch.tensor(1), torch.nan), 1),
            ValueError,
            "1 value that is N",
        ),
        (lambda: sampler.sample(torch.ones(1, DIM).long(), 1), TypeError, r"a tensor of torch\.int64"),
        (lambda: sampler.log_prob(one, torch.tensor([3, 21])), ValueError, "ids run from 3 to 21"),
        (
            lambda: sampler.log_prob(QUERIES, torch.tensor([3, 4])),
            ValueError,
            r"\(2,\); expected \(2, 3, n\)",
        ),
        (lambda: sampler.log_prob(one, torch.tensor([3.0])), TypeError, r"ids is a tensor of torch\.float32"),
    ):
        with pytest.raises(error, match=says):
            call()


@pytest.mark.parametrize("sampler", LOOKING, indirect=True)
def test_embeddings_are_looked_at(sampler):
    bad, two = CLASS_EMBEDDINGS.index_fill(0, torch.tensor(2), torch.nan), torch.tensor([2])
    for call, says in (
        (lambda: sampler.rebuild_(bad), "class_embeddings has values that are NaN"),
        (lambda: sampler.update_(two, bad[2:3]), "class_embeddings has values that are NaN"),
        (lambda: sampler.update_(two, torch.zeros(1, 5)), r"has shape \(1, 5\); expected \(1, 4\)"),
        (lambda: sampler.update_(two.repeat(2), torch.zeros(2, 4)), "repeats a class"),
        (lambda: sampler.sample(torch.zeros(3, 5), 1), r"expected \(..., 4\)"),
    ):
        with pytest.raises(ValueError, match=says):
            call()
    assert sampler.update_(two[:0], torch.empty(0, DIM)) is sampler


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


# Single steps of a draw.


@pytest.mark.parametrize("size", [1e-45, 4e-44, 1e-38, 1.0, 1e38])
def test_weights_of_any_size(size, monkeypatch):
    """The largest random number chooses the last branch with weight, even where weights are subnormal."""
    largest = torch.tensor(1.0).nextafter(torch.tensor(0.0))
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: largest.expand(shape))
    assert choice.choose(torch.tensor([[size, 0.0, size, 0.0]]), 1, None) == 2


def test_a_long_class_without_mass_hides_no_other():
    products, log_scale = torch.tensor([[-0.1, 0.2, 0.1, 1e-8]]), torch.tensor([500.0, 0.0, -1.0, 300.0])
    weights = choice.branch_weights(products, log_scale, floor=1e-7)
    torch.testing.assert_close(weights, torch.tensor([[0.0, 0.2, 0.1 / math.e, 0.0]]))
    nothing = choice.branch_weights(torch.zeros(1, 4), torch.full((4,), -torch.inf), floor=0.0)
    assert nothing.equal(torch.zeros(1, 4))


# Arguments that samplers share.


def test_a_seed_stands_for_a_generator_and_the_global_stream_is_left_alone(sampler):
    expected = sampler.sample(QUERIES, 10, seeded(3)).ids
    before = torch.random.get_rng_state()
    assert sampler.sample(QUERIES, 10, seed=3).ids.equal(expected)
    assert sampler.sample(QUERIES, 10, seed=np.int64(3)).ids.equal(expected)
    assert not sampler.sample(QUERIES, 10, seed=4).ids.equal(expected)
    sampler.log_prob(QUERIES, everything())
    assert torch.random.get_rng_state().equal(before)


def test_a_source_of_randomness_is_a_generator_or_a_seed(sampler):
    with pytest.raises(TypeError, match=r"^generator is 0; expected a torch\.Generator .*seed=0\)$"):
        sampler.sample(QUERIES, 2, 0)
    with pytest.raises(ValueError, match=r"^generator and seed are both given; expected one of them$"):
        sampler.sample(QUERIES, 2, Generator(), seed=0)
    with pytest.raises(TypeError, match=r"seed is 0\.5; expected a whole number"):
        sampler.sample(QUERIES, 2, seed=0.5)


def test_arrays_are_no_tensors(sampler):
    ids = torch.zeros(2, 3, 2, dtype=torch.long)
    for call in (
        lambda: sampler.sample(QUERIES.numpy(), 2),
        lambda: sampler.log_prob(QUERIES.tolist(), ids),
        lambda: sampler.log_prob(QUERIES, ids.numpy()),
    ):
        with pytest.raises(TypeError, match=r"(queries|ids) is of type (ndarray|list); expected a tensor"):
            call()


@pytest.mark.parametrize(
    "kind", [ExactSoftmaxSampler, lambda y: SoftmaxSampler(y, hrf.Positive(DIM, n_projections=8))]
)
def test_what_is_no_matrix_of_embeddings_is_refused(kind):
    array, one = np.zeros((CLASSES, DIM), dtype=np.float32), torch.tensor([1])
    sampler = kind(torch.from_numpy(array))
    for call, error, says in (
        (lambda: kind(array), TypeError, "class_embeddings is of type ndarray; expected a tensor"),
        (
            lambda: sampler.rebuild_(array),
            TypeError,
            "class_embeddings is of type ndarray; expected a tensor",
        ),
        (lambda: sampler.update_(one, array[:1]), TypeError, "class_embeddings is of type ndarray"),
        (lambda: sampler.update_(one.numpy(), torch.zeros(1, DIM)), TypeError, "ids is of type ndarray"),
        (lambda: kind(torch.zeros(3)), ValueError, r"class_embeddings is .*3.*; expected a tensor \(C, d\)"),
        (
            lambda: kind(torch.full((3, DIM), torch.nan)),
            ValueError,
            "class_embeddings has values that are NaN",
        ),
        (lambda: kind(torch.zeros(0, DIM)), ValueError, "n_classes is 0"),
    ):
        with pytest.raises(error, match=says):
            call()
