"""The benchmark of kernel methods: what its numbers mean, and its tables."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from benchmarks.kernel_methods import measure, scaling, table
from benchmarks.kernel_methods.data import SETS, Split, read, split
from benchmarks.kernel_methods.methods import AUTO, BASELINE, TRANSFORMERS
from benchmarks.minilm import data_folder

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(300, 2))


def problem(classes: bool = False) -> Split:
    y = np.sin(X[:, :1])
    y = np.hstack([y > 0, y <= 0]).astype(float) if classes else y
    return Split(X[:200], y[:200], X[200:], y[200:], classes)


@pytest.mark.parametrize("name", sorted(TRANSFORMERS))
def test_every_method_learns(name):
    outcome = measure.features_and_ridge(TRANSFORMERS[name](0.3, 32, 0), problem())
    assert outcome.error < 0.5
    assert outcome.width <= 32


def test_errors_are_shares_or_roots():
    data = problem()
    assert measure.error_of(data.new_y + 0.5, data) == pytest.approx(0.5)
    classes = problem(classes=True)
    assert measure.error_of(classes.new_y, classes) == 0
    assert measure.error_of(classes.new_y[:, ::-1], classes) == 1


def test_ridge_is_that_of_scikit_learn():
    weights, intercept = measure._ridge(X, X[:, :1] ** 2, 0.1)
    model = Ridge(alpha=0.1).fit(X, X[:, 0] ** 2)
    np.testing.assert_allclose(weights[:, 0], model.coef_, rtol=1e-9)
    assert intercept[0] == pytest.approx(model.intercept_)


def test_exact_methods():
    gamma, penalty = measure.best_gamma(problem(), (0.1, 1.0), 80)
    assert gamma in (0.05, 0.5)
    assert measure.exact_ridge(problem(), gamma, penalty).error < 0.1
    assert measure.support_vectors(problem(classes=True), 0.5, 10.0).error < 0.1


def result() -> dict:
    def outcome(errors, width=32):
        return {"errors": errors, "seconds": [0.001] * 3, "width": width, "maps": ["a", "b", "a"]}

    methods = {
        AUTO: outcome([0.1, 0.2, 0.3]),
        BASELINE: outcome([0.2, 0.3, 0.4]),
        "wild": outcome([1e9] * 3),
        "KernelRidge (exact)": outcome([0.05] * 3, width=0),
    }
    return {"sets": {"one": {"methods": methods}}}


def test_tables():
    rows = dict(table.error_rows(result()))
    assert rows["auto"] == "**0.2000 ± 0.2484**"  # t = 4.303 with two degrees of freedom, s = 0.1
    assert rows["wild"] == "> 100"
    assert rows["*KernelRidge (exact)*"] == "0.0500 ± 0.0000"
    _, (name, difference, verdict, maps) = table.difference_rows(result())
    assert (name, difference, verdict, maps) == ("one", "-0.1000 ± 0.0000", "better", "a 2×, b 1×")
    assert table.time_rows(result())[1] == ["auto", "1"]


def test_the_table_of_many_rows():
    found = {"seconds": 2.0, "cpu_seconds": 3.0, "peak_megabytes": 400.4, "coefficient_difference": 1e-12}
    rows = table.scaling_rows({"sizes": {"100000": found}})
    assert rows[1] == ["100,000", "2.0", "3.0", "30.0", "400", "1e-12"]


@pytest.mark.skipif(not (data_folder() / "uci-regression").is_dir(), reason="the data sets are not there")
@pytest.mark.parametrize("name", SETS)
def test_data(name):
    x, y, masks = read(name)
    assert len(x) == len(y) == len(masks)
    data = split(name, 1, 500, 100)
    assert (len(data.x), len(data.new_x)) == (500, 100)
    np.testing.assert_allclose(data.x.mean(0), 0, atol=1e-9)
    assert data.classes == (name == "letter")
    assert data.y.shape[1] == (26 if data.classes else 1)


def test_blocks_are_made_alike_anywhere():
    assert np.array_equal(scaling.block(3), scaling.block(3))
    assert not np.array_equal(scaling.block(3), scaling.block(4))
