"""Word error rates of all methods beside the paper's, at every stage."""

from __future__ import annotations

from hrf.report import number
from hrf_paper.experiments.experiment import Results, Table
from hrf_paper.experiments.shared.scaled_down import scaled_down
from hrf_paper.experiments.speech.printed import printed_text
from hrf_paper.experiments.speech.rates import methods_run, rate
from hrf_paper.experiments.speech.settings import (
    FULL,
    JOINED,
    SINGLE,
    SINGLE_SET,
    STAGES,
    Settings,
    judged,
    key,
    set_names,
)
from hrf_paper.speech.beam import BEAM
from hrf_paper.speech.methods import METHODS

__all__ = ["tables"]

_NOT_RUN = "not run"


def tables(settings: Settings, results: Results) -> list[Table]:
    """Show the models with exact attention, all methods at all stages, and each stage on all test utterances."""
    return [
        _trained(settings, results),
        _stages(settings, results),
        *(_sets(settings, results, stage) for stage in STAGES if methods_run(results, stage, METHODS)),
        *scaled_down(settings, FULL),
    ]


def _trained(settings: Settings, results: Results) -> Table:
    rows = []
    for run in range(settings.runs):
        for stage in (SINGLE, JOINED) if run < settings.swapped_runs else (SINGLE,):
            part = results[key(stage, "exact", run)]
            rates = [f"{part['draws'][0][tested]['wer']:.2f}" for tested in set_names(settings)]
            minutes = part["timings"]["training CPU seconds"] / 60
            searched = f"{part['searched']:.2f}" if "searched" in part else ""
            rows.append((f"run {run}", stage, searched, *rates, f"{minutes:.1f}"))
    return Table(
        "Exact attention: word error rate in percent",
        ("run", "model", f"{SINGLE_SET}, beam of {BEAM}", *set_names(settings), "CPU minutes"),
        rows,
        caption="Decoded greedily, but for the first number",
    )


def _stages(settings: Settings, results: Results) -> Table:
    columns = judged(settings)
    rows = [
        (name, printed_text(name), *(_cell(results, stage, name, tested) for stage, tested in columns))
        for name in METHODS
    ]
    return Table(
        "Word error rate in percent",
        ("attention", "paper", *(f"{stage} ({tested})" for stage, tested in columns)),
        rows,
        caption="± is the 95 % interval of the mean over runs and draws, if there are several; the paper's is one "
        "deviation over 10 runs on LibriSpeech, trained from scratch. Queries and keys have the length "
        f"{settings.key_length:g} in all trainings from scratch and in fine-tuning with complex HRF-C, HRF-A and Trig, "
        "and keep theirs elsewhere",
    )


def _sets(settings: Settings, results: Results, stage: str) -> Table:
    rows = []
    for name in methods_run(results, stage, METHODS):
        flops = number(results[key("swapped", name, 0)]["flops"], grouped=True)
        rows.append((name, flops, *(_cell(results, stage, name, tested) for tested in set_names(settings))))
    return Table(
        f"Word error rate in percent, {stage}, on all test utterances",
        ("attention", "FLOPs", *set_names(settings)),
        rows,
        caption=f"FLOPs of attention per frame and head at {settings.lengths[0]} frames",
    )


def _cell(results: Results, stage: str, method: str, tested: str) -> str:
    found = rate(results, stage, method, tested)
    return _NOT_RUN if found is None else found.text
