"""``hrf reproduce``, a command that this package adds to `hrf`: run the paper's experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hrf.report import one_sentence

_FULL = "The paper's sizes, even where a CPU takes days."


def reproduce(
    names: Annotated[list[str] | None, typer.Argument(help="Which experiments, or all.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small settings, seconds each.")] = False,
    full: Annotated[bool, typer.Option("--full", help=_FULL)] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    out: Annotated[Path, typer.Option(help="Directory for numbers, figures and pages.")] = Path("results"),
    show_list: Annotated[bool, typer.Option("--list", help="Print all experiments and stop.")] = False,
) -> None:
    """Reproduce the paper's figures and tables: our numbers beside the printed ones, with a verdict.

    NAMES are experiments (see --list), or all. Each writes NAME.json, NAME.png and NAME.html; index.html collects the
    verdicts. An interrupted run resumes with the parts that are missing, and training from its last checkpoint in
    $HRF_CHECKPOINTS or ~/.cache/hrf/checkpoints. Language models are trained at the scale of a CPU, and with --full at
    the paper's.

    Examples:

    \b
    hrf reproduce --list
    hrf reproduce angles
    hrf reproduce all --quick
    hrf reproduce pointwise clustering --out docs/results
    """  # noqa: D301, D412 (the character \\b keeps lines apart)
    from hrf_paper import runner  # experiments take seconds to import, which `hrf --help` need not wait for
    from hrf_paper.experiments.registry import EXPERIMENTS, chosen
    from hrf_paper.report import listing

    with one_sentence():
        if show_list:
            listing(EXPERIMENTS.values())
            return
        runner.reproduce(chosen(names or []), quick=quick, full=full, seed=seed, out=out)
