"""Words about findings: the headline never stands above something better, and comparisons are true."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

import hrf
from hrf.advice.errors import SummaryFinding
from hrf.advice.findings import glossary, headline, sentences, warning
from hrf.advice.page import page


@pytest.fixture(scope="module")
def found():
    generator = torch.Generator().manual_seed(0)
    queries, keys = torch.randn(2, 200, 4, generator=generator)
    return hrf.advise(queries, keys, budget=32, n_redraws=2)


def with_errors(found, best, beyond, summarised=None):
    """Change the errors of the best map, of what is not ranked, and of summarised attention."""
    first = replace(found.ranking[0], error=best, low=best, high=best)
    others = [replace(c, error=error) for c, error in zip(found.beyond, beyond, strict=True)]
    method = None if summarised is None else SummaryFinding(1.0, summarised, 0.05, 100, 0.9)
    return replace(found, ranking=[first, *found.ranking[1:]], beyond=others, summarised=method)


def test_the_best_map_is_best_of_all_if_nothing_is_better(found):
    best = with_errors(found, 0.01, [0.02, 0.03], 0.04)
    assert headline(best) == f"Use {found.ranking[0].name}: best at this budget, and best of all, error 0.010"
    assert not any("Not ranked" in sentence for sentence in sentences(best))


@pytest.mark.parametrize(
    ("beyond", "summarised", "error"), [([0.026, 0.1], 0.085, "0.026"), ([0.2, 0.3], 0.085, "0.085")]
)
def test_what_is_better_than_the_best_map_is_named_beside_it(found, beyond, summarised, error):
    changed = with_errors(found, 0.123, beyond, summarised)
    name = found.beyond[0].name if error == "0.026" else "summarised attention"
    expected = (
        f"Best map at this budget: {found.ranking[0].name}, error 0.123; best of all: {name}, error {error}"
    )
    assert headline(changed) == expected
    assert sentences(changed)[0] == f"{expected}."
    assert any(sentence.startswith(f"Not ranked: {name}, since ") for sentence in sentences(changed))


@pytest.mark.parametrize(("error", "word"), [(0.917, "hardly"), (1.0, "no"), (1.3, "no"), (0.6, None)])
def test_no_better_is_said_of_what_is_no_better(found, error, word):
    text = warning(replace(with_errors(found, error, [2.0, 2.0]), uniform=1.0))
    words = re.findall(r"(\w+) better than ignoring queries and keys", text)
    assert words == ([] if word is None else [word])


def test_words_in_names_are_explained(found):
    words = glossary(found)
    names = " ".join(c.name for c in (*found.ranking, *found.beyond))
    for word in ("shrunk", "separable", "recentred"):
        assert word in names
        assert f"{word}: " in words
    assert "state: " in found.legend
    assert words in str(found)
    only = replace(found, ranking=[c for c in found.ranking if c.name == "positive"], beyond=[])
    assert glossary(only) == ""
    assert "\n\n\n" not in str(only)
    assert "<small>.</small>" not in page(only, b"", b"")
