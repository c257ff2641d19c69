"""Samplers of any classes: every draw is possible, states its probability, and depends on nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor
from torch.nn import functional as F

import hrf
from features.registry import DIM, MAPS, build
from hrf import tuning
from hrf.sampling import SoftmaxSampler
from properties.strategies import cases, seeds

_CLEAR = 1e3  # times eps: estimates above this, relative to what was summed, are more than noise


@dataclass(frozen=True)
class Classes:
    """Arguments of a sampler, with classes of very different lengths."""

    name: str
    number: int
    queries: int
    norm: float
    longest: float
    leaf_size: int
    dtype: torch.dtype
    seed: int

    def embeddings(self) -> Tensor:
        """Return classes of one norm, and the first of another."""
        y = self.norm * torch.randn(self.number, DIM, generator=Generator().manual_seed(self.seed)).to(
            self.dtype
        )
        y[0] *= self.longest
        return y

    def vectors(self) -> Tensor:
        generator = Generator().manual_seed(self.seed + 1)
        return self.norm * torch.randn(self.queries, DIM, generator=generator).to(self.dtype)

    def feature_map(self) -> hrf.FeatureMap:
        return build(self.name, seed=self.seed).to(self.dtype)

    def sampler(self) -> SoftmaxSampler:
        return SoftmaxSampler(self.embeddings(), self.feature_map(), leaf_size=self.leaf_size)


classes = st.builds(
    Classes,
    name=st.sampled_from(list(MAPS)),
    number=st.integers(1, 60),
    queries=st.sampled_from([1, 2, 9, 64]),
    norm=st.sampled_from([0.0, 0.3, 1.0, 3.0, 10.0, 100.0]),
    longest=st.sampled_from([0.0, 1.0, 5.5, 30.0]),
    leaf_size=st.sampled_from([1, 4]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=seeds,
)


@pytest.fixture(scope="module", autouse=True)
def _several_levels():
    with patch.object(tuning, "TREE_TOP", 3):
        yield


def log_probs(sampler: SoftmaxSampler, queries: Tensor) -> Tensor:
    return sampler.log_prob(queries, torch.arange(sampler.n_classes).expand(len(queries), -1))


def tolerance(sampler: SoftmaxSampler, queries: Tensor) -> Tensor:
    """Bound the rounding of log-probabilities, per query: eps over the least mass of a node that is no noise.

    Infinite where a mass is so close to noise that rounding decides whether it counts.
    """
    eps, phi = torch.finfo(sampler.embeddings.dtype).eps, sampler.feature_map
    longest = 1 + queries.norm(dim=-1) + sampler.embeddings.norm(dim=-1).amax()
    unit = 64 * eps * longest.square()
    if phi.nonnegative:
        return unit
    x = F.normalize(phi.scaled_queries(queries).values, dim=-1)
    leaves = F.normalize(phi.scaled_keys(sampler.embeddings).values, dim=-1)
    cosines = torch.cat([x @ nodes.mT for nodes in (*sampler.levels, leaves)], -1)
    least = cosines.abs().masked_fill(cosines == 0, 1).amin(-1)
    return torch.where(least > _CLEAR * eps, unit / least, torch.inf)


def assert_close(mine: Tensor, theirs: Tensor, limit: Tensor) -> None:
    """Log-probabilities agree where rounding does not decide; both may be −∞."""
    equal = mine == theirs
    assert (equal | ((mine - theirs).abs() <= limit.unsqueeze(-1)) | ~(limit < 0.1).unsqueeze(-1)).all()


@given(classes, st.data())
@cases(4)
def test_draws_state_their_probabilities(case, data):
    sampler, queries = case.sampler(), case.vectors()
    k = data.draw(st.integers(1, case.number), label="k")
    ids, log_q = sampler.sample(queries, k, seed=case.seed)
    assert ids.shape == log_q.shape == (case.queries, k)
    assert ((ids >= 0) & (ids < case.number)).all()
    assert log_q.isfinite().all()
    assert_close(log_q, sampler.log_prob(queries, ids), tolerance(sampler, queries))
    total = log_probs(sampler, queries).exp().sum(-1)
    eps = torch.finfo(case.dtype).eps
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=64 * (4 + case.number) * eps)


@given(classes)
@cases(4)
def test_every_class_can_be_drawn(case):
    """So that a loss on draws leaves nothing out: no probability is below the share of uniform draws."""
    sampler, queries = case.sampler(), case.vectors()
    least = log_probs(sampler, queries).exp().min() * case.number
    assert least >= sampler.uniform_share * (1 - 64 * torch.finfo(case.dtype).eps)
    assert sampler.uniform_share > 0


@given(classes)
@cases(4)
def test_probabilities_do_not_depend_on_the_batch(case):
    sampler, queries = case.sampler(), case.vectors()
    apart = torch.cat([log_probs(sampler, query) for query in queries.split(1)])
    assert_close(log_probs(sampler, queries), apart, tolerance(sampler, queries))


@given(classes, st.data())
@cases(4)
def test_an_update_is_a_rebuild(case, data):
    sampler, queries = case.sampler(), case.vectors()
    ids = data.draw(st.lists(st.integers(0, case.number - 1), unique=True, max_size=5), label="ids")
    ids, norm = (
        torch.tensor(ids, dtype=torch.long),
        data.draw(st.sampled_from([0.0, 0.1, 1.0, 10.0]), label="norm"),
    )
    new = norm * torch.randn(len(ids), DIM, generator=Generator().manual_seed(case.seed)).to(case.dtype)
    changed = case.embeddings().index_copy(0, ids, new)
    fresh = SoftmaxSampler(changed, case.feature_map(), leaf_size=case.leaf_size)
    sampler.update_(ids, new)
    limit = torch.maximum(tolerance(sampler, queries), tolerance(fresh, queries))
    assert_close(log_probs(sampler, queries), log_probs(fresh, queries), limit)
