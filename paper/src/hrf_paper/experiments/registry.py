"""All experiments by name, in the order of the paper; the package's docstring says what the file of a new one holds."""

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
    sampled_softmax,
    softmax_metrics,
    speech,
    sweeping,
    uci,
)
from hrf_paper.experiments.experiment import Experiment

EXPERIMENTS: dict[str, Experiment[Any]] = {
    experiment.name: experiment
    for experiment in (
        angles.EXPERIMENT,
        mse_surface.EXPERIMENT,
        lambda_estimates.EXPERIMENT,
        max_relative_error.EXPERIMENT,
        pointwise.EXPERIMENT,
        uci.EXPERIMENT,
        clustering.EXPERIMENT,
        cost.EXPERIMENT,
        softmax_metrics.PENN_TREEBANK,
        softmax_metrics.WIKITEXT2,
        sampled_softmax.EXPERIMENT,
        speech.EXPERIMENT,
        locomotion.EXPERIMENT,
        sweeping.EXPERIMENT,
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
