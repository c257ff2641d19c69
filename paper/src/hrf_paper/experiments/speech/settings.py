"""Settings of the speech experiment; names of its stages, its sets of test utterances and its parts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

from hrf_paper.speech.attention import Plain
from hrf_paper.speech.configs import ModelConfig
from hrf_paper.speech.methods import METHODS
from hrf_paper.speech.training import SpeechTraining

__all__ = [
    "FULL",
    "JOINED",
    "LEVELS",
    "QUICK",
    "SCALED",
    "SIGNED",
    "SINGLE",
    "SINGLE_SET",
    "STAGES",
    "Settings",
    "judged",
    "key",
    "set_names",
    "turns_set",
]

SINGLE, JOINED = "trained on single utterances", "trained on turns"
LEVELS: tuple[str, ...] = get_args(Plain)  # exact, uniform and no attention, between which maps are expected
STAGES = ("swapped", "fine-tuned", "from scratch")
SINGLE_SET = "single"  # test utterances that are not joined
# Methods whose estimates have both signs: they are fine-tuned with queries and keys of `Settings.key_length`. Estimates
# of HRF-C with real matrices, "HRF-C real (3,3)", are positive.
SIGNED = tuple(name for name in METHODS if name.startswith(("HRF-C (", "HRF-A", "Trig")))


@dataclass(frozen=True)
class Settings:
    """Trainings, and what is measured after each.

    Attributes:
        training: of the model with exact attention on single utterances.
        joined_epochs: epochs on turns after ``training``.
        joined_learning_rate: their largest learning rate.
        joined_batch: their frames per batch.
        microphones: deviation of the response of microphones in turns.
        lengths: frames after subsampling to which test utterances are joined; the first is that of turns, too.
        runs: models with exact attention, each with its own seed.
        swapped_runs: the number of runs whose models are trained on turns, and into which all methods are swapped.
        draws: draws of every random map that is swapped in.
        tuned: methods with which the model of each run is fine-tuned on turns after the swap; ``None`` is all.
        tuned_runs: the number of runs in which it is.
        tuned_epochs: epochs of fine-tuning.
        tuned_learning_rate: their largest learning rate.
        scratch: methods with which a model is trained from scratch; ``None`` is all.
        scratch_runs: the number of runs in which it is.
        scratch_epochs: the epoch after which such a training stops; ``None`` is the last.
        fit_step: the step of such a training before which maps are fitted and take over.
        key_length: length of queries and keys in such a training, the same for all methods, and in fine-tuning with
            `SIGNED` methods. One is the paper's in its experiments with robots.
        train_utterances: number of training utterances; ``None`` is all.
        test_utterances: number of test utterances; ``None`` is all.
        seed: of the first run; the other runs follow.
    """

    training: SpeechTraining
    joined_epochs: int = 6
    joined_learning_rate: float = 1e-3
    joined_batch: int = 5_000
    microphones: float = 0.7
    lengths: tuple[int, ...] = (500, 2_000)
    runs: int = 3
    swapped_runs: int = 3
    draws: int = 3
    tuned: tuple[str, ...] | None = None
    tuned_runs: int = 3
    tuned_epochs: int = 2
    tuned_learning_rate: float = 3e-4
    scratch: tuple[str, ...] | None = None
    scratch_runs: int = 3
    scratch_epochs: int | None = None
    fit_step: int = 1_000
    key_length: float = 1.0
    train_utterances: int | None = None
    test_utterances: int | None = None
    seed: int = 0


def set_names(settings: Settings) -> tuple[str, ...]:
    """Return the names of the sets of test utterances: single ones, joined ones of a speaker, and turns."""
    return (SINGLE_SET, *map(_joined_set, settings.lengths), turns_set(settings))


def judged(settings: Settings) -> list[tuple[str, str]]:
    """Return the stages, and the sets of test utterances by which each is judged.

    That is turns, and for models from scratch, which have heard no microphones, single and joined utterances.
    """
    turns, joined = turns_set(settings), _joined_set(settings.lengths[0])
    sets = {"swapped": [turns], "fine-tuned": [turns], "from scratch": [SINGLE_SET, joined]}
    return [(stage, tested) for stage in STAGES for tested in sets[stage]]


def _joined_set(length: int) -> str:
    return f"joined, {length:,}"


def turns_set(settings: Settings) -> str:
    """Return the name of the set of turns."""
    return f"turns, {settings.lengths[0]:,}"


def key(stage: str, method: str, run: int) -> str:
    """Return the name of a part."""
    return f"{stage}, {method}, run {run}"


# All stages for all methods. The model has the size for a CPU: AN4 is too small for the paper's.
FULL = Settings(SpeechTraining(), tuned_epochs=5)
# All stages for all methods, too: one draw per model, an epoch of fine-tuning, and 12 of 44 epochs from scratch.
SCALED = replace(FULL, lengths=(500,), draws=1, tuned_epochs=1, scratch_epochs=12)
_TINY = ModelConfig(width=32, layers=1, heads=2, expansion=2, kernel=7, predictor_width=16, joint_width=32)
QUICK = Settings(
    SpeechTraining(_TINY, epochs=1, warmup=5, frames=1_000),
    joined_epochs=1,
    lengths=(100, 300),
    runs=1,
    swapped_runs=1,
    draws=2,
    tuned=("exact", "HRF-A (8,8)", "FAVOR+ 256", "Trig 256"),
    tuned_runs=1,
    tuned_epochs=1,
    scratch=("FAVOR+ 256",),
    scratch_runs=1,
    fit_step=1,
    train_utterances=40,
    test_utterances=8,
)
