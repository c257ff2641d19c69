"""The example runs from end to end, with a small model and made-up text in place of MiniLM and WikiText-2."""

from __future__ import annotations

import json
from copy import deepcopy
from functools import partial

import pytest
import torch
from rich.console import Console
from transformers import BertConfig, BertModel

from benchmarks import minilm as data
from examples import minilm, minilm_summarised


def tokenizer(text, *, truncation, max_length, return_tensors):
    return {"input_ids": torch.tensor([[ord(c) % 40 for c in text[:max_length]]])}


@pytest.fixture
def small(monkeypatch):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = BertModel(BertConfig(vocab_size=40, initializer_range=0.3, **sizes)).eval()
    text = "\n".join("".join(map(chr, line)) for line in torch.randint(60, 100, (60, 100)).tolist())
    monkeypatch.setattr(data, "load", lambda: (tokenizer, deepcopy(model)))  # as a file would give it, anew
    monkeypatch.setattr(data, "read_text", lambda split, name="wikitext2": text)
    monkeypatch.setattr(data, "N_LAYERS", 2)
    changes = {"FIT_PASSAGES": 2, "TEST_PASSAGES": 4, "MEASURED": 2, "SHORTEST": 40, "LONGEST": 80}
    monkeypatch.setattr(minilm, "best_times", partial(minilm.best_times, rounds=1, budget=0))
    for name, value in (changes | {"LENGTHS": (16, 100)}).items():
        monkeypatch.setattr(minilm, name, value)
    shorter = {"PASSAGES": 8, "SHORTEST": 260, "LONGEST": 300, "LONG_PASSAGES": 2, "LONG": 600, "WINDOW": 300}
    for name, value in shorter.items():
        monkeypatch.setattr(minilm_summarised, name, value)


def test_prints_and_records_a_line_for_every_map(small, capsys, tmp_path):
    assert minilm.main(["--out", str(tmp_path)]) == 0
    quality, times = capsys.readouterr().out.split("Exact attention takes")
    recorded = json.loads((tmp_path / "minilm.json").read_text())
    for candidate in minilm.CANDIDATES:
        assert candidate.name in quality
        assert candidate.name in times
        assert -1 <= recorded["quality"][candidate.name]["mean"] <= 1 + 1e-9
        assert [*recorded["times"][candidate.name]] == ["16", "100"]


def test_summarised_attention_is_measured_on_both_texts(small, capsys, tmp_path):
    assert minilm.main(["summarised", "long", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    recorded = json.loads((tmp_path / "minilm.json").read_text())
    for part in ("summarised", "long"):
        for text, title in data.TEXTS.items():
            assert title in printed
            found = recorded[part][text]
            shares = [found[f"tolerance {tolerance}"]["exact_share"] for tolerance in ("1", "2", "inf")]
            assert shares == sorted(shares, reverse=True)
            assert shares[-1] == 0
            assert all(-1 <= row["least"] <= row["mean"] <= 1 + 1e-6 for row in found.values())


def test_a_lost_neighbour_is_counted_with_its_margin():
    def at(*degrees):
        angles = torch.tensor(degrees).double().deg2rad()
        return torch.stack([angles.cos(), angles.sin()], -1)

    exact, moved = at(0, 10, -11, 60), at(0, 12, -11, 60)
    found = minilm_summarised.compared(moved, exact)
    # The first point loses its neighbour; those of all other points stay.
    assert found["same_neighbour"] == 0.75
    ten, eleven = at(0, 10, 11).mT[0, 1:].tolist()
    assert found["margin_of_changed"] == pytest.approx(ten - eleven)
    assert found["least"] == pytest.approx(float(at(0, 2)[1, 0]))


@pytest.mark.parametrize(("cosine", "verdict"), [(0.97, "0.96 met"), (0.95, "0.96 missed")])
def test_targets_are_compared_with_the_mean(cosine, verdict, capsys, monkeypatch):
    monkeypatch.setattr(minilm, "CANDIDATES", [minilm.Candidate("map", "positive", 0.96)])
    found = {"mean": cosine, "least": 0.5, "median_error": 0.2, "exact_share": 0.1}
    minilm.show_quality(Console(width=150), {"map": found})
    assert verdict in capsys.readouterr().out


def test_what_is_missing_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(data, "load", lambda: (tokenizer, torch.nn.Identity()))
    monkeypatch.setenv("HRF_DATA", str(tmp_path))
    assert minilm.main(["quality"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "HRF_DATA" in error
