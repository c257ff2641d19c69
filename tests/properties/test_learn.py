"""Models of hrf.learn on any rows: parts in any order, and any partitions, some of them empty."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import dask
import dask.array as da
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone

from hrf.learn import KernelClassifier, RandomFeatures
from learn.models import MODELS, output, rows, targets
from properties.strategies import cases, seeds


@dataclass(frozen=True)
class Parts:
    """Rows of a few classes, divided somewhere."""

    number: int
    n_classes: int
    cuts: tuple[float, ...]
    by: str
    loss: str
    seed: int

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Return rows about one centre per class, and the classes; every class has a row."""
        generator = np.random.default_rng(self.seed)
        y = np.append(np.arange(self.n_classes), generator.integers(self.n_classes, size=self.number))
        return 2 * np.eye(self.n_classes, 3)[y] + 0.7 * generator.normal(size=(len(y), 3)), y

    def order(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        key = {"class": y, "class, from the last": -y, "column": x[:, 0]}[self.by]
        return np.argsort(key, kind="stable")

    def divided(self, n: int) -> list[slice]:
        """Return slices of n rows; some may be empty."""
        ends = [0, *sorted(round(cut * n) for cut in self.cuts), n]
        return [slice(a, b) for a, b in pairwise(ends)]


parts = st.builds(
    Parts,
    number=st.integers(20, 150),
    n_classes=st.integers(2, 3),
    cuts=st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.8, 1.0]), max_size=5).map(tuple),
    by=st.sampled_from(["class", "class, from the last", "column"]),
    loss=st.sampled_from(["logistic", "squared_hinge"]),
    seed=seeds,
)


@given(parts)
@cases(2)
def test_parts_in_any_order_give_the_classifier_of_all_rows(case):
    x, y = case.rows()
    given = {
        "loss": case.loss,
        "gamma": 0.3,
        "feature_map": "trigonometric",
        "n_features": 16,
        "random_state": 0,
    }
    whole = KernelClassifier(tol=1e-6, max_iter=2000, **given).fit(x, y)
    model = KernelClassifier(tol=1e-6, max_iter=2000, **given)
    order = case.order(x, y)
    for part in case.divided(len(x)):
        if len(chosen := order[part]):
            model.partial_fit(x[chosen], y[chosen], classes=np.arange(case.n_classes))
    np.testing.assert_allclose(model.decision_function(x), whole.decision_function(x), atol=0.02)


@given(parts, st.sampled_from(sorted(MODELS)), st.booleans())
@cases(4)
def test_partitions_do_not_matter(case, name, known):
    """Lengths of partitions may be unknown, and any of them may be empty."""
    x = rows(60 + case.number, seed=case.seed)
    y = targets(name, x)
    lazy = [None if u is None else _lazy([u[part] for part in case.divided(len(x))], known) for u in (x, y)]
    alone = clone(MODELS[name])
    alone.set_params(**{"n_components" if isinstance(alone, RandomFeatures) else "n_features": 16})
    if name in ("logistic", "hinge"):
        alone.set_params(tol=1e-6, max_iter=2000)
    with dask.config.set(scheduler="synchronous"):
        model = clone(alone).fit(*lazy)
        found = output(model, lazy[0]).compute()
    expected = output(alone.fit(x, y), x)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    if name != "k-means":  # whose starts depend on the sample
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def _lazy(blocks: list[np.ndarray], known: bool) -> da.Array:
    arrays = [
        da.from_delayed(dask.delayed(u), (len(u) if known else np.nan, *u.shape[1:]), u.dtype) for u in blocks
    ]
    return da.concatenate(arrays, allow_unknown_chunksizes=True)
