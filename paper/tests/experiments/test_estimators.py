import pytest
import torch

from hrf_paper.experiments.estimators import (
    MATCHINGS,
    Estimator,
    all_estimates,
    deviations,
    matched,
    mean_and_error,
    root_and_error,
)


def test_mean_and_standard_error():
    values = torch.tensor([[1.0, 2.0], [3.0, 2.0]]).double()
    mean, error = mean_and_error(values)
    assert mean.tolist() == [2, 2]
    assert error.tolist() == [1, 0]


def test_root_of_the_mean_square():
    values = torch.tensor([[3.0], [1.0]]).double()
    root, error = root_and_error(values, torch.tensor([1.0]).double())
    assert root.item() == pytest.approx(2**0.5)  # of 4 and 0
    assert error.item() == pytest.approx(2 / (2 * 2**0.5))


def test_deviations_are_in_standard_errors_and_zero_where_both_are_exact():
    seen_, error, exact = torch.tensor([[1.5, 0.0], [0.25, 0.0], [1.0, 0.0]]).double()
    assert deviations(seen_, error, exact) == [2.0, 0.0]


def test_all_draws_differ():
    x = torch.ones(1, 4).double() / 2
    values = all_estimates(Estimator("FAVOR+", 4, 3), x, x, draws=50, seed=0)
    assert values.shape == (50, 1)
    assert len(values.unique()) == 50


@pytest.mark.parametrize("name", ["angular hybrid", "Gaussian hybrid"])
def test_matchings(name):
    hybrid, base = Estimator(name, 64, 1, 8), Estimator("FAVOR+", 64, 128).one()
    by = {matching: matched(hybrid, matching, 128) for matching in MATCHINGS}
    assert by["m·n = D"].n_projections == 16

    def larger(estimator):
        return Estimator(name, 64, estimator.n_projections + 1, 8).one()

    assert by["equal FLOPs"].one().flops() <= base.flops() < larger(by["equal FLOPs"]).flops()
    assert by["equal width"].one().feature_dim <= base.feature_dim < larger(by["equal width"]).feature_dim
