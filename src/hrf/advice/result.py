"""`Advice`, the result of `advise`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from os import PathLike
from typing import Any

from hrf.advice import wording
from hrf.advice.findings import Candidate, Findings
from hrf.features.base import FeatureMap

__all__ = ["Advice"]

_FIELDS = ("name", "family", "width", "flops", "error", "low", "high", "predicted", "note")


@dataclass(frozen=True)
class Advice(Findings):
    """Maps for given data and budget, best first.

    Attributes:
        ranking: by the upper end of the interval: a map that needs luck is not a good one. For the objective
            ``kernel`` by the closed form where it is known, since draws that make up an error may be rare.
        beyond: maps that cost more than the budget, or that need all keys at hand.
        uniform: the error of attention that ignores queries and keys.
        left_out: why a candidate is missing, by name.
        settings: the arguments of `advise`, and facts about the data.
        summarised: summarised attention, which is no map, at the cost of attention within the budget; ``None`` without
            values, with fewer than 512 queries or keys, or with a ``length`` below 256.
    """

    @property
    def best(self) -> FeatureMap:
        """The best map, fitted and ready to use."""
        return self.ranking[0].feature_map

    @property
    def warning(self) -> str | None:
        """A sentence on what is wrong and what to do if no ranked map is good enough, else ``None``."""
        return wording.warning(self)

    @property
    def legend(self) -> str:
        """The order of the table, and the meaning of its columns."""
        return wording.legend(self)

    @property
    def headline(self) -> str:
        """What is best at this budget, and what is best of all."""
        return wording.headline(self)

    @property
    def glossary(self) -> str:
        """The meaning of the words in the names of the maps."""
        return wording.glossary(self)

    def sentences(self) -> list[str]:
        """Say what is best, why, and how large its error is."""
        return wording.sentences(self)

    def to_dict(self) -> dict[str, Any]:
        """Return numbers and texts only, without times: one seed gives one text. Errors that overflow are ``None``."""
        return {
            "settings": vars(self.settings) | {"held_out": list(self.settings.held_out)},
            "ranking": [_plain(c) for c in self.ranking],
            "beyond": [_plain(c) for c in self.beyond],
            "uniform": _finite(self.uniform),
            "summarised": self.summarised and {k: _finite(v) for k, v in vars(self.summarised).items()},
            "left_out": self.left_out,
            "warning": self.warning,
        }

    def plot(self, path: str | PathLike[str]) -> None:
        """Draw errors and costs to an image file; its suffix names the format. Needs matplotlib."""
        from hrf.advice.figure import figure  # advice itself needs no matplotlib

        figure(self).savefig(path, dpi=160)

    def __str__(self) -> str:
        reference = wording.uniform_cells(self)
        rows = [
            wording.HEADER,
            *map(wording.cells, self.ranking),
            reference,
            *map(wording.cells, self.beyond),
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [_aligned(row, widths) for row in rows]
        rule = "-" * max(map(len, lines))
        lines.insert(1, rule)
        if self.beyond:
            lines.insert(len(self.ranking) + 3, rule)
        warning = [f"Warning: {self.warning}"] if self.warning else []
        explained = filter(None, [self.legend, self.glossary])
        return "\n".join([*lines, *explained, "", *self.sentences(), *warning])


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    """Join cells: the first aligned to the left, all others to the right."""
    first, *others = zip(row, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]).rstrip()


def _finite(value: Any) -> Any:
    """Return the value, or ``None`` for infinity and NaN, which JSON does not know."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _plain(candidate: Candidate) -> dict[str, Any]:
    described = {name: _finite(getattr(candidate, name)) for name in _FIELDS}
    return described | {"map": repr(candidate.feature_map), "state": candidate.feature_map.feature_dim}
