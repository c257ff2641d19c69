"""Damaged files: one sentence in a documented error, or the contents; files that are whole give back what was saved."""

from __future__ import annotations

import tempfile
import warnings
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hrf
from features.registry import DIM, MAPS, PARTLY_EXACT, build
from hrf.integrations.transformers import FITTED, load_maps
from hrf.read_arrays import read_array
from integrations.models import HEADS, LAYERS, WIDTH, llama
from mutations import TOKENS, damaged
from properties.strategies import cases, seeds
from test_read_arrays import contents

arrays = contents()
names = st.sampled_from([*MAPS, *PARTLY_EXACT])


@st.composite
def damages(draw, whole: st.SearchStrategy[bytes]) -> bytes:
    """Draw a damaged copy: by chance, by the seed of `damaged`, or with tokens and bytes put anywhere."""
    content = draw(whole)
    if draw(st.booleans()):
        content = next(damaged(content, 1, draw(seeds)))
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(content)))
        stop = start + draw(st.sampled_from([0, 1, 8, 100]))
        content = content[:start] + draw(st.sampled_from(TOKENS) | st.binary(max_size=9)) + content[stop:]
    return content


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@cache
def saved(name: str, heads: int | None = None) -> bytes:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "map.safetensors"
        build(name, heads=heads).save(path)
        return path.read_bytes()


def refusal(function, *arguments, errors=(ValueError, OSError)) -> str | None:
    """Return the sentence of an error; any other error goes on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            function(*arguments)
        except errors as error:
            return str(error)
    return None


@given(damages(names.map(saved)))
@cases(6)
def test_load(folder, content):
    path = folder / "map.safetensors"
    path.write_bytes(content)
    sentence = refusal(hrf.load, path)
    assert sentence is None or sentence


@given(names, st.sampled_from([None, 2]), seeds)
@cases(1)
def test_saved_maps_come_back(folder, name, heads, seed):
    phi, path = build(name, heads=heads, seed=seed), folder / "whole.safetensors"
    phi.save(path)
    x = torch.randn(2, 3, DIM, dtype=torch.float64)
    assert hrf.load(path).estimate(x, x).equal(phi.estimate(x, x))


@given(st.sampled_from(sorted(arrays)), st.data())
@cases(8)
def test_read_array(folder, kind, data):
    path = folder / f"x.{kind}"
    path.write_bytes(data.draw(damages(st.just(arrays[kind])), label="content"))
    sentence = refusal(read_array, str(path), errors=ValueError)
    assert sentence is None or (sentence and "\n" not in sentence)


@given(
    damages(
        st.sampled_from(["positive", "angular hybrid", "clustered shifted"]).map(lambda n: saved(n, HEADS))
    )
)
@cases(2)
def test_load_maps(folder, content):
    model = llama()
    assert WIDTH // HEADS == DIM
    place = folder / "maps"
    place.mkdir(exist_ok=True)
    for layer in range(LAYERS):
        path = place / f"model.layers.{layer}.self_attn.safetensors"
        path.write_bytes(content if layer else saved("positive", HEADS))
    sentence = refusal(load_maps, model, place)
    assert (sentence is None) == (model.config._attn_implementation == FITTED)
