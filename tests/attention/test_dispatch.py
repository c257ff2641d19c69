"""The table of engines: every map has one, and the table says which."""

from __future__ import annotations

import importlib

import pytest

import hrf
from features.registry import MAPS, PARTLY_EXACT, build
from hrf._attention import dispatch


@pytest.mark.parametrize("name", MAPS | PARTLY_EXACT)
def test_every_map_has_an_engine(name):
    expected = "clustered" if name in PARTLY_EXACT or name.startswith("clustered") else "dense"
    if expected == "clustered" and name.endswith(("paper", "moments")):
        expected = "clustered by pair"
    if name.startswith("angular hybrid"):
        expected = "angular"
    assert dispatch.engine_for(build(name)).name == expected


def test_a_wrapped_map_is_dense():
    assert dispatch.engine_for(hrf.GaussianKernel(build("positive"))).name == "dense"
    assert dispatch.engine_for(hrf.GaussianKernel(build("angular hybrid"))).name == "dense"


@pytest.mark.parametrize("name", ["attention", "attention.dispatch", "attention.causal"])
def test_attention_is_a_function_and_nothing_else(name):
    assert callable(hrf.attention)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"hrf.{name}")
