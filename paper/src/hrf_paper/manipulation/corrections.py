"""Episodes of a pupil with the teacher's answers (DAgger; Ross et al., 2011): places where only a pupil would be.

A pupil with exact attention is trained for a while on all that is there, and plays; its scenes join the examples with
the action that the teacher would have taken. All methods learn from the same examples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace

import torch

from hrf_paper.manipulation.demonstrations import Demonstrations, Record, demonstrations, kept
from hrf_paper.manipulation.rollouts import play
from hrf_paper.manipulation.training import CloneTrainer, CloneTraining

__all__ = ["corrected_demonstrations"]

_FIRST_SEED = 2_000_000  # of a pupil's episodes: those that judge a policy have smaller seeds
_AT_ONCE = 24  # episodes that are simulated side by side


def corrected_demonstrations(
    training: CloneTraining, report: Callable[[str], None] | None = None
) -> Demonstrations:
    """Return the demonstrations of a training, with the rounds of corrections that its data ask for.

    Args:
        training: its data, and the sizes and the optimisation of the pupils.
        report: called with a line of text now and then.
    """
    data = training.data
    examples = demonstrations(replace(data, rounds=0), report)
    for turn in range(data.rounds):
        pupil = replace(
            training,
            method="exact",
            data=replace(data, rounds=turn),
            steps=data.pupil_steps,
            judge_every=data.pupil_steps,
            after=None,
            seed=data.seed + turn,
        )
        examples = _joined(examples, _played(pupil, examples, turn, report))
    return examples


def _played(
    pupil: CloneTraining, examples: Demonstrations, turn: int, report: Callable[[str], None] | None
) -> Demonstrations:
    """Read what a pupil's episodes show, or train it and let it play."""

    def make() -> Demonstrations:
        policy = CloneTrainer(pupil, examples, report).trained()
        record = Record(pupil.data.image_size)
        delivered: list[float] = []
        first, count = _FIRST_SEED + turn * pupil.data.pupil_episodes, pupil.data.pupil_episodes
        for start in range(first, first + count, _AT_ONCE):
            seeds = range(start, min(start + _AT_ONCE, first + count))
            delivered += play(
                policy, seeds, pupil.search, steps=pupil.data.steps, watch=record.watch
            ).delivered
        if report is not None:
            share = 100 * sum(delivered) / len(delivered)
            report(f"a pupil played {len(delivered)} episodes and delivered {share:.1f} %")
        return record.examples(delivered)

    return kept("corrections", asdict(pupil), make)


def _joined(first: Demonstrations, second: Demonstrations) -> Demonstrations:
    other = vars(second)
    return Demonstrations(**{name: torch.cat([part, other[name]]) for name, part in vars(first).items()})
