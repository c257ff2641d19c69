"""Data as they come: raw tables, images, zeros. There is advice, or one sentence that says what to do."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import Tensor

import hrf
from advice import data
from hrf.advice import page


def wines() -> Tensor:
    """A table that nobody standardised: columns from 0.1 to 1,600."""
    return data.noise(60, 4, seed=1).abs() * torch.tensor([13.0, 100.0, 0.5, 750.0], dtype=torch.float64)


def images(seed: int) -> Tensor:
    return torch.randint(256, (40, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


HARD = {
    "norm 140": lambda: (50 * data.noise(60, 8, seed=1), 50 * data.noise(60, 8, seed=2)),
    "wines": lambda: (wines(), wines()),
    "images": lambda: (images(1), images(2)),
    "zeros": lambda: (torch.zeros(40, 4), torch.zeros(40, 4)),
    "zero queries": lambda: (torch.zeros(40, 4), data.noise(40, 4, seed=1)),
}


@pytest.mark.parametrize("objective", ["attention", "kernel"])
@pytest.mark.parametrize("name", HARD)
def test_all_files_are_written(name, objective, tmp_path, capsys):
    advice = hrf.advise(*HARD[name](), budget=8, n_redraws=2, objective=objective)
    page.publish(advice, tmp_path)
    stored = json.loads((tmp_path / "advice.json").read_text())
    assert len(stored["ranking"]) == len(advice.ranking)
    assert (tmp_path / "advice.png").read_bytes().startswith(b"\x89PNG")
    if name in ("norm 140", "images"):
        assert "random features fail beyond norms of about 2" in advice.warning
        assert "Warning: no map is good enough" in capsys.readouterr().out


def test_errors_that_overflow_are_null():
    advice = hrf.advise(*HARD["norm 140"](), budget=8, n_redraws=2)
    infinite = [c.name for c in advice.ranking if c.predicted == math.inf]
    stored = {c["name"]: c["predicted"] for c in json.loads(page.to_json(advice))["ranking"]}
    assert infinite
    assert all(stored[name] is None for name in infinite)


@pytest.mark.parametrize("size", [1e9, 1e200])
def test_vectors_beyond_arithmetic_are_refused_with_advice(size):
    q, k = data.easy()
    with pytest.raises(
        ValueError, match=r"the longest of the keys has norm .*; expected at most 1e\+07, .*StandardScaler"
    ):
        hrf.advise(q, size * k, budget=8)


def test_the_reason_why_nothing_is_left_is_one_sentence(monkeypatch):
    def broken(*_):
        raise ArithmeticError("its estimates overflow or vanish")

    monkeypatch.setattr("hrf.advice.advisor._measure", broken)
    with pytest.raises(
        ValueError, match=r"no map works .*: its estimates overflow or vanish; lower the scale"
    ):
        hrf.advise(*data.easy(), budget=8)
