"""Damaged files of maps: a sentence, and a model that stays as it was."""

from __future__ import annotations

import os
import warnings

import pytest

import hrf
from hrf.integrations.transformers import FITTED, load_maps
from integrations.models import HEADS, LAYERS, WIDTH, llama
from mutations import damaged


@pytest.fixture
def maps(tmp_path):
    for layer in range(LAYERS):
        phi = hrf.Positive(WIDTH // HEADS, n_projections=4, heads=HEADS)
        phi.save(tmp_path / f"model.layers.{layer}.self_attn.safetensors")
    return tmp_path


def test_damaged_files(maps):
    model, path = llama(), max(maps.iterdir())
    for bad in damaged(path.read_bytes(), 100):
        path.write_bytes(bad)
        before = model.config._attn_implementation
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                load_maps(model, maps)
        except (ValueError, OSError):
            assert model.config._attn_implementation == before
        else:
            model.set_attn_implementation("sdpa")


def test_pipes_are_refused(maps):
    model, path = llama(), max(maps.iterdir())
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ValueError, match=r"self_attn\.safetensors is not a regular file"):
        load_maps(model, maps)
    assert model.config._attn_implementation != FITTED
