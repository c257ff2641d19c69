"""Classes over ranks: the distribution of one sampler of all classes, stated exactly, the same on every rank."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from ranked.processes import run
from ranked.samplers import measured, refusals, updated

FIVE_SIGMA = stats.norm.sf(5)
ROUNDING = 1e-12  # of sums of 64 classes in float64


@pytest.mark.parametrize("size", [1, 3])
def test_distribution(size):
    every = run(size, measured)
    for case, found in every[0].items():
        assert found["sum"] < ROUNDING, case
        assert found["stated"] < ROUNDING, case
        if "Positive" in case or "aligned=True" in case:
            assert found["difference"] < ROUNDING, case
        assert all(other[case]["ids"] == found["ids"] for other in every), case
        assert_fits(torch.tensor(found["counts"]), torch.tensor(found["own"]))


def assert_fits(counts, expected):
    """Pearson's chi-square test at five standard errors; classes that hardly ever come count as one."""
    rare = expected < 5
    counts = torch.cat([counts[~rare], counts[rare].sum()[None]]).double()
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    statistic = ((counts - expected) ** 2 / expected.clamp(min=1)).sum()
    assert float(statistic) <= stats.chi2.isf(FIVE_SIGMA, len(counts) - 1)


def test_updates_reach_the_rank_of_a_class():
    assert max(run(2, updated)) < ROUNDING


SAID = {
    "other queries": "ValueError: ranks differ in queries: rank 1 has (6, 4) with hash",
    "other k": "ValueError: ranks differ in what is asked: rank 1 has k = 4; expected k = 3",
    "other classes": "ValueError: ranks differ in what is asked: rank 1 has (2, 3, 5) with hash",
    "nan": "ValueError: queries has 24 values that are NaN or infinite",
    "too many": "ValueError: k is 65; expected at most the number of classes, 64",
    "not a class": "ValueError: ids run from 1 to 64; expected classes from 0 to 63",
    "no classes": "ValueError: n_classes is 0; expected at least 1",
    "other radius": "ValueError: ranks differ in radius: rank 1 has 2.0; expected None",
    "other map": "ValueError: ranks differ in the feature map: rank 1 has Positive with fingerprint",
    "a list": "TypeError: class_embeddings is of type list; expected a tensor",
}


def test_every_rank_says_what_is_wrong_on_one():
    for rank, texts in enumerate(run(2, refusals)):
        assert set(texts) == set(SAID)
        for case, text in texts.items():
            expected = SAID[case]
            own = rank == 1 or text.startswith(expected)
            assert text.startswith(expected if own else f"RankError: rank 1 raised {expected}"), (case, text)
