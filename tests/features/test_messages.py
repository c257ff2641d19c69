"""Mistakes of newcomers get one sentence each."""

from __future__ import annotations

import pytest
import torch

import hrf


def test_a_call_says_which_side_to_call():
    with pytest.raises(TypeError, match=r"Positive has two sides; call phi.queries\(x\) or phi.keys\(y\)"):
        hrf.Positive(4, n_projections=4)(torch.ones(3, 4))


def test_arrays_are_no_tensors():
    with pytest.raises(TypeError, match="x is ndarray; expected a real floating-point tensor"):
        hrf.Positive(4, n_projections=4).queries(torch.ones(3, 4).numpy())


def test_a_number_is_no_generator():
    with pytest.raises(TypeError, match=r"generator is 0; expected a torch\.Generator"):
        hrf.Positive(4, n_projections=4, generator=0)


def test_clusters_are_counted_on_both_sides():
    with pytest.raises(TypeError, match="n_clusters is 2; expected clusters of queries and of keys"):
        hrf.ClusteredHybrid.fit(torch.ones(9, 4), torch.ones(9, 4), n_clusters=2, n_projections=4)
