"""Claims, tables and figure of the sweeping experiment, on made-up shares."""

from __future__ import annotations

import pytest

from hrf_paper.experiments.sweeping import EXPERIMENT, SCALED, SCRATCH, curves, key, share

(RATE,) = SCALED.learning_rates
GOOD = {"exact": 0.9, "HRF-A (8, 8)": 0.88, "FAVOR+ 128": 0.88, "blind": 0.3}


def part(delivered: float, attention: float, *, tuned: bool = False) -> dict:
    flops = {"attention": attention, "encoder": attention + 1e6, "search": 4e7}
    every = SCALED.tuned_steps if tuned else SCALED.training.judge_every
    steps = range(every, (every if tuned else SCALED.training.steps) + 1, every)
    return {
        "delivered": [delivered - 0.05, delivered + 0.05],
        "lost": [0.0, 0.0],
        "rewards": [delivered / 2, delivered / 2],
        "curve": [{"step": step, "loss": 1.0, "delivered": delivered} for step in steps],
        "diverged": None,
        "flops": {"ours": flops, "paper's image": flops},
        "timings": {"training CPU seconds": 60.0},
    }


def results(shares: dict[str, float], *, cost: float = 1e7, divided: int | None = None) -> dict:
    found = {
        key(name, r, RATE): part(
            shares.get(name, 0.5) + 0.01 * r,
            cost if name == "FAVOR+ 128" else 1e7,
            tuned=name not in SCRATCH,
        )
        for name in SCALED.methods
        for r in range(SCALED.runs)
    }
    return found | {name: {"diverged": divided, "loss": 2.0} for name in SCALED.divided}


def verdicts(found: dict) -> dict[str, str]:
    return {claim.claim: claim.verdict for claim in EXPERIMENT.claims(SCALED, found)}


def the(claims: dict[str, str], words: str) -> str:
    (verdict,) = [verdict for claim, verdict in claims.items() if words in claim]
    return verdict


def test_the_papers_statements_hold_where_they_are_true():
    found = verdicts(results(GOOD, cost=4e7, divided=3))
    assert the(found, "same quality") == "holds"
    assert the(found, "3 times fewer") == "holds"


def test_and_fail_where_they_are_not():
    found = verdicts(results(GOOD | {"HRF-A (8, 8)": 0.4}))
    assert the(found, "same quality") == "fails"
    assert the(found, "3 times fewer") == "fails"
    assert the(found, "NaN") == "fails"


def test_losses_that_were_not_a_number_are_listed():
    claims = EXPERIMENT.claims(SCALED, results(GOOD, divided=17))
    (claim,) = [claim for claim in claims if "NaN" in claim.claim]
    assert claim.matched == len(SCALED.divided)
    assert "Trig 4, divided as is: step 17" in claim.sentence


@pytest.mark.parametrize(("blind", "words"), [(0.3, "are reached"), (0.5, "are not both reached")])
def test_sight_is_judged(blind, words):
    claims = EXPERIMENT.claims(SCALED, results(GOOD | {"blind": blind}))
    (claim,) = [claim for claim in claims if "sight" in claim.claim]
    assert words in claim.sentence


def test_shares_are_means_over_trainings():
    found = share(SCALED, results(GOOD), "exact")
    assert found.values == pytest.approx([90, 91, 92])
    assert found.mean == pytest.approx(91)
    assert found.half_width == pytest.approx(
        4.303 / 3**0.5, rel=1e-3
    )  # Student's t with two degrees of freedom


def test_a_curve_that_ends_early_counts_as_nothing_delivered():
    broken = results(GOOD)
    broken[key("exact", 0, RATE)]["curve"].pop()
    steps, found = curves(SCALED, broken, "exact")
    assert len(steps) == len(found[0]) == len(found[1])
    assert found[0][-1] == 0 < found[1][-1]


def test_the_curve_of_a_tuned_method_begins_where_exact_attention_ends():
    found = results(GOOD)
    steps, tuned = curves(SCALED, found, "HRF-A (8, 8)")
    assert steps == [SCALED.training.steps, SCALED.training.steps + SCALED.tuned_steps]
    assert tuned[0] == pytest.approx([90, 88])
