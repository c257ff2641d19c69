"""Quality of the picks of `hrf.advise`: per head it sees training text, and a passage of test text is the judge.

The advisor gets queries, keys and values of a head and a budget of 256 active features. All maps that it ranks, the
maps within the budget, are then measured on the test passage; maps that it shows apart (centres that move with the
keys, exact pairs) cost more and are not compared. A pick is good if its error is within a tenth of the smallest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from torch import Generator, Tensor

import hrf
from benchmarks.minilm import Attention
from benchmarks.quality.workers import pool
from hrf.advice.errors import Problem

__all__ = ["AIM", "Pick", "pick_maps", "within_a_tenth"]

BUDGET = 256
AIM = 0.8  # of the heads
DRAWS = 5  # of ω, on the test passage
NEARLY = 1.1


class Pick(NamedTuple):
    """The advised map for one head, and the map that would have been best.

    Attributes:
        name: name of the map that the advisor ranks first.
        error: error of its attention output on the test passage.
        best: name of the map with the smallest error there.
        least: the smallest error.
    """

    name: str
    error: float
    best: str
    least: float

    @property
    def good(self) -> bool:
        """Whether the pick is within a tenth of the best."""
        return self.error <= NEARLY * self.least


def pick_map(head: tuple[Tensor, Tensor, Tensor]) -> Pick:
    """Get advice for one head from all passages but the first and judge it by the first; tensors are ``(N, L, d)``."""
    advice = hrf.advise(*(u[1:].flatten(0, 1) for u in head), budget=BUDGET)
    queries, keys, values = (u[0] for u in head)
    passage = Problem(queries, keys, values, "output")
    errors = {
        c.name: passage.error(c.feature_map, DRAWS, Generator().manual_seed(1)).value for c in advice.ranking
    }
    name, best = advice.ranking[0].name, min(errors, key=lambda name: errors[name])
    return Pick(name, errors[name], best, errors[best])


def pick_maps(captured: Sequence[Attention], layers: Sequence[int]) -> dict[int, list[Pick]]:
    """Return the picks for all heads of the given layers, counted from 1."""
    heads = {layer: [*zip(*(u.unbind(1) for u in captured[layer - 1]), strict=True)] for layer in layers}
    with pool() as workers:
        found = {layer: workers.map(pick_map, of_layer) for layer, of_layer in heads.items()}
        return {layer: list(picks) for layer, picks in found.items()}


def within_a_tenth(picks: dict[int, list[Pick]]) -> tuple[float, str]:
    """Return the share of good picks, and a sentence about them."""
    every = [pick for of_layer in picks.values() for pick in of_layer]
    share = sum(pick.good for pick in every) / len(every)
    names = ", ".join(f"{name} {count}×" for name, count in Counter(p.name for p in every).most_common())
    ratios = sorted(pick.error / pick.least for pick in every)
    return share, (
        f"Advice (budget {BUDGET} by width, maps within the budget compared): within 10 % of the best map in "
        f"{share:.0%} of {len(every)} heads, aim {AIM:.0%}; the worst pick has {ratios[-1]:.2f} times the least "
        f"error. Picks: {names}."
    )
