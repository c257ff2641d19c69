"""What `advise` returns: candidates in order, what stands apart, and words about them."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Any

from hrf.features.base import FeatureMap

__all__ = ["HEADER", "Advice", "Candidate", "Settings", "cells", "number", "uniform_cells"]

_COLUMNS = (
    "width: active features of a vector; state: numbers that attention keeps for each column of the values; "
    "FLOPs, µs: to map a vector; kernel ε: median of √MSE/K over pairs, by closed form"
)
HEADER = ("map", "width", "state", "FLOPs", "µs", "error", "95 % interval", "kernel ε")

_GOOD_ENOUGH = 0.5
_NEARLY, _CHEAPER = 1.1, 0.8  # times the error and the FLOPs of the best
_NO_BETTER = 0.9  # than uniform attention
_ERRORS = {
    "attention": "the attention weights",
    "output": "the attention output",
    "kernel": "the kernel values",
}
_WITHIN = {
    "width": "with {} features or fewer",
    "flops": "with no more FLOPs than positive features of width {}",
    "time": "no slower than positive features of width {}",
}


@dataclass(frozen=True)
class Settings:
    """What advice depends on, data aside, and what the data were like.

    Attributes:
        budget: every candidate may cost as much as positive features of this width.
        unit: in which that cost is counted.
        objective: which error is measured.
        n_redraws: draws behind each interval.
        seed: of the split, k-means and ω.
        scale: the factor of the logits; maps take inputs multiplied by its root.
        dim: d.
        n_queries: how many queries were given.
        n_keys: how many keys.
        query_norm: root of the mean of ‖q‖², scale included.
        key_norm: likewise.
        held_out: queries and keys of which the errors are.
    """

    budget: int
    unit: str
    objective: str
    n_redraws: int
    seed: int
    scale: float
    dim: int
    n_queries: int
    n_keys: int
    query_norm: float
    key_norm: float
    held_out: tuple[int, int]


@dataclass(frozen=True)
class Candidate:
    """One map and how it did.

    Attributes:
        name: of the map.
        family: ``isotropic``, ``hybrid``, ``fitted`` or ``clustered``.
        feature_map: fitted, with the ω of the first draw.
        width: active features of a vector (see `hrf.advice.cost`).
        flops: to map one vector.
        error: on held-out queries and keys, by the objective.
        low: of the 95 % interval of the error over draws of ω.
        high: of the same.
        predicted: the median of √MSE/K over held-out pairs, by closed form; ``None`` where there is none.
        seconds: measured, to map one vector.
        note: what a user has to know.
    """

    name: str
    family: str
    feature_map: FeatureMap
    width: int
    flops: int
    error: float
    low: float
    high: float
    predicted: float | None
    seconds: float
    note: str = ""


@dataclass(frozen=True)
class Advice:
    """Maps for some data and budget, best first.

    Attributes:
        ranking: by the upper end of the interval: a map that needs luck is not a good one. For the objective
            ``kernel`` by the closed form where there is one, since draws that make up an error may be rare.
        beyond: maps that cost more than the budget, or that need all keys at hand.
        uniform: the error of attention that ignores queries and keys.
        left_out: why a candidate is missing, by name.
        settings: what was asked.
    """

    ranking: list[Candidate]
    beyond: list[Candidate]
    uniform: float
    left_out: dict[str, str]
    settings: Settings

    @property
    def best(self) -> FeatureMap:
        """The best map, fitted and ready to use."""
        return self.ranking[0].feature_map

    @property
    def warning(self) -> str | None:
        """What is wrong, and what to do, if no map of the ranking is good enough."""
        s, best = self.settings, self.ranking[0]
        error = self._expected(best)
        useless = error > _NO_BETTER * self.uniform
        if not useless and error <= _GOOD_ENOUGH:
            return None
        text = f"no map is good enough at this budget: the best, {best.name}, has error {number(error)}"
        if useless:
            text += f", no better than ignoring queries and keys (uniform attention: {number(self.uniform)})"
        text += f". Queries have norm {s.query_norm:.1f} and keys {s.key_norm:.1f}"
        text += ", and random features fail beyond norms of about 2" if s.query_norm * s.key_norm > 4 else ""
        ways = ["raise the budget", "lower the scale of the logits", "compute exact attention"]
        better = min(self.beyond, key=self._expected, default=None)
        if better is not None and self._expected(better) < 0.8 * error:
            ways.insert(0, f"take '{better.name}' (error {number(better.error)})")
        return f"{text}; {', '.join(ways[:-1])}, or {ways[-1]}."

    @property
    def legend(self) -> str:
        """What the table is ordered by, and what its columns are."""
        order = "kernel ε" if self.settings.objective == "kernel" else "the upper end of the interval"
        return f"Best first, by {order}. {_COLUMNS}"

    def _expected(self, candidate: Candidate) -> float:
        """The error; of the kernel by closed form, since the draws that make it up may be too rare to be seen."""
        known = candidate.predicted if self.settings.objective == "kernel" else None
        return candidate.error if known is None else known

    def sentences(self) -> list[str]:
        """Which map, why, and how wrong it will be."""
        best, s = self.ranking[0], self.settings
        what = _ERRORS[s.objective]
        rivals = [
            f"{c.name} {number(self._expected(c))}"
            for family in ("isotropic", "hybrid", "fitted", "clustered")
            if (c := next((c for c in self.ranking if c.family == family), best)).family != best.family
        ]
        within = "" if best.low == best.high else f" (95 % interval {_interval(best)})"
        if self._expected(best) != best.error:
            within = f" (by closed form; measured: {number(best.error)})"
        texts = [
            f"Use {best.name}: of all maps {_WITHIN[s.unit].format(s.budget)}, it has the smallest error on "
            "data it was not fitted to.",
            f"It gets {what} wrong by {number(self._expected(best))}{within}, relative to their size.",
        ]
        if rivals:
            rivals[-1] += f"; uniform attention {number(self.uniform)}"
            texts.append(f"The best of the other families: {', '.join(rivals)}.")
        near = [
            c for c in self.ranking if c.error <= _NEARLY * best.error and c.flops < _CHEAPER * best.flops
        ]
        if near:
            c = min(near, key=lambda c: c.flops)
            texts.append(
                f"Nearly as good with {c.flops / best.flops:.0%} of the FLOPs: {c.name}, {number(c.error)}."
            )
        return texts

    def to_dict(self) -> dict[str, Any]:
        """Numbers and texts only. No times: one seed gives one text."""
        fields = ("name", "family", "width", "flops", "error", "low", "high", "predicted", "note")

        def plain(candidate: Candidate) -> dict[str, Any]:
            described = {name: getattr(candidate, name) for name in fields}
            return described | {
                "map": repr(candidate.feature_map),
                "state": candidate.feature_map.feature_dim,
            }

        return {
            "settings": vars(self.settings) | {"held_out": list(self.settings.held_out)},
            "ranking": [plain(c) for c in self.ranking],
            "beyond": [plain(c) for c in self.beyond],
            "uniform": self.uniform,
            "left_out": self.left_out,
            "warning": self.warning,
        }

    def plot(self, path: str | PathLike[str]) -> None:
        """Draw errors and costs to an image file; its ending names the format. Needs matplotlib."""
        from hrf.advice.figure import figure  # matplotlib is not needed for advice without it

        figure(self).savefig(path, dpi=160)

    def __str__(self) -> str:
        rows = [HEADER, *map(cells, self.ranking), uniform_cells(self.uniform), *map(cells, self.beyond)]
        widths = [max(len(row[k]) for row in rows) for k in range(len(HEADER))]
        lines = [
            "  ".join(
                cell.rjust(width) if k else cell.ljust(width)
                for k, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        rule = "-" * max(map(len, lines))
        lines.insert(1, rule)
        if self.beyond:
            lines.insert(len(self.ranking) + 3, rule)
        return "\n".join(
            [*lines, "", *self.sentences(), *([f"Warning: {self.warning}"] if self.warning else [])]
        )


def cells(candidate: Candidate) -> tuple[str, ...]:
    """A row of the table, as texts under `HEADER`."""
    c = candidate
    return (
        c.name,
        f"{c.width}",
        _short(c.feature_map.feature_dim),
        _short(c.flops),
        f"{c.seconds * 1e6:.1f}",
        number(c.error),
        "exact" if c.low == c.high == 0 else "no draws" if c.low == c.high else _interval(c),
        "–" if c.predicted is None else number(c.predicted),
    )


def uniform_cells(error: float) -> tuple[str, ...]:
    """The row of uniform attention, which has no cost."""
    return ("uniform attention", *[""] * 4, number(error), "", "")


def _interval(candidate: Candidate) -> str:
    return f"{number(candidate.low)}–{number(candidate.high)}"


def _short(count: int) -> str:
    return f"{count}" if count < 10_000 else f"{count / 1e3:.0f}k" if count < 1e6 else f"{count / 1e6:.1f}M"


def number(value: float) -> str:
    """Two to three digits; powers of ten beyond four."""
    if value == 0 or 0.001 <= value < 9999.5:
        return f"{value:.{3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0}f}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"
