"""Returns of walks and of rehearsed decisions, and trainings that resume bit by bit."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hrf_paper.locomotion.environment import LARGEST_SHIFT, SPEED, SWING_TIME, StepStones
from hrf_paper.locomotion.evolution import Evolution, Mapped, directions, start, updated
from hrf_paper.locomotion.legs import HIPS
from hrf_paper.locomotion.policy import ImplicitAttentionPolicy, PixelMoments, PolicyConfig
from hrf_paper.locomotion.terrain import StoneField, depth_images, draw_stones, off_stone
from hrf_paper.resume import checkpoint_path, load_checkpoint, save_checkpoint

# Returns of parameters: of walks in the simulation, and of rehearsed decisions without it.
#
# A rehearsal shows the cameras' images from poses of a trot over a field of stones, and judges each decision by where
# it would put the feet. It takes milliseconds where a walk takes a second, so that a training begins with it.

_MARGIN, _NEAR, _SHIFT_COST = 0.03, 0.05, 0.3
_DECISIONS = 32
# Of a trot over stones: mean and deviation of height and speed, deviations of roll and pitch and of y.
_HEIGHT, _SPEED, _TILT, _SIDEWAYS = (0.425, 0.004), (0.4, 0.1), 0.02, 0.03


class Walk(NamedTuple):
    """An episode of the environment.

    Attributes:
        score: its return.
        crossed: whether the robot reached the end of the field.
        seen: moments of the images.
    """

    score: float
    crossed: bool
    seen: PixelMoments


class Rehearsal(NamedTuple):
    """Situations of a trot.

    Attributes:
        depth: images ``(n, 2, 24, 32)``.
        footholds: Raibert's, ``(n, 2)``, from the middle of the trunk.
        x: of the trunk, ``(n,)``.
        stones: of the field, ``(stones, 2)``.
    """

    depth: Tensor
    footholds: Tensor
    x: NDArray[np.float64]
    stones: NDArray[np.float64]


def walk(
    environment: StepStones,
    policy: ImplicitAttentionPolicy,
    parameters: Tensor,
    moments: PixelMoments,
    seed: int,
) -> Walk:
    """Play an episode."""
    observation, _ = environment.reset(seed=seed)
    score, ended, images = 0.0, False, []
    while not ended:
        depth = torch.from_numpy(observation["depth"])
        images.append(depth)
        footholds = torch.from_numpy(observation["footholds"])
        action = policy.decide(parameters, moments.normalised(depth), footholds).action
        observation, reward, terminated, truncated, info = environment.step(action.numpy())
        score, ended = score + reward, terminated or truncated
    seen = PixelMoments().plus(torch.stack(images))
    return Walk(float(score), info["crossed"], seen)


def rehearsal(field: StoneField, seed: int) -> Rehearsal:
    """Draw a field, and poses of the trunk along it."""
    generator = np.random.default_rng(seed)
    stones = draw_stones(field, generator)
    x = generator.uniform(0, field.distance, _DECISIONS)
    sway = generator.standard_normal((_DECISIONS, 5))
    speed = _SPEED[0] + _SPEED[1] * sway[:, 0]
    ahead = speed * SWING_TIME + 0.5 * SPEED * SWING_TIME + 0.05 * (speed - SPEED)
    footholds = HIPS[[0, 3], 0] + ahead[:, None]
    images = [
        depth_images(
            np.array([place, _SIDEWAYS * row[1], _HEIGHT[0] + _HEIGHT[1] * row[2]]),
            _tilted(*(_TILT * row[3:])),
            stones,
            field.width,
        )
        for place, row in zip(x, sway, strict=True)
    ]
    return Rehearsal(
        torch.from_numpy(np.stack(images)), torch.tensor(footholds, dtype=torch.float32), x, stones
    )


def _tilted(roll: float, pitch: float) -> NDArray[np.float64]:
    """Return the rotation by roll, then pitch."""
    (a, b), (c, d) = (np.cos(roll), np.sin(roll)), (np.cos(pitch), np.sin(pitch))
    about_x = np.array([[1, 0, 0], [0, a, -b], [0, b, a]])
    about_y = np.array([[c, 0, d], [0, 1, 0], [-d, 0, c]])
    return about_y @ about_x


def rehearse(
    policy: ImplicitAttentionPolicy, parameters: Tensor, moments: PixelMoments, situations: Rehearsal
) -> float:
    """Return minus the mean cost of a decision: footholds within 3 cm of an edge or in a gap, and shifts."""
    action = policy.decide(parameters, moments.normalised(situations.depth), situations.footholds).action
    places = situations.x[:, None] + (situations.footholds + LARGEST_SHIFT * action).double().numpy()
    off = off_stone(situations.stones, places, _MARGIN)
    return -float(np.minimum(off / _NEAR, 1).mean() + _SHIFT_COST * (action**2).mean())


# Train a policy by evolution strategies; an interrupted training resumes bit for bit.
#
# The first iterations rehearse decisions without the simulation, the last ones walk. Both parameters of a pair meet the
# same terrain. A checkpoint has the parameters, the moments of Adam and of the pixels, and the history.

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
        self.path = checkpoint_path("locomotion", asdict(training))
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
