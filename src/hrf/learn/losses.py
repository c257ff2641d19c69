"""Losses of linear classifiers: value, slope and curvature at scores.

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
    """A loss, summed over rows.

    Attributes:
        bound: the largest curvature in any score.
        value: the loss of ``(scores, codes)``.
        slope: its derivative by the scores.
        curvature: its second derivative by the scores of a row, on average over classes: ``(n,)``.
    """

    bound: float
    value: Callable[[Array, Array], float]
    slope: Callable[[Array, Array], Array]
    curvature: Callable[[Array, Array], Array]


def _signs(scores: Array, codes: Array) -> Array:
    """Return 1 for the true class and −1 for all others; for two classes, the sign of the second one."""
    return np.where(np.equal(codes[:, None], _places(scores)), 1.0, -1.0)


def _places(scores: Array) -> Array:
    return np.array([1]) if scores.shape[1] == 1 else np.arange(scores.shape[1])


def _logistic_value(scores: Array, codes: Array) -> float:
    if scores.shape[1] == 1:
        return float(np.logaddexp(0, -_signs(scores, codes) * scores).sum())
    return -float(np.take_along_axis(log_softmax(scores, axis=1), codes[:, None], 1).sum())


def _logistic_slope(scores: Array, codes: Array) -> Array:
    probability = expit(scores) if scores.shape[1] == 1 else softmax(scores, axis=1)
    return probability - np.equal(codes[:, None], _places(scores))


def _logistic_curvature(scores: Array, codes: Array) -> Array:
    probability = expit(scores) if scores.shape[1] == 1 else softmax(scores, axis=1)
    return (probability * (1 - probability)).mean(1)


def _margins(scores: Array, codes: Array) -> Array:
    """Return max(0, 1 − sign · score)."""
    return (1 - _signs(scores, codes) * scores).clip(min=0)


def _hinge_value(scores: Array, codes: Array) -> float:
    return float(np.square(_margins(scores, codes)).sum())


def _hinge_slope(scores: Array, codes: Array) -> Array:
    return -2 * _signs(scores, codes) * _margins(scores, codes)


def _hinge_curvature(scores: Array, codes: Array) -> Array:
    return 2.0 * (_margins(scores, codes) > 0).mean(1)


LOSSES: dict[LossName, Loss] = {
    "logistic": Loss(0.25, _logistic_value, _logistic_slope, _logistic_curvature),
    "squared_hinge": Loss(2.0, _hinge_value, _hinge_slope, _hinge_curvature),
}


def loss_of(name: LossName) -> Loss:
    """Look up a loss by its name."""
    if name not in LOSSES:
        raise ValueError(f"loss is {name!r}; expected one of {', '.join(LOSSES)}")
    return LOSSES[name]
