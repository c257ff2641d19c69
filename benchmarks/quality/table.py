"""What was measured as a table, as verdicts and for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.quality.candidates import POSITIVE
from benchmarks.quality.flops import pays_from
from benchmarks.quality.measure import Outcome
from hrf.advice.errors import FLOOR

__all__ = ["as_dict", "show", "verdict"]


def verdict(outcomes: dict[str, Outcome], name: str) -> tuple[bool, str]:
    """Whether a method has at most half the error of positive features in every layer, and a sentence."""
    mine, positive = outcomes[name], outcomes[POSITIVE]
    ratios = {layer: mine.layer(layer) / positive.layer(layer) for layer in mine.errors}
    worst = max(ratios, key=lambda layer: ratios[layer])
    met = sum(ratio <= 0.5 for ratio in ratios.values())
    where = "every layer" if met == len(ratios) else f"{met} of {len(ratios)} layers"
    return met == len(ratios), (
        f"{name} has at most half the error of positive features in {where}; "
        f"the largest share is {ratios[worst]:.3f}, in layer {worst}."
    )


def number(value: float) -> str:
    """Two digits behind the point, none from 10 on."""
    return f"{value:.2f}" if value < 9.995 else f"{value:,.0f}"


def show(
    console: Console, outcomes: dict[str, Outcome], layers: Sequence[int], per_key: float, n_keys: int
) -> None:
    """Print the errors and the costs; the last two arguments are those of `pays_from`."""
    table = Table(
        title="Relative error of the attention output, medians over heads",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    headings = ["map", "width", "draws", *(f"L{layer}" for layer in layers), "all", "floored", "exact"]
    for i, heading in enumerate([*headings, "FLOPs/token", "pays from"]):
        table.add_column(heading, justify="right" if i else "left", no_wrap=True)
    n_heads = max(outcome.n_heads for outcome in outcomes.values())
    for name, o in outcomes.items():
        few = "" if o.n_heads == n_heads else f" ({o.n_heads} of {n_heads} heads)"
        table.add_row(
            name + few,
            str(o.width or ""),
            str(o.draws or ""),
            *(number(o.layer(layer)) for layer in layers),
            number(o.overall),
            f"{o.floored:.1%}" if o.floored else "",
            f"{o.exact:.0%}" if o.exact else "",
            f"{o.flops:,.0f}",
            f"{pays_from(o.flops, o.exact, per_key, n_keys):,.0f}",
        )
    blank = [""] * (len(headings) - 1)
    table.add_row("exact attention", *blank, f"{per_key * n_keys:,.0f}", "")
    console.print(table)
    console.print(
        f"Width: features, of a block for clustered maps. Floored: rows whose denominator was below {FLOOR:g} of the "
        "sum of magnitudes.\nExact: pairs of tokens. Pays from: the length at which exact attention needs as many "
        "FLOPs.\n",
        style="dim",
        highlight=False,
    )


def as_dict(outcome: Outcome, per_key: float, n_keys: int) -> dict[str, Any]:
    """An outcome for JSON."""
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
