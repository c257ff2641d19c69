"""``hrf advise``: find the feature map for vectors in files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hrf.report import needs_extra, one_sentence

if TYPE_CHECKING:
    from hrf.advice import Advice
    from hrf.advice.advisor import Progress

__all__ = ["HELP", "advise"]

HELP = """Find the feature map to use for your queries and keys: a table, a figure, the fitted map and a page.

QUERIES and KEYS are .npy, .npz, .safetensors or .csv files with one vector per row, or one matrix per head
(heads, N, d); FILE:NAME is one of several arrays in a file.

The kernel is exp(scale · q·k): --scale is 1/√d for attention over d dimensions. The page also shows maps at a
half and a quarter of the budget.

Without files it runs on scikit-learn's wines: standardised, split in two, and scaled to norm 1.

Examples:

\b
hrf advise
hrf advise queries.npy keys.npy --scale 0.125 --open
hrf advise a.safetensors:q a.safetensors:k --values a.safetensors:v
hrf advise x.csv y.csv --objective kernel --unit flops --out results/kernel
hrf advise rows.csv --kernel rbf --gamma 0.1 --targets targets.csv

With --kernel rbf there is one file, of rows, and the maps are for kernel machines with exp(−gamma · ‖x − y‖²): ranked
by the error of the kernel, or by the error of ridge regression on held-out rows if there are targets.
"""

_BUDGET = "Each map may cost as much as positive features of this width."
_OBJECTIVE = "Which error: output (with values), attention (without), or kernel."
_LENGTH = "Keys per sequence in use; a state larger than its keys and values is left out."
_KERNEL = "softmax for queries and keys, rbf for rows of a kernel machine."
_GAMMA = "Factor of squared distances, for --kernel rbf."
_TARGETS = "File with targets, one row per row, for --kernel rbf."
_OPEN = "Open report.html in the browser."
_OUT = "Directory for the figure, the map, the numbers and report.html."


def advise(
    queries: Annotated[str | None, typer.Argument(help="File with the queries, or with rows.")] = None,
    keys: Annotated[str | None, typer.Argument(help="File with the keys.")] = None,
    values: Annotated[str | None, typer.Option(help="File with the values, one row per key.")] = None,
    budget: Annotated[int, typer.Option(help=_BUDGET)] = 256,
    unit: Annotated[str, typer.Option(help="Unit of cost: width, flops or time.")] = "width",
    objective: Annotated[str | None, typer.Option(help=_OBJECTIVE, show_default="by values")] = None,
    scale: Annotated[float, typer.Option(help="Factor of the logits.")] = 1.0,
    length: Annotated[int | None, typer.Option(help=_LENGTH, show_default="all keys")] = None,
    kernel: Annotated[str, typer.Option(help=_KERNEL)] = "softmax",
    gamma: Annotated[float | None, typer.Option(help=_GAMMA, show_default="1/(d · variance)")] = None,
    targets: Annotated[str | None, typer.Option(help=_TARGETS)] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    out: Annotated[Path, typer.Option(help=_OUT)] = Path("results"),
    show: Annotated[bool, typer.Option("--open", help=_OPEN)] = False,
) -> None:
    """Print a table, save a figure, the best map and a page."""
    with needs_extra("cli"):
        from hrf import report
        from hrf.advice.page import publish, publish_heads
    with one_sentence():
        for_attention: dict[str, object] = {
            "keys": keys,
            "--values": values,
            "--objective": objective,
            "--length": length,
        }
        for_attention |= {
            "--unit": None if unit == "width" else unit,
            "--scale": None if scale == 1 else scale,
        }
        if kernel == "rbf":
            _refuse(for_attention, "with --kernel rbf, which takes one file of rows")
            find = _for_rows(queries, targets, gamma, seed)
        elif kernel == "softmax":
            _refuse({"--gamma": gamma, "--targets": targets}, "without --kernel rbf")
            find = _for_attention(queries, keys, values, seed)
            find = partial(find, unit=unit, objective=objective, scale=scale, length=length)
        else:
            raise ValueError(f"kernel is {kernel!r}; expected softmax or rbf")
        folder = report.folder(out)
        with report.progress("maps") as advance:
            by_head, found = find(budget=budget, seed=seed, progress=advance)
        if by_head:
            publish_heads(found, folder)
        else:
            publish(found[0], folder, found[1:])
        if show:
            typer.launch(str(folder / "report.html"))


# Whether advice is by head; otherwise the first is for the budget, others for smaller ones.
Found = tuple[bool, "tuple[Advice, ...]"]
_SMALLER = (2, 4)  # parts of the budget that the page shows, too
_LEAST_BUDGET = 16


def _at_budgets(find: Callable[..., Advice], *, budget: int, progress: Progress, **options: Any) -> Found:
    """Advise at a budget and at smaller ones."""
    smaller = (budget // part for part in _SMALLER)
    budgets = [budget, *(size for size in smaller if size >= _LEAST_BUDGET)]

    def steps(place: int) -> Progress:
        return lambda name, done, all_: progress(
            name and f"{name}, budget {budgets[place]}", place * all_ + done, len(budgets) * all_
        )

    found = (find(budget=size, progress=steps(place), **options) for place, size in enumerate(budgets))
    return False, tuple(found)


def _refuse(options: dict[str, object], where: str) -> None:
    """Refuse options that have no meaning for the kernel."""
    if used := [name for name, value in options.items() if value is not None]:
        raise ValueError(f"{' and '.join(used)} cannot be used {where}")


def _for_attention(
    queries: str | None, keys: str | None, values: str | None, seed: int
) -> Callable[..., Found]:
    """Read the files, or take the built-in data; return the function that advises on them."""
    from torch import Tensor

    from hrf import advise_heads, read_arrays
    from hrf.advice import advise as find_advice

    if queries is None:
        if values is not None:
            raise ValueError("there are values without queries and keys; expected all three files")
        return partial(_at_budgets, partial(find_advice, *read_arrays.wine(seed), None))
    if keys is None:
        raise ValueError(f"there are queries in {queries} but no keys; expected two files")
    q, k, v = (name and read_arrays.read_array(name, heads=True) for name in (queries, keys, values))
    if any(isinstance(u, Tensor) and u.ndim == 3 for u in (q, k, v)):
        return lambda **options: (True, advise_heads(q, k, v, **options))
    return partial(_at_budgets, partial(find_advice, q, k, v))


def _for_rows(rows: str | None, targets: str | None, gamma: float | None, seed: int) -> Callable[..., Found]:
    """Do as `_for_attention`, for rows of a kernel machine; γ is 1/(d · variance) by default."""
    import torch

    from hrf import read_arrays
    from hrf.advice import advise_kernel

    if rows is None and targets is not None:
        raise ValueError("there are targets without rows; expected both files")
    x = torch.cat(read_arrays.wine(seed)) if rows is None else read_arrays.read_array(rows)
    y = None if targets is None else read_arrays.read_array(targets)
    if gamma is None:
        variance = float(x.var(correction=0))
        gamma = 1 / (x.shape[1] * variance) if variance > 0 else 1.0
    return partial(_at_budgets, partial(advise_kernel, x, y, gamma=gamma))
