"""Train a policy by evolution strategies; an interrupted training resumes bit for bit.

The first iterations rehearse decisions without the simulation, the last ones walk. Both parameters of a pair meet the
same terrain. A checkpoint has the parameters, the moments of Adam and of the pixels, and the history.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hrf_paper.locomotion.environment import StepStones
from hrf_paper.locomotion.episodes import Walk, rehearsal, rehearse, walk
from hrf_paper.locomotion.evolution import Evolution, directions, start, updated
from hrf_paper.locomotion.normalisation import PixelMoments
from hrf_paper.locomotion.policy import ImplicitAttentionPolicy, PolicyConfig
from hrf_paper.locomotion.terrain import StoneField
from hrf_paper.locomotion.workers import Mapped
from hrf_paper.resume import checkpoint_folder, load_checkpoint, save_checkpoint

__all__ = ["LocomotionTrainer", "LocomotionTraining", "TrainedPolicy", "load_policy", "walks"]

_FIRST_SEED = 10_000_000  # of terrains to train on; seeds below are for tests
_SAVE_EVERY = 5  # iterations


@dataclass(frozen=True)
class LocomotionTraining:
    """A policy and the way it is trained.

    Attributes:
        policy: sizes and method of the policy; its seed is the training's.
        rehearsals: iterations without the simulation.
        walks: iterations of walks after them.
        rehearsal_pairs: antithetic pairs per iteration of the former.
        walk_pairs: antithetic pairs per iteration of the latter.
        walk_distance: metres of a walk.
        deviation: σ of the noise on the parameters.
        learning_rate: of Adam; it falls linearly to a tenth of it.
        judge_every: iterations between walks over `judged_fields` unseen fields; the last iteration is judged, too.
        judged_fields: their number.
    """

    policy: PolicyConfig = field(default_factory=PolicyConfig)
    rehearsals: int = 60
    walks: int = 4
    rehearsal_pairs: int = 12
    walk_pairs: int = 6
    walk_distance: float = 2.0
    deviation: float = 0.05
    learning_rate: float = 0.05
    judge_every: int = 15
    judged_fields: int = 4

    def __post_init__(self) -> None:
        if self.rehearsals < 0 or self.walks < 0 or self.iterations == 0:
            raise ValueError(
                f"rehearsals is {self.rehearsals} and walks is {self.walks}; expected at least one iteration"
            )
        if min(self.rehearsal_pairs, self.walk_pairs, self.judge_every, self.judged_fields) < 1:
            raise ValueError("pairs, judge_every and judged_fields have to be at least 1")
        if not (self.deviation > 0 and self.learning_rate > 0):
            raise ValueError(
                f"deviation is {self.deviation} and learning_rate is {self.learning_rate}; expected positive numbers"
            )

    @property
    def iterations(self) -> int:
        """The number of all iterations."""
        return self.rehearsals + self.walks


class PairTask(NamedTuple):
    """A pair θ ± σε to be judged on one terrain; ``distance`` is None for a rehearsal."""

    policy: PolicyConfig
    parameters: Tensor
    step: Tensor
    moments: PixelMoments
    distance: float | None
    seed: int


class WalkTask(NamedTuple):
    """Parameters to walk over an unseen field."""

    policy: PolicyConfig
    parameters: Tensor
    moments: PixelMoments
    seed: int


@lru_cache(maxsize=4)
def _policy(config: PolicyConfig) -> ImplicitAttentionPolicy:
    return ImplicitAttentionPolicy(config)


@lru_cache(maxsize=2)
def _environment(distance: float) -> StepStones:
    return StepStones(StoneField(distance=distance), most_decisions=round(20 * distance))


def judge_pair(task: PairTask) -> tuple[float, float, PixelMoments]:
    """Return the returns of θ + σε and θ − σε, and the moments of the images that the former saw."""
    policy = _policy(task.policy)
    plus, minus = task.parameters + task.step, task.parameters - task.step
    if task.distance is None:
        situations = rehearsal(StoneField(), task.seed)
        seen = PixelMoments().plus(situations.depth)
        moments = task.moments if task.moments.count else seen
        returns = [rehearse(policy, p, moments, situations) for p in (plus, minus)]
        return returns[0], returns[1], seen
    environment = _environment(task.distance)
    up, down = (walk(environment, policy, p, task.moments, task.seed) for p in (plus, minus))
    return up.score, down.score, up.seen


def judge_walk(task: WalkTask) -> Walk:
    """Walk over the paper's field."""
    return walk(
        _environment(StoneField().distance), _policy(task.policy), task.parameters, task.moments, task.seed
    )


class TrainedPolicy(NamedTuple):
    """A policy that is ready to walk.

    Attributes:
        config: its sizes and method.
        parameters: its parameters.
        moments: of the pixels, for the normalisation of images.
    """

    config: PolicyConfig
    parameters: Tensor
    moments: PixelMoments


def walks(trained: TrainedPolicy, seeds: range, mapped: Mapped = map) -> list[Walk]:
    """Walk over the fields of these seeds."""
    return list(mapped(judge_walk, [WalkTask(*trained, seed) for seed in seeds]))


class LocomotionTrainer:
    """A policy in training, resumed from its last checkpoint if there is one.

    Args:
        training: the policy and its training.
        mapped: where pairs are judged, see `workers`.
        report: called with a line of text whenever the policy is judged.

    Attributes:
        path: the path of its checkpoint.
        history: one dictionary per judgement on unseen fields: iteration, mean return, share of crossed fields,
            CPU seconds of training so far in this process.
    """

    def __init__(
        self,
        training: LocomotionTraining,
        mapped: Mapped = map,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self.training, self._mapped, self._report = training, mapped, report
        text = json.dumps(asdict(training), sort_keys=True)
        self.path = checkpoint_folder() / f"locomotion-{sha256(text.encode()).hexdigest()[:16]}.safetensors"
        self._state = start(_policy(training.policy).first_parameters())
        self._moments = PixelMoments()
        self.history: list[dict[str, float]] = []
        self._seconds = 0.0
        if self.path.exists():
            self._load()

    @property
    def result(self) -> TrainedPolicy:
        """The policy in its current state."""
        return TrainedPolicy(self.training.policy, self._state.parameters, self._moments)

    def trained(self) -> TrainedPolicy:
        """Run all iterations that are missing, and return the policy."""
        while self._state.iteration < self.training.iterations:
            begin = time.process_time()
            self._iterate()
            self._seconds += time.process_time() - begin
            done, last = self._state.iteration, self.training.iterations
            if done == 1 or done % self.training.judge_every == 0 or done == last:
                self._judge()
            if done % _SAVE_EVERY == 0 or done == last:
                self._save()
        return self.result

    def _iterate(self) -> None:
        """Judge all pairs, and update parameters and moments."""
        t, state, config = self.training, self._state, self.training.policy
        rehearsed = state.iteration < t.rehearsals
        n_pairs = t.rehearsal_pairs if rehearsed else t.walk_pairs
        noise = directions(n_pairs, len(state.parameters), seed=config.seed, iteration=state.iteration)
        first = _FIRST_SEED * (config.seed + 1) + max(t.rehearsal_pairs, t.walk_pairs) * state.iteration
        distance = None if rehearsed else t.walk_distance
        tasks = [
            PairTask(config, state.parameters, t.deviation * row, self._moments, distance, first + i)
            for i, row in enumerate(noise)
        ]
        judged = list(self._mapped(judge_pair, tasks))
        for _, _, seen in judged:
            self._moments = self._moments.merged(seen)
        returns = torch.tensor([pair[:2] for pair in judged], dtype=torch.float64).T
        rate = t.learning_rate * (1 - 0.9 * state.iteration / t.iterations)
        self._state = updated(state, noise, returns, deviation=t.deviation, learning_rate=rate)

    def _judge(self) -> None:
        found = walks(self.result, range(self.training.judged_fields), self._mapped)
        entry = {
            "iteration": self._state.iteration,
            "return": statistics.fmean(w.score for w in found),
            "crossed": statistics.fmean(w.crossed for w in found),
            "seconds": self._seconds,
        }
        self.history.append(entry)
        if self._report is not None:
            self._report(
                f"iteration {self._state.iteration} of {self.training.iterations}: return {entry['return']:.2f}, "
                f"{entry['crossed']:.0%} of {len(found)} fields crossed, {self._seconds:.0f} CPU seconds"
            )

    def _save(self) -> None:
        header = {
            "training": asdict(self.training),
            "iteration": self._state.iteration,
            "count": self._moments.count,
            "history": self.history,
            "seconds": self._seconds,
        }
        state, moments = self._state, self._moments
        tensors = {"parameters": state.parameters, "mean": state.mean, "square": state.square}
        save_checkpoint(self.path, tensors | {"pixels": moments.total, "squares": moments.squares}, header)

    def _load(self) -> None:
        tensors, header = load_checkpoint(self.path)
        self._state = Evolution(
            tensors["parameters"], tensors["mean"], tensors["square"], header["iteration"]
        )
        self._moments = _moments(tensors, header)
        self.history, self._seconds = header["history"], header["seconds"]


def load_policy(path: Path) -> TrainedPolicy:
    """Read the policy of a checkpoint."""
    tensors, header = load_checkpoint(path)
    config = dict(header["training"]["policy"])
    config["patch"] = tuple(config["patch"])
    return TrainedPolicy(PolicyConfig(**config), tensors["parameters"], _moments(tensors, header))


def _moments(tensors: dict[str, Tensor], header: dict[str, Any]) -> PixelMoments:
    return PixelMoments(header["count"], tensors["pixels"], tensors["squares"])
