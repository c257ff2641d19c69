"""Word error rates of all methods beside the paper's, at every stage."""

from __future__ import annotations

from hrf.report import number
from hrf_paper.experiments.experiment import Results, Table
from hrf_paper.experiments.shared.scaled_down import scaled_down
from hrf_paper.experiments.speech.measure import (
    FULL,
    JOINED,
    SINGLE,
    SINGLE_SET,
    STAGES,
    Settings,
    judged_set,
    key,
    set_names,
)
from hrf_paper.experiments.speech.printed import PRINTED
from hrf_paper.experiments.speech.rates import rate
from hrf_paper.speech.beam import BEAM
from hrf_paper.speech.methods import METHODS

__all__ = ["tables"]

_NOT_RUN = "not run"


def tables(settings: Settings, results: Results) -> list[Table]:
    """Show the models with exact attention, all methods at the paper's length, and swaps at all lengths."""
    return [
        _trained(settings, results),
        _stages(settings, results),
        _swaps(settings, results),
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
    rows = []
    for name in METHODS:
        printed = "{} ± {}".format(*PRINTED[name]) if name in PRINTED else ""
        found = [rate(results, stage, name, judged_set(settings, stage)) for stage in STAGES]
        rows.append((name, printed, *(_NOT_RUN if r is None else r.text for r in found)))
    return Table(
        "Word error rate in percent",
        ("attention", "paper", *STAGES),
        rows,
        caption="Test utterances: "
        + "; ".join(f"{stage}, {judged_set(settings, stage)}" for stage in STAGES)
        + ". ± is the 95 % interval of the mean over runs and draws, if there are several; the paper's is one "
        "deviation over 10 runs on LibriSpeech, trained from scratch. Queries and keys have the length "
        f"{settings.scratch_key_length:g} in all trainings from scratch, {settings.tuned_key_length:g} in fine-tuning "
        "with HRF-A and Trig, and keep theirs elsewhere",
    )


def _swaps(settings: Settings, results: Results) -> Table:
    rows = []
    for name in METHODS:
        found = [rate(results, "swapped", name, tested) for tested in set_names(settings)]
        flops = results[key("swapped", name, 0)]["flops"]
        rows.append((name, number(flops, grouped=True), *("" if r is None else r.text for r in found)))
    return Table(
        "Swapped into the trained model, without training: word error rate in percent",
        ("attention", "FLOPs", *set_names(settings)),
        rows,
        caption=f"FLOPs of attention per frame and head at {settings.lengths[0]} frames",
    )
