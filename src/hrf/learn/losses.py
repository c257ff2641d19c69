"""Losses of linear classifiers: value and slope at scores.

Scores are ``(n, 1)`` for two classes and ``(n, k)`` for more; ``codes (n,)`` are places of the true classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import expit, log_softmax, softmax

from hrf.learn.rows import Array

__all__ = ["LOSSES", "Loss", "LossName", "loss_of"]

LossName = Literal["logistic", "squared_hinge"]


class Loss(NamedTuple):
    """A loss.

    Attributes:
        bound: the largest curvature in any score.
        value: the loss of every row of ``(scores, codes)``, ``(n,)``.
        slope: its derivative by the scores.
    """

    bound: float
    value: Callable[[Array, Array], Array]
    slope: Callable[[Array, Array], Array]


def _signs(scores: Array, codes: Array) -> Array:
    """Return 1 for the true class and −1 for all others; for two classes, the sign of the second one."""
    return np.where(np.equal(codes[:, None], _places(scores)), 1.0, -1.0)


def _places(scores: Array) -> Array:
    return np.array([1]) if scores.shape[1] == 1 else np.arange(scores.shape[1])


def _logistic_value(scores: Array, codes: Array) -> Array:
    if scores.shape[1] == 1:
        return np.logaddexp(0, -_signs(scores, codes) * scores)[:, 0]
    return -np.take_along_axis(log_softmax(scores, axis=1), codes[:, None], 1)[:, 0]


def _logistic_slope(scores: Array, codes: Array) -> Array:
    probability = expit(scores) if scores.shape[1] == 1 else softmax(scores, axis=1)
    return probability - np.equal(codes[:, None], _places(scores))


def _margins(scores: Array, codes: Array) -> Array:
    """Return max(0, 1 − sign · score)."""
    return (1 - _signs(scores, codes) * scores).clip(min=0)


def _hinge_value(scores: Array, codes: Array) -> Array:
    return np.square(_margins(scores, codes)).sum(1)


def _hinge_slope(scores: Array, codes: Array) -> Array:
    return -2 * _signs(scores, codes) * _margins(scores, codes)


LOSSES: dict[LossName, Loss] = {
    "logistic": Loss(0.25, _logistic_value, _logistic_slope),
    "squared_hinge": Loss(2.0, _hinge_value, _hinge_slope),
}


def loss_of(name: LossName) -> Loss:
    """Look up a loss by its name."""
    if name not in LOSSES:
        raise ValueError(f"loss is {name!r}; expected one of {', '.join(LOSSES)}")
    return LOSSES[name]
