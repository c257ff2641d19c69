"""Mistakes of newcomers get one sentence each."""

from __future__ import annotations

import inspect
from typing import get_type_hints

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


CLASSES = {
    kind
    for module in (hrf, hrf.coefficients, hrf.nn, hrf.sampling, hrf.projections)
    for kind in (getattr(module, name) for name in module.__all__)
    if isinstance(kind, type) and not issubclass(kind, Warning)
}


@pytest.mark.parametrize("kind", sorted(CLASSES, key=lambda kind: kind.__name__))
def test_errors_about_arguments_name_the_class_that_was_called(kind):
    with pytest.raises(TypeError) as caught:
        kind(unheard_of=1)
    assert str(caught.value).startswith(f"{kind.__name__}.__")
    assert "unheard_of" in str(caught.value)


def test_constructors_of_their_own_keep_their_signatures():
    expected = inspect.signature(hrf.Trigonometric)
    assert inspect.signature(hrf.Positive) == inspect.signature(hrf.OptimalPositive) == expected
    assert expected.parameters["projection"].default == "orthogonal"
    assert get_type_hints(hrf.Positive.__init__)["heads"] == int | None


def test_a_missing_form_of_the_error_names_the_map():
    x = torch.zeros(1, 4)
    for kind in (hrf.Positive, hrf.Trigonometric, hrf.OptimalPositive, hrf.DenseExponential):
        phi = kind(4, n_projections=4, projection="sobol")
        with pytest.raises(
            NotImplementedError, match=f"^no closed form .* the MSE of {kind.__name__} with 'sobol'"
        ):
            phi.mse(x, x)
