"""Clusters and A fitted alternately: the metric, the centres, the moments and the loss keep their promises."""

from __future__ import annotations

import pytest
import torch

from hrf.fitting import SecondMoments, assign, fit_residuals, matrix_loss


def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Queries are long in the first two directions, where keys are short, and in four groups in the other two, where
# keys are long. Plain k-means of the queries sees the long directions; only the groups count.
LONG = torch.tensor([3.0, 3.0, 0.03, 0.03], dtype=torch.float64)
GROUPS = torch.tensor([[0, 0, i, j] for i in (-0.3, 0.3) for j in (-0.3, 0.3)], dtype=torch.float64)
X, Y = normal(300, 4, seed=0) * LONG + GROUPS.repeat(75, 1), normal(300, 4, seed=1) * LONG.flip(-1)


def loss(fitted):
    """E‖Ax'‖² + E‖A⁻ᵀy'‖²."""
    return float(matrix_loss(fitted.moments._replace(cross=torch.zeros(4, 4)), fitted.matrix))


def test_turns_lower_the_loss(monkeypatch):
    turns = loss(fit_residuals(X, Y, (4, 4), "real-full"))
    monkeypatch.setattr("hrf.fitting._ROUNDS", 0)
    assert turns < 0.5 * loss(fit_residuals(X, Y, (4, 4), "real-full"))


@pytest.mark.parametrize("kind", ["real-diagonal", "real-full"])
def test_labels_are_those_of_the_metric_and_centres_the_means_of_queries(kind):
    fitted = fit_residuals(X, Y, (4, 3), kind)
    assert torch.equal(assign(X, fitted.queries.centers, fitted.metric), fitted.queries.labels)
    inverse = torch.linalg.inv(fitted.metric)
    assert torch.equal(assign(Y, fitted.keys.centers, inverse), fitted.keys.labels)
    for label in range(4):
        torch.testing.assert_close(fitted.queries.centers[label], X[fitted.queries.labels == label].mean(0))


def test_moments_are_those_under_attention(monkeypatch):
    monkeypatch.setattr("hrf.fitting._QUERIES", 300)
    fitted = fit_residuals(X, Y, (2, 2), "real-full")
    weights = (X @ Y.mT).softmax(-1) / len(X)
    x, y = X - fitted.queries.centers[fitted.queries.labels], Y - fitted.keys.centers[fitted.keys.labels]
    expected = SecondMoments(x.mT @ x / len(X), y.mT @ (weights.sum(0)[:, None] * y), x.mT @ weights @ y)
    for moment, by_definition in zip(fitted.moments, expected, strict=True):
        torch.testing.assert_close(moment, by_definition)


def test_complex_kinds_are_the_real_ones():
    real, complex_ = (fit_residuals(X, Y, (2, 2), f"{kind}-full") for kind in ("real", "complex"))
    assert torch.equal(real.matrix, complex_.matrix)


def test_heads_are_fitted_one_by_one():
    x, y = torch.stack([X, X.flip(-1)]), torch.stack([Y, 2 * Y])
    both = fit_residuals(x, y, (3, 3), "real-full")
    for head in range(2):
        alone = fit_residuals(x[head], y[head], (3, 3), "real-full")
        torch.testing.assert_close(both.matrix[head], alone.matrix)
        torch.testing.assert_close(both.keys.centers[head], alone.keys.centers)
