"""`advise_kernel`: maps for kernel machines, by the error of the kernel or of ridge regression."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

import hrf
from hrf.advice import kernel_advisor
from hrf.advice.errors import GramProblem, LabelledRows, plain_features
from hrf.advice.kernel_advisor import ADVISED, NAMES, make_map

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(200, 3, generator=GENERATOR, dtype=torch.float64)
Y = X[:, :1].sin()


@pytest.fixture(scope="module")
def by_kernel():
    return hrf.advise_kernel(X, gamma=0.3, budget=32)


@pytest.fixture(scope="module")
def by_ridge():
    return hrf.advise_kernel(X.numpy(), Y.numpy()[:, 0], gamma=0.3, budget=32)


def test_every_map_is_measured_once(by_kernel, by_ridge):
    for advice in (by_kernel, by_ridge):
        assert sorted(c.name for c in advice.ranking) == sorted(ADVISED)
        assert advice.left_out == {}
        assert [c.high for c in advice.ranking] == sorted(c.high for c in advice.ranking)
        assert all(c.width == c.feature_map.feature_dim == 32 for c in advice.ranking)
    assert by_kernel.settings.objective == "gram"
    assert by_ridge.settings.objective == "ridge"


def test_the_error_of_the_kernel_is_that_of_the_features(by_kernel):
    problem, _ = kernel_advisor._split(kernel_advisor._checked(X, None, 0.6**0.5), 0)
    x = problem.held_out.x
    half = len(x) // 2
    exact = hrf.kernels.gaussian(x[:half], x[half:])
    for candidate in by_kernel.ranking:
        f = candidate.feature_map.queries(x)
        error = problem.error(candidate.feature_map, 1, torch.Generator())
        assert error.value == pytest.approx(
            float((f[:half] @ f[half:].mT - exact).square().mean().sqrt()), rel=1e-6
        )
        # A closed form is the root of the mean over all draws; those of positive features that make it up are rare.
        if candidate.name == "trigonometric":
            assert candidate.low / 2 <= candidate.predicted <= 2 * candidate.high


@pytest.mark.parametrize("n", [20, 150])
def test_the_error_of_regression_is_that_of_ridge(n):
    """At the best penalty; with fewer rows than features, and with more."""
    phi = make_map("trigonometric", X, 32, kernel="rbf", projection="orthogonal", seed=0)
    fitted, held_out = LabelledRows(X[:n], Y[:n]), LabelledRows(X[150:], Y[150:])
    found = GramProblem(fitted, held_out).error(phi, 1, torch.Generator()).value
    f, g = (phi.queries(rows.x).numpy() for rows in (fitted, held_out))
    errors = []
    for penalty in 10.0 ** np.arange(-7, 3):
        predicted = Ridge(alpha=penalty, solver="svd").fit(f, Y[:n, 0].numpy()).predict(g)
        errors.append(np.linalg.norm(predicted - Y[150:, 0].numpy()))
    exact = min(errors) / np.linalg.norm(Y[150:, 0].numpy() - Y[:n].mean().item())
    assert found == pytest.approx(exact, rel=1e-4)


def test_one_seed_gives_one_advice(by_ridge):
    again = hrf.advise_kernel(X, Y, gamma=0.3, budget=32)
    assert again.to_dict() == by_ridge.to_dict()
    assert hrf.advise_kernel(X, Y, gamma=0.3, budget=32, seed=1).to_dict() != by_ridge.to_dict()


def test_a_warning_if_nothing_is_better_than_a_mean():
    noise = torch.randn(200, 1, generator=GENERATOR)
    warning = hrf.advise_kernel(X, noise, gamma=0.3, budget=32).warning
    assert "hardly better than ignoring the rows (mean of the targets: 1.00). Rows have norm 1.4" in warning


def test_targets_without_variation_are_left_out():
    assert hrf.advise_kernel(X, torch.ones(200, 1), gamma=0.3, budget=16).settings.objective == "gram"


@pytest.mark.parametrize("name", NAMES)
def test_maps_by_name_have_the_width_and_the_kernel(name):
    for kernel, estimated in (("rbf", "gaussian"), ("softmax", "softmax")):
        phi = make_map(name, X, 40, kernel=kernel, projection="orthogonal", seed=0)
        assert 32 <= phi.feature_dim <= 40
        assert phi.kernel == estimated
        assert make_map(name, X, 1, kernel=kernel, projection="iid", seed=0).feature_dim >= 1
        if name in ADVISED:
            assert torch.equal(phi.queries(X), phi.keys(X))


def test_rows_far_out_get_zeros():
    phi = make_map("positive", X, 16, kernel="rbf", projection="iid", seed=0)
    with pytest.raises(OverflowError):
        phi.queries(torch.full((1, 3), 1e3, dtype=torch.float64))
    assert not plain_features(phi, torch.full((1, 3), 1e3, dtype=torch.float64)).any()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"gamma": 0.0}, "gamma is 0.0; expected a positive number"),
        ({"kernel": "cosine"}, "kernel is 'cosine'; expected 'rbf' or 'softmax'"),
        ({"rows": X[:7]}, "the number of rows is 7; expected 8 or more"),
        ({"targets": Y[:9]}, "the numbers of rows and targets are 200 and 9; expected one target per row"),
        ({"rows": X * np.nan}, "rows have 600 values that are NaN or infinite; expected finite values"),
        ({"targets": Y * np.inf}, "targets have 200 values that are NaN or infinite"),
    ],
)
def test_what_cannot_be_advised_on_gets_a_sentence(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        hrf.advise_kernel(**{"rows": X, "gamma": 1.0} | arguments)
