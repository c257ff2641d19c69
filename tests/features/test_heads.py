"""A map restricted to part of its heads is a map."""

from __future__ import annotations

import pytest
import torch

from features.registry import MAPS, X, Y, build
from hrf.features.base import FeatureMap, of_heads

every_map = pytest.mark.parametrize("name", MAPS)
SOME = slice(1, 3)


def _uneven(name: str) -> FeatureMap:
    """A map whose heads differ in everything."""
    phi = build(name, heads=4)
    for buffer in phi.buffers():
        if buffer.is_floating_point():
            factors = 1 + 0.1 * torch.arange(len(buffer), dtype=buffer.dtype) / len(buffer)
            buffer.mul_(factors.view(-1, *[1] * (buffer.ndim - 1)))
    return phi


@every_map
def test_estimates_are_those_of_these_heads(name):
    phi = _uneven(name)
    x, y = (u.expand(4, -1, -1) for u in (X, Y))
    part = of_heads(phi, SOME)
    assert (part.heads, phi.heads) == (2, 4)
    assert torch.equal(part.estimate(x[SOME], y[SOME]), phi.estimate(x, y)[SOME])


@every_map
def test_heads_may_be_chosen_by_index_and_repeated(name):
    phi, index = _uneven(name), torch.tensor([2, 0, 2])
    x, y = (u.expand(4, -1, -1) for u in (X, Y))
    part = of_heads(phi, index)
    assert part.heads == 3
    assert torch.equal(part.estimate(x[index], y[index]), phi.estimate(x, y)[index])


@every_map
def test_buffers_are_views(name):
    phi = _uneven(name)
    for mine, whole in zip(of_heads(phi, SOME).buffers(), phi.buffers(), strict=True):
        assert mine.data_ptr() == whole[len(whole) // 4 :].data_ptr()
        assert len(mine) == len(whole) // 2


def test_shared_projections_stay_shared():
    part = of_heads(build("angular hybrid", heads=4), SOME)
    assert part.bases[0].projection is part.bases[1].projection


def test_parameters_get_their_gradients():
    phi = build("positive", heads=4)
    omega = phi.projection.omega
    del phi.projection.omega
    phi.projection.omega = torch.nn.Parameter(omega)
    of_heads(phi, SOME).estimate(X[None], Y[None]).sum().backward()
    touched = phi.projection.omega.grad.flatten(1).any(1)
    assert touched.tolist() == [False, True, True, False]


def test_a_map_without_heads_or_for_all_of_them_is_its_own():
    for phi in (build("positive"), build("positive", heads=4)):
        assert of_heads(phi, slice(0, 4)) is phi
