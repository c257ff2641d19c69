from __future__ import annotations

import pytest
import torch
from torch import Generator

import hrf
from hrf_paper.locomotion import ImplicitAttentionPolicy, PolicyConfig
from hrf_paper.locomotion.policy import METHODS, attention_received, build, cut, ranking_flops

MAPS = [name for name in METHODS if name not in ("exact", "uniform", "blind")]


def unit_vectors(n, dim=8, seed=0):
    drawn = torch.randn(2, n, dim, generator=Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(drawn, dim=-1)


def parameters(policy, seed=0):
    """Parameters of a policy that sees something."""
    drawn = torch.randn(policy.n_parameters, generator=Generator().manual_seed(seed))
    return policy.first_parameters() + 0.3 * drawn


def observation(seed=0, batch=()):
    generator = Generator().manual_seed(seed)
    return torch.randn(*batch, 2, 24, 32, generator=generator), torch.tensor([0.33, -0.1]).expand(*batch, 2)


@pytest.mark.parametrize("name", MAPS)
def test_ranking_by_features_is_that_of_the_estimated_matrix(name):
    queries, keys = unit_vectors(20)
    feature_map = build(name, 8, Generator().manual_seed(0)).double()
    matrix = feature_map.estimate(queries, keys)
    expected = (matrix / matrix.sum(-1, keepdim=True)).sum(0)
    torch.testing.assert_close(attention_received(queries, keys, feature_map), expected)


def test_many_features_rank_like_exact_attention():
    queries, keys = unit_vectors(20)
    exact = attention_received(queries, keys, "exact")
    estimated = attention_received(
        queries, keys, hrf.Positive(8, n_projections=20_000, generator=Generator().manual_seed(0)).double()
    )
    assert exact.sum().item() == pytest.approx(20)
    torch.testing.assert_close(estimated, exact, atol=0.05, rtol=0)


def test_attention_that_is_not_finite_is_named():
    queries, keys = unit_vectors(4)
    keys[0, 0] = torch.nan
    with pytest.raises(FloatingPointError, match="attention by exact is not finite"):
        attention_received(queries, keys, "exact")


def test_flops_follow_the_maps():
    hybrid, positive = (build(name, 8, Generator()) for name in ("HRF-A (8, 8)", "FAVOR+ 256"))
    assert isinstance(hybrid, hrf.FeatureMap)
    assert isinstance(positive, hrf.FeatureMap)
    assert ranking_flops(positive, 96, 8) == 96 * (2 * positive.flops() + 7 * 512)
    assert ranking_flops(hybrid, 96, 8) * 2 == ranking_flops(hybrid, 192, 8)
    assert ranking_flops("exact", 96, 8) * 4 == ranking_flops("exact", 192, 8)
    for name in ("FAVOR+ 58", "Trig 58"):
        small = build(name, 8, Generator())
        larger = hrf.catalogue.build(name.replace("58", "59"), 8)
        assert ranking_flops(small, 96, 8) <= ranking_flops(hybrid, 96, 8) < ranking_flops(larger, 96, 8)
    assert ranking_flops("uniform", 96, 8) == 0


def test_a_decision_costs_more_than_its_ranking():
    for name in METHODS:
        policy = ImplicitAttentionPolicy(PolicyConfig(method=name))
        assert policy.flops() >= policy.ranking_flops()
    assert policy.flops() == 0  # blind


@pytest.mark.parametrize("name", METHODS)
def test_a_batch_decides_like_its_members(name):
    policy = ImplicitAttentionPolicy(PolicyConfig(method=name))
    depth, footholds = observation(batch=(3,))
    together = policy.decide(parameters(policy), depth, footholds)
    for i in range(3):
        alone = policy.decide(parameters(policy), depth[i], footholds[i])
        assert torch.equal(alone.action, together.action[i])
        assert torch.equal(alone.kept, together.kept[i])


@pytest.mark.parametrize("name", ["exact", *MAPS])
def test_the_order_of_patches_does_not_matter(name):
    """Tokens carry their place, so that a permutation permutes what is kept, and nothing else."""
    queries, keys = unit_vectors(30, seed=1)
    method = build(name, 8, Generator().manual_seed(0))
    if isinstance(method, hrf.FeatureMap):
        method = method.double()
    order = torch.randperm(30, generator=Generator().manual_seed(2))
    received = attention_received(queries, keys, method)
    torch.testing.assert_close(attention_received(queries[order], keys[order], method), received[order])


def test_masked_patches_have_no_influence():
    policy = ImplicitAttentionPolicy(PolicyConfig(method="uniform"))
    theta = parameters(policy)
    depth, footholds = observation()
    values = policy.split(theta)["value"]
    blind = theta.clone()
    blind[policy.n_parameters - 8 - len(values) : policy.n_parameters - 8] = 0
    assert not policy.split(blind)["value"].any()
    nothing = ImplicitAttentionPolicy(PolicyConfig(method="blind"))
    assert torch.equal(
        policy.decide(blind, depth, footholds).action, nothing.decide(theta, depth, footholds).action
    )


def test_a_first_policy_sees_nothing_and_a_later_one_does():
    policy = ImplicitAttentionPolicy(PolicyConfig(method="exact"))
    first = [policy.decide(policy.first_parameters(), *observation(seed)).action for seed in range(9)]
    torch.testing.assert_close(torch.stack(first), torch.zeros(9, 2), atol=1e-6, rtol=0)
    later = torch.stack([policy.decide(parameters(policy), *observation(seed)).action for seed in range(9)])
    assert (later.std(0) > 0.1).all()


def test_as_many_patches_are_kept_as_asked():
    policy = ImplicitAttentionPolicy(PolicyConfig(kept=10))
    assert int(policy.decide(parameters(policy), *observation()).kept.sum()) == 10


def test_patches_are_cut_row_by_row():
    images = torch.arange(2 * 24 * 32).reshape(2, 24, 32)
    patches = cut(images, (2, 8))
    assert patches.shape == (96, 16)
    assert torch.equal(patches[5].reshape(2, 8), images[0, 2:4, 8:16])
    assert torch.equal(patches[48].reshape(2, 8), images[1, :2, :8])


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ({"method": "FAVOR"}, "method is 'FAVOR'; expected one of exact"),
        ({"patch": (5, 8)}, r"patch is \(5, 8\); expected divisors of 24 and 32"),
        ({"kept": 97}, "kept is 97; expected 1 to 96"),
        ({"dim": 0}, "dim is 0 and candidates is 21"),
    ],
)
def test_policies_that_cannot_be_get_a_sentence(sizes, sentence):
    with pytest.raises(ValueError, match=sentence):
        PolicyConfig(**sizes)
