"""The vision Performer, its loss and its search."""

from __future__ import annotations

import pytest
import torch
from torch import Generator

import hrf
from hrf_paper.manipulation.cloning import cloning_loss, mirrored, negatives, search
from hrf_paper.manipulation.demonstrations import Disturbance
from hrf_paper.manipulation.performer import (
    DIVIDED,
    METHODS,
    PerformerConfig,
    VisionPerformer,
    attention_flops,
    attention_layer,
    patches,
    places,
)

SMALL = PerformerConfig(image_size=32, width=16, heads=2, layers=2, hidden=16, knots=4, values=3, code=12)


def policy(method: str = "exact") -> VisionPerformer:
    torch.manual_seed(0)
    return VisionPerformer(SMALL, method, Generator().manual_seed(0)).eval()


def observations(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = Generator().manual_seed(1)
    images = torch.randint(0, 256, (count, 32, 32, 3), generator=generator).to(torch.uint8)
    return images, torch.randn(count, 12, generator=generator)


def test_patches_are_pieces_of_the_image():
    images = torch.arange(2 * 8 * 8 * 3).view(2, 8, 8, 3)
    cut = patches(images, 4)
    assert cut.shape == (2, 4, 48)
    assert torch.equal(cut[1, 2].view(4, 4, 3), images[1, 4:, :4])


@pytest.mark.parametrize("method", [name for name in METHODS if name != "blind"])
def test_the_order_of_patches_does_not_matter(method):
    net = policy(method)
    images, poses = observations(2)[0], torch.randn(2, 132, generator=Generator().manual_seed(3))
    cut, at = patches(images.float() / 64, SMALL.patch), places(4)
    order = torch.randperm(16, generator=Generator().manual_seed(2))
    with torch.no_grad():
        straight, shuffled = net.read(cut, at, poses), net.read(cut[:, order], at[order], poses)
        moved = net.read(cut[:, order], at, poses)
    for part, same, other in zip(straight, shuffled, moved, strict=True):
        scale = part.abs().max()
        assert (part - same).abs().max() < 1e-4 * scale  # float32 sums in another order
        assert (part - other).abs().max() > 1e-2 * scale


def test_a_finer_grid_of_patches_is_read_on_the_same_knots():
    net = policy()
    cut = torch.randn(1, 36, 192, generator=Generator().manual_seed(0))
    fine, coarse = (net.read(cut[:, : n * n], places(n), torch.zeros(1, 132)) for n in (6, 4))
    assert [part.shape for part in fine] == [part.shape for part in coarse]


def test_pools_that_look_at_one_patch_expect_its_place():
    net = policy()
    with torch.no_grad():
        torch.nn.init.zeros_(net.offsets.weight)
        torch.nn.init.zeros_(net.offsets.bias)
    at = torch.tensor([[-1.0, -1.0]])  # the upper left corner
    assert torch.allclose(
        net.read(torch.zeros(1, 1, 192), at, torch.zeros(1, 132))[1], torch.tensor([-0.32, 0.38])
    )


@pytest.mark.parametrize("method", ["FAVOR+ 128", "HRF-A (8, 8)", "Trig 128"])
def test_many_features_approach_exact_attention(method):
    """The same weights with a map give nearly the output of exact attention."""
    exact = attention_layer("exact", 16, 2, Generator())
    layer = attention_layer(method, 16, 2, Generator().manual_seed(0))
    layer.load_state_dict(exact.state_dict())
    x = torch.randn(2, 30, 16, generator=Generator().manual_seed(1))
    with torch.no_grad():
        wanted, uniform = exact(x, x, x)[0], attention_layer("uniform", 16, 2, Generator())
        uniform.load_state_dict(exact.state_dict())
        error = (layer(x, x, x)[0] - wanted).norm()
        assert error < (uniform(x, x, x)[0] - wanted).norm()


def test_exact_attention_is_pytorchs_with_queries_and_keys_of_length_one():
    layer = attention_layer("exact", 8, 1, Generator())
    x = torch.randn(1, 5, 8, generator=Generator().manual_seed(0))
    q, k, v = torch.nn.functional.linear(x, layer.in_proj_weight, layer.in_proj_bias).chunk(3, -1)
    q, k = q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True)
    wanted = layer.out_proj(torch.softmax(q @ k.mT, -1) @ v)
    assert torch.allclose(layer(x, x, x)[0], wanted, atol=1e-6)


def test_a_blind_policy_ignores_the_image():
    images, poses = observations(2)
    assert torch.equal(policy("blind")(images, poses), policy("blind")(255 - images, poses))
    assert not torch.equal(policy()(images, poses), policy()(255 - images, poses))


def test_flops_of_maps_follow_the_library():
    per_token = attention_flops("HRF-A (8, 8)", 64, 64, 2) / 64 / 2
    made = hrf.AngularHybrid(32, n_projections=8, n_coefficient_projections=8)
    assert per_token == 2 * made.flops() + 4 * made.active_width * 33
    assert attention_flops("FAVOR+ equal FLOPs", 64, 64, 2) <= attention_flops("HRF-A (8, 8)", 64, 64, 2)
    assert attention_flops("exact", 64, 64, 2) == 2 * 64 * 64 * 4 * 32
    few, many = policy().flops(10), policy().flops(20)
    assert few.encoder == many.encoder > few.attention > 0
    assert few.search < many.search < 2 * few.search


def test_negatives_are_uniform_and_near():
    actions = torch.full((4, 6), 0.5)
    drawn = negatives(actions, 100, 0.5, Generator().manual_seed(0))
    assert drawn.shape == (4, 100, 6)
    assert drawn.abs().max() <= 1
    distances = (drawn - 0.5).abs().mean(-1)
    assert distances[:, :50].mean() < 0.5 * distances[:, 50:].mean()
    uniform = negatives(actions, 100, 0.0, Generator().manual_seed(0))
    assert (uniform - 0.5).abs().mean() > 0.5  # 0.625 in the mean


def test_the_loss_of_a_constant_energy_is_that_of_a_guess(monkeypatch):
    net = policy()
    monkeypatch.setattr(net, "energy", lambda code, actions, arm: torch.zeros(actions.shape[:2]))
    images, poses = observations(3)
    loss = cloning_loss(
        net, images, poses, torch.zeros(3, 12), count=31, near=0.0, generator=Generator().manual_seed(0)
    )
    assert loss.item() == pytest.approx(torch.log(torch.tensor(32.0)).item())


def test_a_search_finds_the_best_action(monkeypatch):
    net = policy()
    best = torch.tensor([0.3, -0.8, 1.0, 0.0, 0.1, -0.2])
    monkeypatch.setattr(net, "energy", lambda code, actions, arm: -20 * (actions - best).square().sum(-1))
    found = search(net, *observations(2), samples=256, rounds=6, generator=Generator().manual_seed(0))
    assert (found - best.repeat(2)).abs().max() < 0.15


def test_an_energy_is_the_logarithm_of_a_mixture():
    net = policy()
    code, actions = torch.rand(2, 12), torch.rand(2, 7, 6)
    shapes = net.energies[1].shapes(code).view(2, 4, 7)
    wanted = torch.zeros(2, 7)
    for bump in shapes.unbind(1):
        density = torch.distributions.Normal(1.1 * bump[:, None, 1:].tanh(), 0.5).log_prob(actions).sum(-1)
        wanted += torch.exp(
            bump[:, :1] + density - 6 * torch.distributions.Normal(0.0, 0.5).log_prob(torch.zeros(()))
        )
    assert torch.allclose(net.energy(code, actions, 1), wanted.log(), atol=1e-3)


def test_mirrored_twice_is_the_same():
    images, poses = observations(2)
    actions = torch.rand(2, 12)
    once = mirrored(images, poses, actions)
    assert not torch.equal(once[0], images)
    for part, other in zip(mirrored(*once), (images, poses, actions), strict=True):
        assert torch.equal(part, other)


def test_disturbances_drive_arms_off_and_can_be_absent():
    import numpy as np

    action = np.zeros(12)
    assert not Disturbance(0.0, np.random.default_rng(0)).applied(action).any()
    driven = Disturbance(1.0, np.random.default_rng(0)).applied(action)
    assert driven.any()
    assert np.abs(driven).max() <= 1


def test_bad_sizes_and_methods_get_a_sentence():
    with pytest.raises(ValueError, match="image_size is 60 with patches of 8; expected a multiple"):
        PerformerConfig(image_size=60)
    with pytest.raises(ValueError, match="width is 10 for 4 heads; expected a multiple"):
        PerformerConfig(width=10)
    with pytest.raises(ValueError, match="there is no method 'favour'; expected one of exact, FAVOR"):
        policy("favour")


@pytest.mark.parametrize("method", DIVIDED)
def test_sums_that_are_divided_as_they_are_have_gradients(method):
    net = policy(method)
    net(*observations(1)).sum().backward()
    assert net.embed.weight.grad is not None
