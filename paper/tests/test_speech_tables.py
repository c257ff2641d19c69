"""The rows of the tables of speech, and the length from which on a method beats exact attention."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

from benchmarks.speech_tables import (
    crossover,
    encoder_rows,
    loss_rows,
    rate_rows,
    stream_rows,
    trained_rows,
    verdict_rows,
)

RECORD = json.loads(
    (Path(__file__).parents[2] / "docs" / "results" / "speech.json").read_text(encoding="utf-8")
)

TIMES = {
    "500": {"exact": 1.0, "early": 0.9, "late": 2.0, "once": 0.9},
    "2000": {"exact": 4.0, "early": 2.0, "late": 4.0, "once": 5.0},
    "8000": {"exact": 40.0, "early": 8.0, "late": 30.0, "once": 50.0},
}


def test_the_crossover_is_where_all_longer_lengths_are_faster():
    assert [crossover(TIMES, name) for name in ("early", "late", "once")] == ["500", "8,000", "never"]


def test_rows_have_one_text_per_heading():
    found = {
        "loss": [{"utterances": 2, "frames": 30, "labels": 4, "hrf": 0.002, "warprnnt-numba": 0.008}],
        "encoder": TIMES,
        "parts": [{"seconds": 600.0, "wer": 5.0, "real-time factor": 0.02, "peak megabytes": 400.0}] * 2,
    }
    assert loss_rows(found)[1] == ["2 × 30 × 4", "2.0", "8.0", "4.0"]
    assert encoder_rows(found)[3] == ["late", "2.000", "4.000", "30.000", "8,000"]
    assert stream_rows(found)[2] == ["10–20", "5.0 %", "0.020", "400 MB"]
    reproduced = [make(RECORD) for make in (trained_rows, rate_rows, verdict_rows)]
    for rows in (loss_rows(found), encoder_rows(found), stream_rows(found), *reproduced):
        assert len({len(row) for row in rows}) == 1


def test_the_papers_table_shows_every_run():
    headings, *rows = rate_rows(RECORD)
    assert headings[:3] == ["attention", "paper", "swapped (turns, 500)"]
    cells = dict(zip(headings, {row[0]: row for row in rows}["HRF-C (3, 3) 64"], strict=True))
    assert cells["paper"] == "1.72 ± 0.02"
    for tested in ("single", "joined, 500"):
        parts = [RECORD["results"][f"from scratch, HRF-C (3, 3) 64, run {run}"] for run in range(3)]
        runs = [part["draws"][0][tested]["wer"] for part in parts]
        cell = cells[f"from scratch ({tested})"]
        assert cell.startswith(f"{fmean(runs):.1f} ± ")
        assert cell.endswith(f" ({runs[0]:.1f}, {runs[1]:.1f}, {runs[2]:.1f})")


def test_verdicts_and_trainings_of_the_record():
    claims = [claim for claim in RECORD["claims"] if claim["total"]]
    for row, claim in zip(verdict_rows(RECORD)[1:], claims, strict=True):
        assert row[:3] == [claim["claim"], claim["paper"], claim["ours"]]
        assert f" {claim['matched']} of {claim['total']} pairs of rows reproduced" in row[3]
    for run, row in enumerate(trained_rows(RECORD)[1:]):
        part = RECORD["results"][f"trained on single utterances, exact, run {run}"]
        rates = part["searched"], part["draws"][0]["single"]["wer"]
        assert row[:3] == [str(run), *(f"{found:.2f} %" for found in rates)]


def test_what_was_not_run_is_said():
    results = {name: part for name, part in RECORD["results"].items() if "fine-tuned, uniform" not in name}
    rows = {row[0]: row for row in rate_rows(RECORD | {"results": results})}
    assert rows["uniform"][3] == "not run"
    assert "not run" not in rows["exact"]
