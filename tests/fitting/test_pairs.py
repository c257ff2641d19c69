"""Selection of the heaviest key clusters and of the largest pairs."""

from __future__ import annotations

import pytest
import torch

from hrf.fitting import heavy_keys

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
