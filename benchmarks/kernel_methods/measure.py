"""Test error, CPU seconds and memory of one fit, and the search for γ and the penalty that all methods share."""

from __future__ import annotations

import resource
import sys
from functools import lru_cache
from time import process_time
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.kernel_methods.data import Split, split
from benchmarks.kernel_methods.methods import METHODS, Setting
from hrf.learn import KernelRidge
from hrf.learn.rows import ridge

__all__ = [
    "FAMILIES",
    "SEARCHED_WIDTHS",
    "Outcome",
    "best_setting",
    "data_of",
    "error_of",
    "fitted",
    "measured",
]

Array = NDArray[np.float64]

FAMILIES = {"random": "trigonometric", "landmarks": "landmarks"}
SEARCHED_WIDTHS = (256, 1024, 2048)
FACTORS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # of 1/d, for γ
PENALTIES = 10.0 ** np.arange(-6, 2)
SEARCH_ROWS, HELD_OUT_ROWS = 8_000, 3_000
LARGEST = 1e6
CLOSE = 1.005  # the largest penalty whose error is so near the least is taken
ALL = 10**9


class Outcome(NamedTuple):
    """Test error, CPU seconds to fit, the most memory that the fit added in megabytes, and the map that "auto" took."""

    error: float
    seconds: float
    megabytes: float
    map_name: str


@lru_cache(maxsize=2)
def data_of(name: str, seed: int) -> Split:
    """Return all rows of a set."""
    return split(name, seed, ALL, ALL)


def error_of(predicted: Array, data: Split) -> float:
    """Return the share of wrong classes, or the root of the mean squared error of the standardised target.

    Errors end at `LARGEST`, where features without bound meet rows far out.
    """
    if data.classes:
        return float((predicted.argmax(1) != data.new_y.argmax(1)).mean())
    return float(np.sqrt(np.square((predicted - data.new_y).clip(-LARGEST, LARGEST)).mean()))


def fitted(method: str, setting: Setting, data: Split) -> Outcome:
    """Fit on all rows, in CPU seconds of one thread, and measure the test error."""
    model: Any = METHODS[method](setting)
    before, start = _peak(), process_time()
    model.fit(data.x, data.y)
    seconds, after = process_time() - start, _peak()
    predicted = np.asarray(model.predict(data.new_x)).reshape(len(data.new_x), -1)
    chosen = model.features_.map_name_ if isinstance(model, KernelRidge) else ""
    return Outcome(error_of(predicted, data), seconds, after - before, chosen)


def measured(method: str, setting: Setting, name: str) -> Outcome:
    """Do as `fitted` on all rows of a set, whose split is the seed."""
    torch.set_num_threads(1)
    return fitted(method, setting, data_of(name, setting.seed))


def _peak() -> float:
    """Return the most memory that this process ever held, in megabytes: exact in a fresh process only."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        1 << 20 if sys.platform == "darwin" else 1024
    )


def best_setting(name: str, family: str, width: int, rows: int = SEARCH_ROWS) -> dict[str, float]:
    """Return γ and penalty with the least error on held-out training rows of the first split."""
    data = data_of(name, 0)
    part = data._replace(
        x=data.x[:rows],
        y=data.y[:rows],
        new_x=data.x[rows : rows + HELD_OUT_ROWS],
        new_y=data.y[rows : rows + HELD_OUT_ROWS],
    )
    found: dict[tuple[float, float], float] = {}
    for factor in FACTORS:
        gamma = factor / data.x.shape[1]
        errors = _errors(part, Setting(gamma, 1.0, width, 0), FAMILIES[family])
        found |= {(gamma, float(penalty)): error for penalty, error in zip(PENALTIES, errors, strict=True)}
    least = min(found.values())
    gamma, _ = min(found, key=lambda key: found[key])
    alpha = max(penalty for (g, penalty), error in found.items() if g == gamma and error <= CLOSE * least)
    return {"gamma": gamma, "alpha": alpha, "error": least}


def _errors(part: Split, setting: Setting, feature_map: str) -> list[float]:
    """Return held-out errors at all penalties, from one pass over the rows."""
    model = KernelRidge(
        gamma=setting.gamma,
        feature_map=feature_map,
        n_features=setting.width,
        random_state=0,
        solver="direct",
    ).fit(part.x, part.y)
    sums, errors = model.sums_, []
    assert sums is not None
    centred, features = sums.centred(), model.features_.transform(part.new_x)
    for penalty in PENALTIES:
        coef = ridge(centred.gram, float(penalty), centred.cross)
        errors.append(error_of(features @ coef + (sums.targets - sums.features @ coef) / sums.n_rows, part))
    return errors
