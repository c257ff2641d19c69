"""Losses: slopes are derivatives of the values, and no curvature is above its bound."""

from __future__ import annotations

import numpy as np
import pytest

from hrf.learn.classifier import LOSSES, loss_of

GENERATOR = np.random.default_rng(0)


@pytest.mark.parametrize("name", sorted(LOSSES))
@pytest.mark.parametrize("k", [1, 4])
def test_slopes_are_derivatives(name, k):
    loss = LOSSES[name]
    scores, codes = GENERATOR.normal(size=(6, k)), GENERATOR.integers(max(k, 2), size=6)
    slope, step = loss.slope(scores, codes), 1e-6
    curvature = np.zeros_like(scores)
    for place in np.ndindex(scores.shape):
        up, down = scores.copy(), scores.copy()
        up[place] += step
        down[place] -= step
        rise = (loss.value(up, codes) - loss.value(down, codes)).sum()
        assert rise / (2 * step) == pytest.approx(slope[place], abs=1e-7)
        curvature[place] = (loss.slope(up, codes) - loss.slope(down, codes))[place] / (2 * step)
    assert curvature.max() <= loss.bound + 1e-7


def test_the_second_of_two_classes_is_positive():
    for loss in LOSSES.values():
        assert (
            loss.slope(np.zeros((1, 1)), np.array([1]))[0, 0]
            < 0
            < loss.slope(np.zeros((1, 1)), np.array([0]))[0, 0]
        )


def test_an_unknown_loss_is_named():
    with pytest.raises(ValueError, match="loss is 'hinge'; expected one of logistic, squared_hinge"):
        loss_of("hinge")
