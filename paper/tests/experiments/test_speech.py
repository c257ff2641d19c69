"""Claims, tables and figure of the speech experiment, on made-up error rates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hrf_paper.datasets import MissingData, data_folder
from hrf_paper.experiments.experiment import scaled_down
from hrf_paper.experiments.speech import EXPERIMENT
from hrf_paper.experiments.speech_measure import (
    GROUPS,
    JOINED,
    PRINTED,
    SIGNED,
    SINGLE,
    SpeechSettings,
    key,
    printed_rate,
    rate,
    set_names,
)
from hrf_paper.speech.methods import METHODS
from hrf_paper.speech.training import SpeechTraining

SETTINGS = SpeechSettings(
    SpeechTraining(),
    runs=3,
    swapped_runs=2,
    tuned_runs=2,
    tuned=("exact", "HRF-C (3, 3) 64", "HRF-A (8, 8)"),
    scratch=(),
)


def part(settings: SpeechSettings, *rates: float) -> dict:
    """Return a part with one draw per rate."""
    draws = [{n: {"wer": r, "cer": r / 2} for n in set_names(settings)} for r in rates]
    return {"draws": draws, "flops": 1000.0 + rates[0], "timings": {"training CPU seconds": 600.0}}


def results(settings: SpeechSettings, rates: dict[str, float]) -> dict:
    found = {}
    for run in range(settings.runs):
        found[key(SINGLE, "exact", run)] = part(settings, rates["exact"] + run) | {"searched": 8.0 + run}
    for run in range(settings.swapped_runs):
        found[key(JOINED, "exact", run)] = part(settings, rates["exact"] + run)
        for name in METHODS:
            found[key("swapped", name, run)] = part(settings, rates[name] - 0.01, rates[name] + 0.01)
        for name in settings.tuned:
            found[key("fine-tuned", name, run)] = part(settings, rates[name])
    for name in settings.scratch:
        found[key("from scratch", name, 0)] = part(settings, rates[name])
    return found


def printed() -> dict[str, float]:
    """Return the paper's rates; methods without any get rates above them."""
    others = {name: 5.0 + i for i, name in enumerate(METHODS)}
    return others | {name: printed_rate(name) for names in GROUPS.values() for name in names}


def test_the_papers_own_numbers_reproduce_its_order():
    claims = EXPERIMENT.claims(SETTINGS, results(SETTINGS, printed()))
    swapped, tuned = claims[:4], claims[4]
    assert [(c.matched, c.total, c.verdict) for c in swapped] == [
        (8, 8, "holds"),
        (2, 2, "holds"),
        (4, 4, "holds"),
        (4, 4, "holds"),
    ]
    assert (tuned.matched, tuned.total) == (1, 1)
    assert swapped[0].paper == "1.72 to 1.85 % against 2.03 to 2.05 %"
    assert swapped[0].ours.startswith("1.7 to 1.9 % against ")
    assert swapped[1].claim.startswith("HRF-C real has lower word error rates than HRF-A ")
    assert swapped[1].paper == "1.72 % against 2.03 to 2.05 %"
    assert [c.verdict for c in claims[5:]] == ["beyond"] * 3


def test_trainings_from_scratch_are_judged_by_single_and_by_joined_utterances():
    settings = replace(SETTINGS, scratch=("FAVOR+ 128", "Trig 128"))
    found = results(settings, printed())
    joined = found[key("from scratch", "FAVOR+ 128", 0)]["draws"][0]["joined, 500"]
    joined["wer"] = 9.0  # above Trig
    single, other = [c for c in EXPERIMENT.claims(settings, found) if "from scratch" in c.claim]
    assert single.claim.endswith("(trained from scratch with the map; single).")
    assert (single.matched, single.total) == (1, 1)
    assert other.claim.endswith("; joined, 500).")
    assert (other.matched, other.total) == (0, 1)


def test_the_reverse_order_is_not_reproduced():
    rates = printed() | {name: 10 - printed_rate(name) for names in GROUPS.values() for name in names}
    claims = EXPERIMENT.claims(SETTINGS, results(SETTINGS, rates))
    assert [c.verdict for c in claims[:5]] == ["fails"] * 5
    assert [c.matched for c in claims[:5]] == [0] * 5


def test_half_of_the_pairs_is_partly():
    rates = printed() | {"Trig 128": 2.0}
    claim = EXPERIMENT.claims(SETTINGS, results(SETTINGS, rates))[3]
    assert (claim.matched, claim.total, claim.verdict) == (2, 4, "partly")


def test_gaps_to_uniform_attention_are_stated():
    rates = printed() | {"exact": 10.0, "uniform": 14.0, "none": 30.0}
    claim = EXPERIMENT.claims(SETTINGS, results(SETTINGS, rates))[-3]
    assert claim.ours == "uniform +4.0 and none +20.0 points (swapped; turns, 500)"
    assert "swapped, single: exact 10.0 %, uniform +4.0, none +20.0; " in claim.sentence
    assert "fine-tuned" not in claim.sentence  # uniform and none were not fine-tuned


def test_rates_are_means_over_runs_and_draws():
    found = {
        key("swapped", "exact", 0): part(SETTINGS, 1, 2),
        key("swapped", "exact", 1): part(SETTINGS, 3, 4),
    }
    judged = rate(found, "swapped", "exact", "turns, 500")
    assert judged.values == [1, 2, 3, 4]
    assert judged.mean == 2.5
    # 3.182 is the quantile of Student's t with 3 degrees of freedom, 1.291 the deviation.
    assert judged.half_width == pytest.approx(3.182 * 1.291 / 2, rel=1e-3)
    assert rate(found, "fine-tuned", "exact", "turns, 500") is None


def test_what_was_not_run_is_said():
    tables = EXPERIMENT.all_tables(SETTINGS, results(SETTINGS, printed()))
    for table in tables:
        assert all(len(row) == len(table.header) for row in table.rows)
    assert [row[:2] for row in tables[0].rows] == [
        *((f"run {run}", stage) for run in range(2) for stage in (SINGLE, JOINED)),
        ("run 2", SINGLE),
    ]
    assert [row[2] for row in tables[0].rows] == ["8.00", "", "9.00", "", "10.00"]  # searched
    rows = {row[0]: row for row in tables[1].rows}
    assert list(rows) == list(METHODS)
    assert rows["HRF-C (3, 3) 64"][1:] == ("1.72 ± 0.02", "1.7 ± 0.0", "1.7 ± 0.0", "not run", "not run")
    assert rows["FAVOR+ 128"][3:] == ("not run", "not run", "not run")
    by_stage = {table.title: [row[0] for row in table.rows] for table in tables[2:-1]}
    assert by_stage == {
        "Word error rate in percent, swapped, on all test utterances": [*METHODS],
        "Word error rate in percent, fine-tuned, on all test utterances": [*SETTINGS.tuned],
    }


def test_the_figure_has_a_panel_per_stage_that_was_run_and_set():
    settings = replace(SETTINGS, scratch=("FAVOR+ 128", "FAVOR+ 216"))
    found = results(settings, printed() | {"Trig 128": 160.0})
    for name in settings.scratch:
        found[key("swapped", name, 0)]["flops"] = 5_000.0
    panels = EXPERIMENT.figure(settings, found).get_axes()
    assert [axes.get_title() for axes in panels] == [
        "swapped (turns, 500)",
        "fine-tuned (turns, 500)",
        "from scratch (single)",
        "from scratch (joined, 500)",
    ]
    dots = [line.get_xdata()[0] for line in panels[2].lines if line.get_marker() == "o"]
    assert dots[0] == 5_000 < dots[1] < 5_200  # the same FLOPs, side by side


def test_kinds_of_the_table():
    assert [len(names) for names in GROUPS.values()] == [4, 2, 2, 2, 1]
    assert set(PRINTED) <= set(METHODS)
    assert {*GROUPS["HRF-C"], *GROUPS["HRF-A"], *GROUPS["Trig"]} == set(SIGNED)


@pytest.mark.skipif(not (data_folder() / "an4-mfcc").is_dir(), reason="needs an4-mfcc in $HRF_DATA")
def test_methods_are_trained_from_scratch_on_equal_terms():
    """Trainings of a run differ in the method alone; in fine-tuning, signed maps have unit length, too."""
    settings = EXPERIMENT.settings()
    parts = EXPERIMENT.parts(settings)

    def training(stage: str, method: str) -> SpeechTraining:
        return parts[key(stage, method, 0)].args[0]

    exact = training("from scratch", "exact")
    assert exact.model.key_length == settings.key_length == 1
    for name in METHODS:
        assert training("from scratch", name) == replace(exact, method=name)
        length = settings.key_length if name in SIGNED else None
        assert training("fine-tuned", name).model.key_length == length


def test_scaled_down_settings_are_listed():
    assert scaled_down(EXPERIMENT.full, EXPERIMENT.full) == []
    (table,) = scaled_down(EXPERIMENT.settings(), EXPERIMENT.full)
    assert {"tuned_epochs", "scratch_epochs"} <= {row[0] for row in table.rows}


def test_missing_data_are_reported_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setenv("HRF_DATA", str(tmp_path))
    with pytest.raises(MissingData, match="set HRF_DATA to the folder that holds an4-mfcc/"):
        EXPERIMENT.parts(replace(EXPERIMENT.quick, seed=1))
