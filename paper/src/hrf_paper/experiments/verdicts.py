"""Claims of the paper, and the one rule that judges all of them.

A claim is a number of cases: printed numbers, settings, sizes, comparisons. A case is reproduced or it is not, and

- all cases reproduced: the claim is *reproduced* (``holds``),
- at least half of them: *partly reproduced* (``partly``),
- fewer than half: *not reproduced* (``fails``).

Questions that the paper does not ask have no cases (``beyond``). JSON files store ``matched`` and ``total`` with each
claim, so that a reader can recompute its verdict.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["MARKS", "RULE", "VERDICTS", "Claim", "Verdict", "verdict_of", "verdict_text"]

Verdict = Literal["holds", "partly", "fails", "beyond"]

VERDICTS: dict[Verdict, str] = {
    "holds": "reproduced",
    "partly": "partly reproduced",
    "fails": "not reproduced",
    "beyond": "not in the paper",
}
MARKS: dict[Verdict, str] = {"holds": "✓", "partly": "◦", "fails": "✗", "beyond": "+"}
RULE = (
    "A claim is reproduced (✓) if all of its cases are, partly reproduced (◦) if at least half of them are, "
    "and not reproduced (✗) otherwise; + marks questions that the paper does not ask."
)


def verdict_of(matched: int | None, total: int | None) -> Verdict:
    """Judge a claim by the number of its cases that are reproduced.

    >>> [verdict_of(matched, 22) for matched in (22, 11, 1)]
    ['holds', 'partly', 'fails']
    >>> verdict_of(None, None)
    'beyond'
    """
    if matched is None or total is None:
        return "beyond"
    if matched == total:
        return "holds"
    return "partly" if 2 * matched >= total else "fails"


def verdict_text(matched: int | None, total: int | None, cases: str = "", criterion: str = "") -> str:
    """Put a verdict into words that show the numbers behind it.

    >>> verdict_text(1, 22, "printed numbers", "within two deviations")
    '✗ 1 of 22 printed numbers reproduced (within two deviations)'
    """
    verdict = verdict_of(matched, total)
    if matched is None or total is None:
        return f"{MARKS[verdict]} {VERDICTS[verdict]}"
    counted = f"{total:,} {cases}" if cases else f"{total:,}"
    text = f"{MARKS[verdict]} {matched:,} of {counted} reproduced"
    return f"{text} ({criterion})" if criterion else text


@dataclass(frozen=True)
class Claim:
    """A statement of the paper beside the result of a run.

    Attributes:
        claim: the statement, and where it stands in the paper.
        paper: its value.
        ours: the value of this run.
        sentence: the finding, computed from the numbers.
        matched: the number of cases that are reproduced; ``None`` where the paper claims nothing.
        total: the number of all cases; ``None`` likewise.
        cases: the noun for what is counted, in the plural.
        criterion: when a case counts as reproduced, where the claim leaves it open.
        matching: the rule by which sizes of estimators are matched, where it matters.
        measured: whether a clock was involved, so that another run may find other numbers.
        verdict: a key of `VERDICTS`, by `verdict_of`.
    """

    claim: str
    paper: str
    ours: str
    sentence: str
    matched: int | None = None
    total: int | None = None
    cases: str = ""
    criterion: str = ""
    matching: str = ""
    measured: bool = False
    verdict: Verdict = field(init=False)

    def __post_init__(self) -> None:
        if (self.matched is None) != (self.total is None):
            raise ValueError(f"matched is {self.matched} and total is {self.total}; expected both or neither")
        if self.matched is not None and self.total is not None and not 0 <= self.matched <= self.total > 0:
            raise ValueError(
                f"matched is {self.matched} of {self.total}; expected a share of at least one case"
            )
        object.__setattr__(self, "verdict", verdict_of(self.matched, self.total))

    @property
    def text(self) -> str:
        """The verdict in words, with its numbers."""
        return verdict_text(self.matched, self.total, self.cases, self.criterion)
