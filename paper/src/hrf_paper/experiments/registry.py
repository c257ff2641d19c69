"""All experiments by name, in the order of the paper; the package's docstring lists the files of a new one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hrf_paper.experiments import (
    angles,
    clustering,
    cost,
    lambda_estimates,
    locomotion,
    max_relative_error,
    mse_surface,
    pointwise,
    ptb_metrics,
    sampled_softmax,
    speech,
    sweeping,
    uci,
    wikitext2_metrics,
)
from hrf_paper.experiments.experiment import Experiment

__all__ = ["EXPERIMENTS", "chosen"]

EXPERIMENTS: dict[str, Experiment[Any]] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        angles,
        mse_surface,
        lambda_estimates,
        max_relative_error,
        pointwise,
        uci,
        clustering,
        cost,
        ptb_metrics,
        wikitext2_metrics,
        sampled_softmax,
        speech,
        locomotion,
        sweeping,
    )
}


def chosen(names: Sequence[str]) -> list[Experiment[Any]]:
    """Return the experiments of these names, each once; ``all`` stands for all of them."""
    known = ", ".join(EXPERIMENTS)
    if not names:
        raise ValueError(f"no experiment is named; expected all, or some of {known}")
    if unknown := [name for name in names if name not in (*EXPERIMENTS, "all")]:
        raise ValueError(f"there is no experiment {unknown[0]!r}; expected all, or some of {known}")
    return [e for name, e in EXPERIMENTS.items() if name in names or "all" in names]
