"""Train a policy per method and run, walk over unseen stones, and keep what one of them looks at."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hrf_paper.experiments.experiment import Part
from hrf_paper.experiments.locomotion.printed import RUNS
from hrf_paper.requirements import require

if TYPE_CHECKING:
    from hrf_paper.locomotion.training import TrainedPolicy

__all__ = ["FRAMES", "FULL", "HYBRID", "QUICK", "SCALED", "Settings", "TrainingSizes", "key", "parts"]

HYBRID = "HRF-A (8,8)"
METHODS = ("exact", "FAVOR+ 256", "FAVOR+ small", HYBRID, "Trig small", "uniform", "blind")
FRAMES = f"frames, {HYBRID}"
_FIRST_FIELD = 1_000  # seeds of the unseen fields
_FRAMES = 6


@dataclass(frozen=True)
class TrainingSizes:
    """Iterations of a training; the other sizes are those of `hrf_paper.locomotion.LocomotionTraining`.

    Attributes:
        rehearsals: iterations without the simulation.
        walks: iterations of walks after them.
        rehearsal_pairs: antithetic pairs per iteration of the former.
        walk_pairs: antithetic pairs per iteration of the latter.
        walk_distance: metres of a walk.
        judge_every: iterations between points of a curve.
        judged_fields: fields per point.
    """

    rehearsals: int = 40
    walks: int = 3
    rehearsal_pairs: int = 12
    walk_pairs: int = 4
    walk_distance: float = 2.0
    judge_every: int = 10
    judged_fields: int = 3


@dataclass(frozen=True)
class Settings:
    """Trainings, and the fields to walk after them.

    Attributes:
        training: sizes of every training.
        methods: the rows.
        runs: trainings per method, each with its own seed.
        fields: unseen fields of 4 m that every trained policy walks over.
        seed: of the first run; the other runs follow.
    """

    training: TrainingSizes = field(default_factory=TrainingSizes)
    methods: tuple[str, ...] = METHODS
    runs: int = 3
    fields: int = 16
    seed: int = 0


def key(method: str, run: int) -> str:
    """Return the name of a part."""
    return f"{method}, run {run}"


def parts(settings: Settings) -> dict[str, Part]:
    """Return one training per method and run, and the frames of the first hybrid."""
    require("the experiment locomotion", ("gymnasium", "numba", "pybullet"))
    work: dict[str, Part] = {
        key(method, run): partial(_trained, settings, method, run)
        for run in range(settings.runs)
        for method in settings.methods
    }
    return work | {FRAMES: partial(_frames, settings)}


def _trained(settings: Settings, method: str, run: int) -> dict[str, Any]:
    """Train, walk over unseen fields, and count FLOPs; a training that is not finite says so."""
    from hrf_paper.locomotion.policy import ImplicitAttentionPolicy
    from hrf_paper.locomotion.training import walks

    trainer = _trainer(settings, method, run)
    policy = ImplicitAttentionPolicy(trainer.training.policy)
    counted = {"flops": policy.flops(), "ranking_flops": policy.ranking_flops()}
    try:
        trained = trainer.trained()
        found = walks(trained, range(_FIRST_FIELD, _FIRST_FIELD + settings.fields))
    except FloatingPointError as error:
        return counted | {"diverged": str(error), "curve": _curve(trainer.history)}
    return counted | {
        "diverged": "",
        "curve": _curve(trainer.history),
        "returns": [walk.score for walk in found],
        "crossed": [walk.crossed for walk in found],
        "timings": {"training CPU seconds": trainer.history[-1]["seconds"]},
    }


def _curve(history: list[dict[str, float]]) -> list[list[float]]:
    """Return iteration and return of each point."""
    return [[entry["iteration"], entry["return"]] for entry in history]


def _trainer(settings: Settings, method: str, run: int) -> Any:
    from hrf_paper.locomotion.policy import PolicyConfig
    from hrf_paper.locomotion.training import LocomotionTrainer, LocomotionTraining

    config = PolicyConfig(method=method, seed=settings.seed + run)
    report = partial(print, f"{key(method, run)}:", flush=True)
    return LocomotionTrainer(LocomotionTraining(config, **vars(settings.training)), report=report)


def _frames(settings: Settings) -> dict[str, Any]:
    """Return images of an episode with the patches that were kept, evenly over its decisions."""
    from hrf_paper.locomotion.replay import looks

    trained: TrainedPolicy = _trainer(settings, HYBRID, 0).trained()
    seen = looks(trained, _FIRST_FIELD)
    chosen = np.linspace(0, len(seen) - 1, _FRAMES + 2).astype(int)[1:-1]
    return {
        "frames": [
            {
                "x": seen[i].x,
                "depth": base64.b64encode((255 * seen[i].depth).astype(np.uint8).tobytes()).decode(),
                "kept": base64.b64encode(np.packbits(seen[i].kept).tobytes()).decode(),
            }
            for i in chosen
        ],
        "shape": list(seen[0].depth.shape),
    }


# The paper's five runs.
FULL = Settings(
    TrainingSizes(rehearsals=200, walks=100, walk_pairs=16, walk_distance=4.0), runs=RUNS, fields=100
)
SCALED = Settings()
QUICK = replace(
    SCALED,
    training=TrainingSizes(
        rehearsals=2,
        walks=1,
        rehearsal_pairs=2,
        walk_pairs=1,
        walk_distance=1.0,
        judge_every=2,
        judged_fields=1,
    ),
    methods=("exact", "FAVOR+ 256", HYBRID, "blind"),
    runs=1,
    fields=2,
)
