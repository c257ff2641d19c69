"""Test errors and fit times of one method on one split."""

from __future__ import annotations

from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.kernel_ridge import KernelRidge
from sklearn.svm import SVC

from benchmarks.kernel_methods.data import Split

__all__ = ["Outcome", "best_gamma", "exact_ridge", "features_and_ridge", "support_vectors"]

Array = NDArray[np.float64]

PENALTIES = 10.0 ** np.arange(-8, 2)
EXACT_PENALTIES = 10.0 ** np.arange(-3, 2)
C = 10.0 ** np.arange(0, 3)
LARGEST = 1e6
HELD_OUT = 0.2  # of the training rows, to choose a penalty by


class Outcome(NamedTuple):
    """Test error and seconds to fit, at the penalty that was chosen; ``name`` is the map that "auto" took."""

    error: float
    seconds: float
    penalty: float
    width: int = 0
    name: str = ""


def error_of(predicted: Array, data: Split) -> float:
    """Return the share of wrong classes, or the root of the mean squared error of the standardised target.

    Errors end at `LARGEST`, where features without bound meet rows far out.
    """
    if data.classes:
        return float((predicted.argmax(1) != data.new_y.argmax(1)).mean())
    return float(np.sqrt(np.square((predicted - data.new_y).clip(-LARGEST, LARGEST)).mean()))


def features_and_ridge(transformer: Any, data: Split) -> Outcome:
    """Fit transformer and ridge regression; the penalty is chosen on held-out training rows, outside the time."""
    targets = data.y.argmax(1) if data.classes else data.y[:, 0]
    start = perf_counter()
    features = transformer.fit(data.x, targets).transform(data.x)
    mapped = perf_counter() - start
    penalty = _best_penalty(features, data)
    start = perf_counter()
    weights, intercept = _ridge(features, data.y, penalty)
    seconds = mapped + perf_counter() - start
    predicted = transformer.transform(data.new_x) @ weights + intercept
    name = getattr(transformer, "map_name_", "")
    return Outcome(error_of(predicted, data), seconds, penalty, features.shape[1], name)


def _ridge(features: Array, y: Array, penalty: float) -> tuple[Array, Array]:
    """Return weights and intercept, by eigenvalues: those of positive features span more than a float64 can hold."""
    mean, target = features.mean(0), y.mean(0)
    centred = features - mean
    values, vectors = np.linalg.eigh(centred.T @ centred)
    weights = vectors @ (vectors.T @ (centred.T @ (y - target)) / (values.clip(min=0)[:, None] + penalty))
    return weights, target - mean @ weights


def _best_penalty(features: Array, data: Split) -> float:
    """Return the penalty with the least error on the last training rows, from one eigendecomposition."""
    n = round(len(features) * (1 - HELD_OUT))
    mean, target = features[:n].mean(0), data.y[:n].mean(0)
    centred = features[:n] - mean
    values, vectors = np.linalg.eigh(centred.T @ centred)
    weights = vectors.T @ (centred.T @ (data.y[:n] - target))
    new = (features[n:] - mean) @ vectors
    held_out = data._replace(new_y=data.y[n:])
    errors = [
        error_of(new @ (weights / (values.clip(min=0)[:, None] + p)) + target, held_out) for p in PENALTIES
    ]
    return float(PENALTIES[int(np.argmin(errors))])


def exact_ridge(data: Split, gamma: float, penalty: float) -> Outcome:
    """Fit scikit-learn's kernel ridge regression."""
    start = perf_counter()
    model = KernelRidge(alpha=penalty, kernel="rbf", gamma=gamma).fit(data.x, data.y)
    seconds = perf_counter() - start
    return Outcome(error_of(model.predict(data.new_x), data), seconds, penalty)


def support_vectors(data: Split, gamma: float, c: float) -> Outcome:
    """Fit scikit-learn's support vector machine to classes."""
    start = perf_counter()
    model = SVC(C=c, gamma=gamma).fit(data.x, data.y.argmax(1))
    seconds = perf_counter() - start
    wrong = float((model.predict(data.new_x) != data.new_y.argmax(1)).mean())
    return Outcome(wrong, seconds, 1 / c)


def held_out(data: Split, rows: int) -> Split:
    """Return a problem within the training rows: ``rows`` to train on, as many again to test on."""
    return data._replace(
        x=data.x[:rows], y=data.y[:rows], new_x=data.x[rows : 2 * rows], new_y=data.y[rows : 2 * rows]
    )


def best_gamma(data: Split, factors: tuple[float, ...], rows: int) -> tuple[float, float]:
    """Return the γ and the penalty of the best exact ridge regression on a part of the training rows."""
    part, d = held_out(data, rows), data.x.shape[1]
    tried = {
        (factor / d, p): exact_ridge(part, factor / d, p).error for factor in factors for p in EXACT_PENALTIES
    }
    return min(tried, key=lambda key: tried[key])
