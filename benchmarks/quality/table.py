"""Report of measured errors: a table, verdicts, and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from benchmarks.quality.candidates import POSITIVE
from benchmarks.quality.flops import pays_from
from benchmarks.quality.measure import Outcome
from hrf.advice.errors import FLOOR
from hrf.report import number, table

__all__ = ["as_dict", "show", "verdict"]


def verdict(outcomes: dict[str, Outcome], name: str) -> tuple[bool, str]:
    """Return whether a method has at most half the error of positive features in every layer, and a sentence."""
    mine, positive = outcomes[name], outcomes[POSITIVE]
    ratios = {layer: mine.layer(layer) / positive.layer(layer) for layer in mine.errors}
    worst = max(ratios, key=lambda layer: ratios[layer])
    met = sum(ratio <= 0.5 for ratio in ratios.values())
    where = "every layer" if met == len(ratios) else f"{met} of {len(ratios)} layers"
    return met == len(ratios), (
        f"{name} has at most half the error of positive features in {where}; "
        f"the largest share is {ratios[worst]:.3f}, in layer {worst}."
    )


def show(
    console: Console, outcomes: dict[str, Outcome], layers: Sequence[int], per_key: float, n_keys: int
) -> None:
    """Print errors and costs; ``per_key`` and ``n_keys`` are arguments of `pays_from`."""
    headings = ["map", "width", "draws", *(f"L{layer}" for layer in layers), "all", "floored", "exact"]
    rows = []
    n_heads = max(outcome.n_heads for outcome in outcomes.values())
    for name, o in outcomes.items():
        few = "" if o.n_heads == n_heads else f" ({o.n_heads} of {n_heads} heads)"
        rows.append(
            [
                name + few,
                str(o.width or ""),
                str(o.draws or ""),
                *(number(o.layer(layer), grouped=True) for layer in layers),
                number(o.overall, grouped=True),
                f"{o.floored:.1%}" if o.floored else "",
                f"{o.exact:.0%}" if o.exact else "",
                f"{o.flops:,.0f}",
                f"{pays_from(o.flops, o.exact, per_key, n_keys):,.0f}",
            ]
        )
    blank = [""] * (len(headings) - 1)
    rows.append(["exact attention", *blank, f"{per_key * n_keys:,.0f}", ""])
    title = "Relative error of the attention output, medians over heads"
    console.print(table([*headings, "FLOPs/token", "pays from"], rows, title=title))
    console.print(
        f"Width: features, per block for clustered maps. Floored: rows whose denominator was below {FLOOR:g} of the "
        "least it can be.\nExact: pairs of tokens. Pays from: the length at which exact attention needs as many "
        "FLOPs.\n",
        style="dim",
        highlight=False,
    )


def as_dict(outcome: Outcome, per_key: float, n_keys: int) -> dict[str, Any]:
    """Return an outcome for JSON."""
    return {
        "width": outcome.width,
        "draws": outcome.draws,
        "errors": outcome.errors,
        "medians": {layer: outcome.layer(layer) for layer in outcome.errors},
        "median": outcome.overall,
        "floored_rows": outcome.floored,
        "exact_share": outcome.exact,
        "flops_per_token": outcome.flops,
        "pays_from": pays_from(outcome.flops, outcome.exact, per_key, n_keys),
    }
