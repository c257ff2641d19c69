"""The length from which on a method beats exact attention, and the rows of the tables of speech."""

from __future__ import annotations

from benchmarks.speech_tables import crossover, encoder_rows, loss_rows, stream_rows

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
    for rows in (loss_rows(found), encoder_rows(found), stream_rows(found)):
        assert len({len(row) for row in rows}) == 1
