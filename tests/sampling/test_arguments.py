"""Arguments that samplers share: one sentence for each mistake."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Generator

import hrf
from hrf.sampling import ExactSoftmaxSampler, LogUniformSampler, SoftmaxSampler, UniformSampler

DIM, CLASSES = 4, 21
QUERIES = torch.randn(5, DIM, generator=Generator().manual_seed(0))


def samplers():
    classes = torch.randn(CLASSES, DIM, generator=Generator().manual_seed(1))
    phi = hrf.Positive(DIM, n_projections=8, generator=Generator().manual_seed(2))
    return [
        UniformSampler(CLASSES),
        LogUniformSampler(CLASSES),
        ExactSoftmaxSampler(classes),
        SoftmaxSampler(classes, phi),
    ]


@pytest.fixture(params=samplers(), ids=lambda sampler: type(sampler).__name__)
def sampler(request):
    return request.param


def test_a_seed_stands_for_a_generator(sampler):
    expected = sampler.sample(QUERIES, 10, Generator().manual_seed(3)).ids
    before = torch.random.get_rng_state()
    assert sampler.sample(QUERIES, 10, seed=3).ids.equal(expected)
    assert sampler.sample(QUERIES, 10, seed=np.int64(3)).ids.equal(expected)
    assert torch.random.get_rng_state().equal(before)
    assert not sampler.sample(QUERIES, 10, seed=4).ids.equal(expected)


def test_a_source_of_randomness_is_a_generator_or_a_seed(sampler):
    with pytest.raises(TypeError, match=r"^generator is 0; expected a torch\.Generator .*seed=0\)$"):
        sampler.sample(QUERIES, 2, 0)
    with pytest.raises(TypeError, match=r"^generator is Generator\(PCG64\)"):
        sampler.sample(QUERIES, 2, np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"^generator and seed are both given; expected one of them$"):
        sampler.sample(QUERIES, 2, Generator(), seed=0)
    for seed in (0.5, "0", True):
        with pytest.raises(TypeError, match=r"seed is .*; expected a whole number"):
            sampler.sample(QUERIES, 2, seed=seed)


def test_arrays_are_no_tensors(sampler):
    ids = torch.zeros(5, 2, dtype=torch.long)
    for wrong in (QUERIES.numpy(), QUERIES.tolist()):
        with pytest.raises(TypeError, match=r"queries is of type (ndarray|list); expected a tensor"):
            sampler.sample(wrong, 2)
        with pytest.raises(TypeError, match=r"queries is of type (ndarray|list); expected a tensor"):
            sampler.log_prob(wrong, ids)
    for wrong in (ids.numpy(), ids.tolist()):
        with pytest.raises(TypeError, match=r"ids is of type (ndarray|list); expected a tensor"):
            sampler.log_prob(QUERIES, wrong)


@pytest.mark.parametrize(
    "kind", [ExactSoftmaxSampler, lambda y: SoftmaxSampler(y, hrf.Positive(DIM, n_projections=8))]
)
def test_arrays_are_no_embeddings(kind):
    classes = np.zeros((CLASSES, DIM), dtype=np.float32)
    for wrong in (classes, classes.tolist(), None):
        with pytest.raises(TypeError, match=r"class_embeddings is of type .*; expected a tensor"):
            kind(wrong)
    sampler = kind(torch.from_numpy(classes))
    with pytest.raises(TypeError, match="class_embeddings is of type ndarray; expected a tensor"):
        sampler.rebuild_(classes)
    with pytest.raises(TypeError, match="class_embeddings is of type ndarray; expected a tensor"):
        sampler.update_(torch.tensor([1]), classes[:1])
    with pytest.raises(TypeError, match="ids is of type ndarray; expected a tensor"):
        sampler.update_(np.array([1]), torch.zeros(1, DIM))
