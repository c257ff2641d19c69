"""Policies with any attention, cloned from the same demonstrations: what they deliver, and what a decision costs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from torch import Generator

from hrf_paper.experiments.experiment import Part
from hrf_paper.experiments.sweeping.printed import IMAGE_SIZE, LEARNING_RATES
from hrf_paper.manipulation.attention import DIVIDED, METHODS
from hrf_paper.manipulation.corrections import corrected_demonstrations
from hrf_paper.manipulation.demonstrations import Demonstrations, DemonstrationSettings
from hrf_paper.manipulation.performer import PerformerConfig, VisionPerformer
from hrf_paper.manipulation.rollouts import Search, play
from hrf_paper.manipulation.training import CloneTrainer, CloneTraining, Diverged

__all__ = ["FULL", "QUICK", "SCALED", "SCRATCH", "Settings", "key", "parts"]

SCRATCH = ("exact", "blind")  # methods that are always trained from scratch
_FIRST_SEED = 1_000  # of the episodes that judge a policy: neither demonstrations nor curves have them
# The paper's image with patches of about the same share of the scene's detail.
_PAPER_IMAGE = {"image_size": IMAGE_SIZE, "patch": 20}


@dataclass(frozen=True)
class Settings:
    """Trainings, and how policies are judged.

    Attributes:
        training: of every policy; methods, learning rates and seeds take turns.
        tuned_steps: if positive, only exact attention and the blind policy are trained from scratch, and the other
            methods take the place of exact attention in its trained policy and are trained so many steps more.
        tuned_learning_rate: of these steps.
        methods: attention methods, keys of `METHODS`.
        learning_rates: one training per learning rate and run.
        runs: trainings per method and learning rate, each with its own seed.
        episodes: unseen episodes per policy.
        divided: settings of regular features without a rule for denominators, keys of `DIVIDED`.
        divided_steps: steps of their trainings, one each.
        seed: of the first run; the other runs follow.
    """

    training: CloneTraining = field(default_factory=CloneTraining)
    tuned_steps: int = 0
    tuned_learning_rate: float = 1e-3
    methods: tuple[str, ...] = tuple(METHODS)
    learning_rates: tuple[float, ...] = (1e-3,)
    runs: int = 3
    episodes: int = 24
    divided: tuple[str, ...] = tuple(DIVIDED)
    divided_steps: int = 100
    seed: int = 0


def key(method: str, run: int, learning_rate: float) -> str:
    """Return the name of a part."""
    return f"{method}, run {run}, learning rate {learning_rate:g}"


def parts(settings: Settings) -> dict[str, Part]:
    """Return one part per policy, and one per setting of regular features that is divided as is."""
    work = _Work(settings)
    found: dict[str, Part] = {}
    for run in range(settings.runs):
        for rate in settings.learning_rates:
            for method in settings.methods:
                found[key(method, run, rate)] = partial(work.trained, work.training(method, run, rate))
    for method in settings.divided:
        training = replace(
            work.training(method, 0, settings.learning_rates[0]),
            steps=settings.divided_steps,
            judge_every=settings.divided_steps,
            judged_episodes=1,
        )
        found[method] = partial(work.divided, training)
    return found


class _Work:
    """All trainings of a run; demonstrations are made once."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._examples: Demonstrations | None = None

    def training(self, method: str, run: int, learning_rate: float) -> CloneTraining:
        """Return the training of a part, from scratch or after a swap."""
        settings = self.settings
        seed = settings.seed + run
        scratch = replace(settings.training, method=method, learning_rate=learning_rate, seed=seed)
        if not settings.tuned_steps or method in (*SCRATCH, *DIVIDED):
            return scratch
        return replace(
            scratch,
            steps=settings.tuned_steps,
            judge_every=settings.tuned_steps,
            learning_rate=settings.tuned_learning_rate,
            after=replace(scratch, method="exact"),
        )

    def trained(self, training: CloneTraining) -> dict[str, Any]:
        """Train a policy and judge it on unseen episodes."""
        trainer = CloneTrainer(training, self._demonstrations(), _say)
        diverged = _run(trainer)
        tried = training.search.samples * training.search.rounds
        flops = {"ours": trainer.policy.flops(tried)} | {"paper's image": _large(training).flops(tried)}
        found = {
            "curve": [{name: e[name] for name in ("step", "loss", "delivered")} for e in trainer.history],
            "diverged": diverged,
            "flops": {name: asdict(count) for name, count in flops.items()},
            "timings": {"training CPU seconds": trainer.history[-1]["seconds"] if trainer.history else 0.0},
        }
        if diverged is not None:
            return found | {"delivered": [0.0], "lost": [0.0], "rewards": [0.0]}
        seeds = range(_FIRST_SEED, _FIRST_SEED + self.settings.episodes)
        judged = play(trainer.policy, seeds, training.search)
        return found | {"delivered": judged.delivered, "lost": judged.lost, "rewards": judged.rewards}

    def divided(self, training: CloneTraining) -> dict[str, Any]:
        """Train a while with sums that are divided as they are, and say whether the loss stays a number."""
        trainer = CloneTrainer(training, self._demonstrations(), _say)
        diverged = _run(trainer)
        loss = trainer.history[-1]["loss"] if trainer.history else None
        return {"diverged": diverged, "loss": loss}

    def _demonstrations(self) -> Demonstrations:
        if self._examples is None:
            self._examples = corrected_demonstrations(self.settings.training, _say)
        return self._examples


def _run(trainer: CloneTrainer) -> int | None:
    """Train to the end; return the step in which the loss was no number, ``None`` if it always was."""
    try:
        trainer.trained()
    except Diverged as stop:
        return stop.step
    return None


def _large(training: CloneTraining) -> VisionPerformer:
    """Return an untrained policy for the paper's image, to count FLOPs."""
    return VisionPerformer(
        replace(training.model, **_PAPER_IMAGE), training.method, Generator().manual_seed(0)
    )


def _say(line: str) -> None:
    print(line, flush=True)


_SMALL = PerformerConfig(width=64, heads=2, layers=2, hidden=128)
# The paper's learning rates, five runs, and a deeper policy: about a day on a core.
FULL = Settings(
    CloneTraining(
        model=PerformerConfig(),
        data=DemonstrationSettings(
            episodes=500, glimpses=100_000, rounds=3, pupil_steps=2_000, pupil_episodes=500
        ),
        steps=10_000,
        batch=64,
        judge_every=1_000,
    ),
    learning_rates=LEARNING_RATES,
    runs=5,
    episodes=100,
    divided_steps=1_000,
)
# Three runs at one learning rate, larger than the paper's since steps are few: half an hour on a core.
SCALED = Settings(
    CloneTraining(
        model=_SMALL,
        data=DemonstrationSettings(glimpses=48_000, rounds=2, pupil_steps=800, pupil_episodes=144),
        steps=4_000,
        judge_every=2_000,
        learning_rate=3e-3,
    ),
    tuned_steps=100,
    learning_rates=(3e-3,),
    episodes=24,
    divided_steps=20,
)
QUICK = Settings(
    CloneTraining(
        model=PerformerConfig(width=16, heads=1, layers=1, hidden=16, values=2, code=16),
        data=DemonstrationSettings(
            episodes=4, glimpses=50, steps=12, rounds=1, pupil_steps=2, pupil_episodes=2
        ),
        steps=4,
        batch=8,
        negatives=16,
        judge_every=2,
        judged_episodes=1,
        search=Search(16, 2),
    ),
    runs=1,
    episodes=2,
    divided=("Trig 8, divided as is",),
    divided_steps=2,
)
