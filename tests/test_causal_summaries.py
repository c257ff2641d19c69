"""The benchmark of causal summarised attention runs from end to end, on made-up tokens."""

from __future__ import annotations

import json

import torch

from benchmarks import causal_summaries as benchmark


def test_measures_lengths_and_records_them(monkeypatch, capsys, tmp_path):
    torch.manual_seed(0)
    tokens = torch.randn(3, 1, 2, 400, 8)
    monkeypatch.setattr(benchmark, "long_text", lambda length: tuple(tokens))
    monkeypatch.setattr(benchmark, "LENGTHS", (150, 400))
    monkeypatch.setattr(benchmark, "LONGEST", 150)
    monkeypatch.setattr(benchmark, "STEPS", 3)
    monkeypatch.setattr(
        benchmark, "best_times", lambda calls, **_: {name: float(len(name)) for name in calls}
    )
    assert benchmark.main(["--out", str(tmp_path)]) == 0
    recorded = json.loads((tmp_path / "causal_summaries.json").read_text())["lengths"]
    assert [*recorded] == ["150", "400"]
    assert recorded["150"]["speed"] == 5 / 4
    assert 0 < recorded["150"]["error"] < 0.2
    assert 0.5 < recorded["150"]["exact_share"] < 1  # 128 of the positions are exact
    assert "error" not in recorded["400"]
    assert recorded["400"]["step_ms"] > 0
    assert "150" in capsys.readouterr().out
