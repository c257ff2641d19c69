"""``hrf advise``: find the feature map for vectors in files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hrf.cli.errors import needs_extra, one_sentence

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["HELP", "advise"]

HELP = """Find the feature map to use for your queries and keys: a table, a figure, the fitted map and a page.

QUERIES and KEYS are .npy, .npz, .safetensors or .csv files with one vector per row; FILE:NAME is one of several
arrays in a file. The kernel is exp(scale · q·k): for attention over d dimensions, --scale is 1/√d. Without
files it runs on scikit-learn's wines: standardised, split in two, and scaled to norm 1.

Examples:

\b
hrf advise
hrf advise queries.npy keys.npy --scale 0.125
hrf advise a.safetensors:q a.safetensors:k --values a.safetensors:v
hrf advise x.csv y.csv --objective kernel --unit flops --out results/kernel
"""

_BUDGET = "Each map may cost as much as positive features of this width."
_OBJECTIVE = "Which error: output (with values), attention (without), or kernel."
_LENGTH = "Keys per sequence in use; a state larger than its keys and values is left out."
_OUT = "Directory for the figure, the map, the numbers and report.html."


def advise(
    queries: Annotated[str | None, typer.Argument(help="File with the queries.")] = None,
    keys: Annotated[str | None, typer.Argument(help="File with the keys.")] = None,
    values: Annotated[str | None, typer.Option(help="File with the values, one row per key.")] = None,
    budget: Annotated[int, typer.Option(help=_BUDGET)] = 256,
    unit: Annotated[str, typer.Option(help="Unit of cost: width, flops or time.")] = "width",
    objective: Annotated[str | None, typer.Option(help=_OBJECTIVE, show_default="by values")] = None,
    scale: Annotated[float, typer.Option(help="Factor of the logits.")] = 1.0,
    length: Annotated[int | None, typer.Option(help=_LENGTH, show_default="all keys")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    out: Annotated[Path, typer.Option(help=_OUT)] = Path("results"),
) -> None:
    """Print a table, save a figure, the best map and a page."""
    with needs_extra("cli"):
        from hrf import report
        from hrf.advice import advise as find_advice
        from hrf.advice.page import publish
    with one_sentence():
        q, k, v = _vectors(queries, keys, values, seed)
        folder = report.folder(out)
        with report.progress("maps") as advance:
            advice = find_advice(
                q,
                k,
                v,
                budget=budget,
                unit=unit,  # type: ignore[arg-type]  # other words are refused there
                objective=objective,  # type: ignore[arg-type]
                scale=scale,
                length=length,
                seed=seed,
                progress=advance,
            )
        publish(advice, folder)


def _vectors(
    queries: str | None, keys: str | None, values: str | None, seed: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Read the files; without any, return the built-in data."""
    from hrf import read_arrays

    if queries is None:
        if values is not None:
            raise ValueError("there are values without queries and keys; expected all three files")
        return (*read_arrays.wine(seed), None)
    if keys is None:
        raise ValueError(f"there are queries in {queries} but no keys; expected two files")
    v = None if values is None else read_arrays.read_array(values)
    return read_arrays.read_array(queries), read_arrays.read_array(keys), v
