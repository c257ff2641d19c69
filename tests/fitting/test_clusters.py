"""Clusters against brute force: k-means, nearest centres, moments in a loop, heavy keys, residuals."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch

from fitting.data import normal
from hrf import tuning
from hrf.fitting import (
    KINDS,
    SecondMoments,
    assign,
    cluster_sizes,
    fit_matrix,
    fit_residuals,
    heavy_keys,
    kmeans,
    matrix_loss,
    moments_by_cluster,
    optimal_loss,
)


def groups(n_groups=4, size=25, dim=3):
    """Points around corners that are far apart, and the corner of each."""
    corners = 10 * normal(n_groups, dim, seed=1)
    owners = torch.arange(n_groups).repeat(size)
    return corners[owners] + 0.1 * normal(n_groups * size, dim, seed=2), owners


def test_separated_groups_are_found():
    points, owners = groups()
    centers, labels = kmeans(points, 4)
    assert centers.dtype == torch.float64
    assert labels.dtype == torch.int64
    for owner in range(4):
        (label,) = labels[owners == owner].unique()
        torch.testing.assert_close(centers[label], points[owners == owner].mean(0))


def test_a_seed_decides_and_heads_are_separate_calls():
    points = normal(3, 80, 5).float()
    together = kmeans(points, 6, seed=7)
    assert torch.equal(together.centers, kmeans(points, 6, seed=7).centers)
    for head, centers, labels in zip(points, *together, strict=True):
        alone = kmeans(head, 6, seed=7)
        assert torch.equal(alone.centers, centers)
        assert torch.equal(alone.labels, labels)
    assert not torch.equal(together.centers, kmeans(points, 6, seed=8).centers)


def test_centres_are_the_means_of_their_points():
    points = normal(2, 80, 3)
    centers, labels = kmeans(points, 5)
    torch.testing.assert_close(moments_by_cluster(points, labels, 5).means, centers)
    assert torch.equal(labels, assign(points, centers))


@pytest.mark.parametrize("points", [normal(2, 3).repeat(5, 1), torch.zeros(6, 3)], ids=["two points", "one"])
def test_copies_of_points_are_clustered_without_a_warning(points):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        centers, labels = kmeans(points, 4)
    assert centers.shape == (4, 3)
    torch.testing.assert_close(centers[labels], points.double())


@pytest.mark.parametrize("n_clusters", [0, 6])
def test_too_many_or_no_clusters_are_refused(n_clusters):
    with pytest.raises(
        ValueError, match=f"n_clusters is {n_clusters}; expected between 1 and 5, the number of"
    ):
        kmeans(normal(5, 3), n_clusters)


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(ImportError, match=r"pip install 'hybrid-random-features\[learn\]'"):
        kmeans(normal(5, 3), 2)


def test_weights_count_points_several_times():
    points, _ = groups()
    weights = torch.arange(len(points)) % 3  # a third of the points have no weight
    centers, labels = kmeans(points, 4, weights=weights.double())
    repeated = points.repeat_interleave(weights, dim=0)
    owners = labels.repeat_interleave(weights)
    for label in range(4):
        torch.testing.assert_close(centers[label], repeated[owners == label].mean(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_assign_equals_brute_force(dtype):
    points, centers = normal(2, 3, 50, 4).to(dtype), normal(2, 3, 7, 4, seed=1).to(dtype)
    assert torch.equal(assign(points, centers), torch.cdist(points, centers).argmin(-1))
    assert torch.equal(assign(points, centers[0, 0]), torch.cdist(points, centers[:1, :1]).argmin(-1))


def test_a_metric_is_the_same_as_other_coordinates():
    points, centers, a = normal(2, 50, 4), normal(2, 7, 4, seed=1), normal(2, 4, 4, seed=2)
    there = assign(points @ a.mT, centers @ a.mT)
    assert torch.equal(assign(points, centers, a.mT @ a), there)
    assert not torch.equal(assign(points, centers), there)


def test_ties_go_to_the_lowest_index():
    centers = torch.tensor([[2.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    assert assign(torch.tensor([[0.0, 0.0], [0.0, 5.0], [-3.0, 1.0]]), centers).tolist() == [1, 1, 1]


def test_moments_equal_a_loop():
    points, labels = normal(2, 40, 3), torch.randint(4, (2, 40), generator=torch.Generator().manual_seed(1))
    counts, means, seconds = moments_by_cluster(points, labels, 4)
    for head in range(2):
        for cluster in range(4):
            members = points[head][labels[head] == cluster]
            assert counts[head, cluster] == len(members)
            torch.testing.assert_close(means[head, cluster], members.mean(0))
            torch.testing.assert_close(seconds[head, cluster], members.mT @ members / len(members))


def test_moments_in_blocks_are_the_same(monkeypatch):
    points, labels = normal(2, 40, 3), torch.arange(80).view(2, 40) % 4
    whole = moments_by_cluster(points, labels, 4)
    monkeypatch.setattr(tuning, "FITTING_FLOATS", 16 * 7)  # seven points at a time, across heads
    for part, expected in zip(moments_by_cluster(points, labels, 4), whole, strict=True):
        torch.testing.assert_close(part, expected)
    assert torch.equal(cluster_sizes(labels, 5), torch.tensor([[10, 10, 10, 10, 0]] * 2))


def test_empty_clusters_have_the_moments_of_all_points():
    points = normal(2, 10, 3)
    counts, means, seconds = moments_by_cluster(points, torch.ones(2, 10, dtype=torch.long), 3)
    assert counts.tolist() == [[0, 10, 0]] * 2
    for cluster in range(3):
        torch.testing.assert_close(means[:, cluster], points.mean(1))
        torch.testing.assert_close(seconds[:, cluster], points.mT @ points / 10)


def test_moments_refuse_labels_that_do_not_fit():
    points = normal(10, 3)
    with pytest.raises(ValueError, match=r"labels have shape \(9,\); expected \(10,\)"):
        moments_by_cluster(points, torch.zeros(9, dtype=torch.long), 2)
    for label in (-1, 2):
        with pytest.raises(ValueError, match="between 0 and 1"):
            moments_by_cluster(points, torch.full((10,), label), 2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_matrix_for_each_pair_of_clusters_has_less_loss_than_one_for_all(kind):
    x, y = groups()[0] / 10, groups(3)[0].flip(-1) / 10
    q, k = (moments_by_cluster(p, kmeans(p, 3).labels, 3) for p in (x, y))
    cross = q.means[:, None, :, None] * k.means[None, :, None, :]
    pairs = SecondMoments(q.seconds[:, None], k.seconds[None], cross)
    weights = q.counts[:, None] / len(x) * k.counts / len(y)
    together = SecondMoments.of(x, y)
    assert fit_matrix(pairs, kind).shape[:2] == (3, 3)
    assert (weights * optimal_loss(pairs, kind)).sum() < optimal_loss(together, kind)


# Heaviest key clusters.


CENTERS = torch.tensor([[1.0], [-1.0]]), torch.tensor([[3.0], [2.0], [1.0], [0.0]])


def test_heavy_keys_pass_over_what_no_longer_fits():
    """Weights are log 50 + 3, log 20 + 2, log 10 + 1 and log 20 for the first query cluster."""
    exact = heavy_keys(CENTERS, torch.tensor([50, 20, 10, 20]), 0.3)
    assert exact.tolist() == [[False, True, True, False], [False, False, True, True]]


def test_heavy_keys_fill_the_share_to_the_last_key():
    exact = heavy_keys(CENTERS, torch.tensor([50, 20, 10, 20]), 0.7)
    assert exact.tolist() == [[True, True, False, False], [False, True, True, True]]
    assert heavy_keys(CENTERS, torch.tensor([50, 20, 10, 20]), 1.0).all()


def test_empty_clusters_are_never_exact():
    assert heavy_keys(CENTERS, torch.tensor([5, 0, 5, 0]), 1.0).any(0).tolist() == [True, False, True, False]


def test_a_share_below_every_cluster_is_refused():
    with pytest.raises(ValueError, match=r"exact_share is 0\.05, but no cluster holds less than 0\.1 of"):
        heavy_keys(CENTERS, torch.tensor([50, 20, 10, 20]), 0.05)


# Clusters and A fitted alternately.


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


def test_heads_are_fitted_one_by_one():
    x, y = torch.stack([X, X.flip(-1)]), torch.stack([Y, 2 * Y])
    both = fit_residuals(x, y, (3, 3), "real-full")
    for head in range(2):
        alone = fit_residuals(x[head], y[head], (3, 3), "real-full")
        torch.testing.assert_close(both.matrix[head], alone.matrix)
        torch.testing.assert_close(both.keys.centers[head], alone.keys.centers)
