"""Rows of the tables of speech: loss, encoder over its length, an hour as a stream, and the paper's table."""

from __future__ import annotations

from typing import Any

from hrf_paper.experiments.experiment import Runs, verdict_text
from hrf_paper.experiments.speech import EXPERIMENT
from hrf_paper.experiments.speech_measure import SINGLE, SINGLE_SET, judged, key, printed_text, rate
from hrf_paper.runner import stored_results, stored_settings
from hrf_paper.speech.decoding import BEAM
from hrf_paper.speech.methods import METHODS

__all__ = [
    "OURS",
    "THEIRS",
    "crossover",
    "encoder_rows",
    "loss_rows",
    "rate_rows",
    "stream_rows",
    "trained_rows",
    "verdict_rows",
]

OURS, THEIRS = "hrf", "warprnnt-numba"


def loss_rows(found: dict[str, Any]) -> list[list[str]]:
    """Return headings, and times of the loss."""
    lines = [["utterances × frames × labels", "hrf, ms", "warprnnt-numba, ms", "times as fast"]]
    for row in found["loss"]:
        size = f"{row['utterances']} × {row['frames']} × {row['labels']}"
        times = [f"{1e3 * row[name]:.1f}" for name in (OURS, THEIRS)]
        lines.append([size, *times, f"{row[THEIRS] / row[OURS]:.1f}"])
    return lines


def encoder_rows(found: dict[str, Any]) -> list[list[str]]:
    """Return headings, and times of the encoder with the length from which on each beats exact attention."""
    by_length = found["encoder"]
    headings = ["encoder, seconds", *(f"{int(n):,} frames" for n in by_length), "faster than exact from"]
    lines = [headings]
    for name in next(iter(by_length.values())):
        times = [f"{times[name]:.3f}" for times in by_length.values()]
        lines.append([name, *times, "" if name == "exact" else crossover(by_length, name)])
    return lines


def crossover(by_length: dict[str, dict[str, float]], name: str) -> str:
    """Return the shortest length from which on a method is faster than exact attention, in frames."""
    faster: list[int] = []
    for length, times in sorted(by_length.items(), key=lambda pair: -int(pair[0])):
        if times[name] >= times["exact"]:
            break
        faster.append(int(length))
    return f"{min(faster):,}" if faster else "never"


def stream_rows(result: dict[str, Any]) -> list[list[str]]:
    """Return headings, and a row per part."""
    lines = [["minutes", "word error rate", "real-time factor", "largest memory of the process"]]
    end = 0.0
    for part in result["parts"]:
        begin, end = end, end + part["seconds"]
        factor, memory = f"{part['real-time factor']:.3f}", f"{part['peak megabytes']:,.0f} MB"
        lines.append([f"{begin / 60:.0f}–{end / 60:.0f}", f"{part['wer']:.1f} %", factor, memory])
    return lines


def trained_rows(record: dict[str, Any]) -> list[list[str]]:
    """Return headings, and a row per training with exact attention on single utterances."""
    lines = [["seed", f"beam of {BEAM} with CTC", "greedy", "CPU minutes"]]
    settings, results = record["settings"], stored_results(record)
    for run in range(settings["runs"]):
        part = results[key(SINGLE, "exact", run)]
        greedy = part["draws"][0][SINGLE_SET]["wer"]
        minutes = part["timings"]["training CPU seconds"] / 60
        seed = f"{settings['seed'] + run}"
        lines.append([seed, f"{part['searched']:.2f} %", f"{greedy:.2f} %", f"{minutes:.1f}"])
    return lines


def rate_rows(record: dict[str, Any]) -> list[list[str]]:
    """Return headings, and a row per method: word error rates at every stage, mean, interval and single runs."""
    settings, results = stored_settings(EXPERIMENT, record), stored_results(record)
    columns = judged(settings)
    lines = [["attention", "paper", *(f"{stage} ({tested})" for stage, tested in columns)]]
    for name in METHODS:
        found = [rate(results, stage, name, tested) for stage, tested in columns]
        lines.append([name, printed_text(name), *("not run" if r is None else _with_runs(r) for r in found)])
    return lines


def _with_runs(found: Runs) -> str:
    return f"{found.text} ({', '.join(f'{value:.1f}' for value in found.values)})"


def verdict_rows(record: dict[str, Any]) -> list[list[str]]:
    """Return headings, and a row per claim of the paper."""
    lines = [["claim", "paper", "here", "verdict"]]
    for claim in record["claims"]:
        if claim["total"] is not None:
            verdict = verdict_text(claim["matched"], claim["total"], claim["cases"])
            lines.append([claim["claim"], claim["paper"], claim["ours"], verdict])
    return lines
