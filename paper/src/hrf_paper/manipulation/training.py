"""Trainings that resume bit by bit, and the episodes of a pupil that correct its demonstrations."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

from hrf_paper.manipulation.cloning import Search, cloning_loss, mirrored, play
from hrf_paper.manipulation.demonstrations import (
    Demonstrations,
    DemonstrationSettings,
    Record,
    demonstrations,
    kept,
)
from hrf_paper.manipulation.performer import PerformerConfig, VisionPerformer
from hrf_paper.resume import checkpoint_path, load_checkpoint, restore_state, save_checkpoint, state_tensors

# Train a policy by implicit behaviour cloning; a training that is interrupted resumes bit for bit.
#
# A checkpoint has the weights and random features, the moments of the optimiser and the history. Batches and negatives
# depend on the seed and the number of the step alone.

_REPORT_EVERY = 100  # steps


class Diverged(ArithmeticError):
    """A loss, or its gradient, that is not a finite number.

    Args:
        step: the step in which it was found.
        method: the attention.
    """

    def __init__(self, step: int, method: str) -> None:
        super().__init__(
            f"the loss of step {step} or its gradient is not finite, with the attention {method}"
        )
        self.step, self.method = step, method


@dataclass(frozen=True)
class CloneTraining:
    """A policy and the way it is trained.

    Attributes:
        method: the attention, a key of `METHODS` or `DIVIDED`.
        model: sizes of the policy.
        data: the demonstrations.
        steps: number of steps.
        batch: examples per step, every second one mirrored.
        negatives: random actions per example and arm.
        near: share of them that resembles the demonstrated action; the paper's are uniform, 0.
        learning_rate: its largest value: it rises linearly in 50 steps and falls along a cosine to zero.
        weight_decay: of AdamW.
        clip: largest norm of a gradient.
        judge_every: steps between judgements, and between checkpoints.
        judged_episodes: episodes of a judgement, with seeds from 0 on.
        search: the search for actions in them.
        after: a training whose result this one starts from, with any attention.
        seed: of weights, maps, batches and negatives.
    """

    method: str = "exact"
    model: PerformerConfig = field(default_factory=PerformerConfig)
    data: DemonstrationSettings = field(default_factory=DemonstrationSettings)
    steps: int = 1_500
    batch: int = 32
    negatives: int = 64
    near: float = 0.75
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    clip: float = 1.0
    judge_every: int = 500
    judged_episodes: int = 8
    search: Search = field(default_factory=Search)
    after: CloneTraining | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.model.image_size != self.data.image_size:
            raise ValueError(
                f"the model has images of {self.model.image_size} pixels and the demonstrations "
                f"{self.data.image_size}; expected one size"
            )
        if self.steps % self.judge_every:
            raise ValueError(f"steps is {self.steps}; expected a multiple of judge_every, {self.judge_every}")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate is {self.learning_rate}; expected a positive number")


class CloneTrainer:
    """A policy in training, resumed from its last checkpoint if there is one.

    Args:
        training: the policy and its training.
        examples: the demonstrations of ``training.data``.
        report: called with a line of text now and then.

    Attributes:
        policy: the policy in its current state.
        history: one dictionary per judgement: step, mean loss since the last one, delivered share, CPU seconds.
        path: the path of the checkpoint.
    """

    def __init__(
        self,
        training: CloneTraining,
        examples: Demonstrations,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self.training, self._examples, self._report = training, examples, report
        self.path = checkpoint_path("sweeping", asdict(training))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(training.seed)
            maps = Generator().manual_seed(training.seed)
            self.policy = VisionPerformer(training.model, training.method, maps)
        self._standardise()
        self._optimizer = torch.optim.AdamW(
            self.policy.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay
        )
        self._step = 0
        self.history: list[dict[str, float]] = []
        if self.path.exists():
            self._load()
        elif training.after is not None:
            before = CloneTrainer(training.after, examples, report).trained()
            self.policy.load_state_dict(before.state_dict())

    def trained(self, until: int | None = None) -> VisionPerformer:
        """Train to the end, or up to a step at which a checkpoint is written, and return the policy.

        Raises:
            Diverged: if a loss is not a number.
        """
        training = self.training
        while self._step < (training.steps if until is None else until):
            start = time.process_time()
            losses = self._advance()
            judged = play(self.policy, range(training.judged_episodes), training.search)
            before = self.history[-1]["seconds"] if self.history else 0.0
            self.history.append(
                {
                    "step": self._step,
                    "loss": sum(losses) / len(losses),
                    "delivered": sum(judged.delivered) / len(judged.delivered),
                    "seconds": before + time.process_time() - start,
                }
            )
            self._save()
            self._tell()
        return self.policy.eval()

    def _advance(self) -> list[float]:
        """Take steps up to the next judgement; return the losses."""
        self.policy.train()
        losses = []
        for step in range(self._step, self._step + self.training.judge_every):
            losses.append(self._take_step(step))
            if self._report is not None and (step + 1) % _REPORT_EVERY == 0:
                recent = losses[-_REPORT_EVERY:]
                self._report(f"{self._name}, step {step + 1}: loss {sum(recent) / len(recent):.3f}")
        self._step += self.training.judge_every
        return losses

    def _take_step(self, step: int) -> float:
        training = self.training
        for group in self._optimizer.param_groups:
            rising, falling = min(1.0, (step + 1) / 50), (1 + math.cos(math.pi * step / training.steps)) / 2
            group["lr"] = training.learning_rate * rising * falling
        generator = Generator().manual_seed(1_000_003 * training.seed + step)
        loss = cloning_loss(
            self.policy,
            *self._batch(generator),
            count=training.negatives,
            near=training.near,
            generator=generator,
        )
        self._optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.policy.parameters(), training.clip)
        if not bool((loss + norm).isfinite()):
            raise Diverged(step, training.method)
        self._optimizer.step()
        return loss.item()

    def _batch(self, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
        examples, half = self._examples, self.training.batch // 2
        chosen = torch.randint(len(examples.poses), (self.training.batch,), generator=generator)
        whole = [part[chosen] for part in (examples.images, examples.poses, examples.actions)]
        reflected = mirrored(*(part[half:] for part in whole))
        pairs = zip(whole, reflected, strict=True)
        images, poses, actions = (torch.cat([part[:half], other]) for part, other in pairs)
        return images, poses, actions

    @torch.no_grad()
    def _standardise(self) -> None:
        """Take the mean image from the demonstrations, as they are and mirrored."""
        examples, policy = self._examples, self.policy
        images = examples.images[:: max(1, len(examples.images) // 500)].float().mean(0)
        policy.mean_image.copy_((images + images.flip(1)) / 2)

    @property
    def _name(self) -> str:
        return f"{self.training.method}, seed {self.training.seed}"

    def _tell(self) -> None:
        if self._report is not None:
            last = self.history[-1]
            self._report(
                f"{self._name}, step {self._step} of {self.training.steps}: loss {last['loss']:.3f}, delivered "
                f"{100 * last['delivered']:.1f} %, {last['seconds']:.0f} CPU seconds"
            )

    def _save(self) -> None:
        tensors = state_tensors(policy=self.policy, optimizer=self._optimizer)
        header = {"training": asdict(self.training), "step": self._step, "history": self.history}
        save_checkpoint(self.path, tensors, header)

    def _load(self) -> None:
        tensors, header = load_checkpoint(self.path)
        restore_state(tensors, policy=self.policy, optimizer=self._optimizer)
        self._step, self.history = header["step"], header["history"]


def save_policy(path: Path, policy: VisionPerformer, training: CloneTraining) -> None:
    """Write a policy with the way it was trained, without the state of the training."""
    save_checkpoint(path, policy.state_dict(), asdict(training))


def load_policy(path: Path) -> VisionPerformer:
    """Read the output of `save_policy`."""
    tensors, header = load_checkpoint(path)
    sizes: dict[str, Any] = header["model"]
    policy = VisionPerformer(PerformerConfig(**sizes), header["method"], Generator().manual_seed(0))
    policy.load_state_dict(tensors)
    return policy.eval()


# Episodes of a pupil with the teacher's answers (DAgger; Ross et al., 2011): places where only a pupil would be.
#
# A pupil with exact attention is trained for a while on all that is there, and plays; its scenes join the examples with
# the action that the teacher would have taken. All methods learn from the same examples.

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
