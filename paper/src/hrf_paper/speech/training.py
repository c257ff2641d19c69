"""Trainings that resume bit by bit, and trained models with their feature maps in checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor, nn

import hrf
from hrf_paper.resume import checkpoint_path, load_checkpoint, restore_state, save_checkpoint, state_tensors
from hrf_paper.speech.conformer import ModelConfig
from hrf_paper.speech.decoding import error_rates, recognised
from hrf_paper.speech.methods import install
from hrf_paper.speech.transducer import CTC_WEIGHT, ConformerTransducer
from hrf_paper.speech.utterances import (
    Augmentation,
    Speech,
    SpeechBatch,
    joined_at_random,
    through_microphones,
    training_batches,
)

# Flush denormal numbers to zero for a while: arithmetic with them is slow.


def flushes_denormals() -> bool:
    """Return whether torch, in this thread, takes denormal numbers for zero."""
    # PyTorch has a setter alone.
    return float(torch.tensor(1e-40) * 1) == 0


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Flush denormal numbers to zero within the block, and restore the setting of the thread after it."""
    before = flushes_denormals()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


# Feature maps of a model inside its checkpoint: the bytes of one file per layer, as a tensor.


def stored_maps(model: ConformerTransducer) -> dict[str, Tensor]:
    """Return the feature map of each layer as bytes, by the name of the layer."""
    found = {}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "map.safetensors"
        for layer, attention in enumerate(model.attentions):
            if isinstance(attention.method, hrf.FeatureMap):
                attention.method.save(path)
                found[_name(layer)] = torch.from_numpy(np.frombuffer(path.read_bytes(), np.uint8).copy())
    return found


def restore_maps(model: ConformerTransducer, tensors: dict[str, Tensor]) -> bool:
    """Give each layer the map that `stored_maps` returned; return whether there are any."""
    if _name(0) not in tensors:
        return False
    with TemporaryDirectory() as folder:
        path = Path(folder) / "map.safetensors"
        for layer, attention in enumerate(model.attentions):
            path.write_bytes(tensors[_name(layer)].numpy().tobytes())
            attention.use(hrf.load(path))
    return True


def _name(layer: int) -> str:
    return f"map.{layer}"


# A trained model, read from the checkpoint of its training.


class TrainedModel(NamedTuple):
    """A model from a checkpoint.

    Attributes:
        model: the model, ready to recognise, with the feature maps it was trained with, or exact attention.
        front_end: where the features come from that it was trained with (`Speech`).
    """

    model: ConformerTransducer
    front_end: str


def load_model(path: Path) -> TrainedModel:
    """Read the model of a checkpoint."""
    tensors, header = load_checkpoint(path)
    sizes: dict[str, Any] = header["training"]["model"]
    model = ConformerTransducer(ModelConfig(**sizes))
    restore_state(tensors, model=model)
    restore_maps(model, tensors)
    return TrainedModel(model.eval(), header["front_end"])


# Train a recogniser in epochs that can be interrupted: a resumed training is bit for bit the same.
#
# A checkpoint has the averaged weights, the weights, the moments of the optimiser, the state of the generator behind
# dropout, and the fitted maps. Variations and order of the utterances depend on the seed and the number of the epoch
# alone.

_JUDGE_EVERY = 5  # epochs


@dataclass(frozen=True)
class SpeechTraining:
    """A model and the way it is trained.

    Attributes:
        model: sizes of the model.
        epochs: number of epochs.
        last_epoch: the epoch to stop after, before the learning rate is zero; ``None`` is the last of ``epochs``.
        learning_rate: its largest value: it rises linearly and falls along a cosine to zero after all epochs.
        warmup: steps in which it rises.
        frames: frames of a batch.
        ctc_weight: weight of the CTC loss beside the transducer's.
        weight_decay: of AdamW.
        clip: largest norm of a gradient.
        averaging: the share of the past in the running average of the weights, which is the model that is judged and
            kept; it rises to that number in the first steps.
        augmentation: variations of the utterances.
        joined_frames: utterances of a speaker are joined, anew in each epoch, up to about that many frames; 0 is never.
        microphones: deviation of the response of microphones. Above zero, whoever speaks is joined, and each utterance
            comes through a microphone of its own (`through_microphones`).
        method: the attention's method, a key of `METHODS`.
        fit_step: the step before which the method takes the place of exact attention; maps are fitted to the model of
            that step and frozen. Whole epochs before it are trained once for all methods.
        after: a training whose result this one starts from.
        seed: of weights, order, variations and maps.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    epochs: int = 44
    last_epoch: int | None = None
    learning_rate: float = 2e-3
    warmup: int = 300
    frames: int = 2_500
    ctc_weight: float = CTC_WEIGHT
    weight_decay: float = 1e-2
    clip: float = 1.0
    averaging: float = 0.998
    augmentation: Augmentation = field(default_factory=Augmentation)
    joined_frames: int = 0
    microphones: float = 0.0
    method: str = "exact"
    fit_step: int = 0
    after: SpeechTraining | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.fit_step < 0:
            raise ValueError(f"fit_step is {self.fit_step}; expected at least 0")


class SpeechTrainer:
    """A model in training, resumed from its last checkpoint if there is one.

    Args:
        training: the model and its training.
        speech: utterances.
        report: called with a line of text after each epoch.

    Attributes:
        model: the model with averaged weights, in its current state.
        path: the path of its checkpoint.
        history: one dictionary per finished epoch: loss per label, CPU seconds so far, and word error rate of the test
            utterances, in some epochs.
    """

    def __init__(
        self, training: SpeechTraining, speech: Speech, report: Callable[[str], None] | None = None
    ) -> None:
        self.training, self._speech, self._report = training, speech, report
        names = [utterance.name for utterance in speech.train]
        self.path = checkpoint_path("speech", [asdict(training), names, speech.front_end])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(training.seed)
            self._learner = ConformerTransducer(training.model)
            self._random = torch.get_rng_state()
        self.model = deepcopy(self._learner)
        self._optimizer = torch.optim.AdamW(
            self._learner.parameters(),
            lr=training.learning_rate,
            betas=(0.9, 0.98),
            weight_decay=training.weight_decay,
            fused=True,
        )
        self._step, self._last_epoch = 0, training.last_epoch or training.epochs
        self.history: list[dict[str, float]] = []
        if self.path.exists():
            self._load(self.path)
        elif (common := self._common()) is not None:
            earlier = SpeechTrainer(common, speech, report)
            earlier.trained()
            self._load(earlier.path)
        elif training.after is not None:
            before = SpeechTrainer(training.after, speech, report).trained()
            for model in (self.model, self._learner):
                model.load_state_dict(before.state_dict())

    def trained(self) -> ConformerTransducer:
        """Train all epochs that are missing, and return the model."""
        # Nodes far from any alignment have tiny probabilities.
        with flushed_denormals(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._random)
            while len(self.history) < self._last_epoch:
                start = time.process_time()
                loss = self._epoch()
                seconds = time.process_time() - start + (self.history[-1]["seconds"] if self.history else 0)
                self.history.append({"loss": loss, "seconds": seconds})
                done = len(self.history)
                if done % _JUDGE_EVERY == 0 or done == self._last_epoch:
                    self.history[-1]["wer"] = self._word_errors()
                self._random = torch.get_rng_state()
                self._save()
                self._tell()
        return self.model.eval()

    def _epoch(self) -> float:
        """Train on all utterances once; return the transducer's loss per label."""
        self._learner.train()
        total, labels = 0.0, 0
        for batch in self._batches(len(self.history)):
            loss = self._take_step(batch)
            total, labels = total + loss, labels + int(batch.n_labels.sum())
        return total / labels

    def _batches(self, epoch: int) -> list[SpeechBatch]:
        training, utterances = self.training, self._speech.train
        generator = Generator().manual_seed(10_000 * training.seed + epoch)
        if training.microphones:
            utterances = through_microphones(utterances, training.microphones, generator)
        if training.joined_frames:
            utterances = joined_at_random(
                utterances, training.joined_frames, generator, by_speaker=not training.microphones
            )
        return list(training_batches(utterances, training.frames, training.augmentation, generator))

    def _take_step(self, batch: SpeechBatch) -> float:
        if self._step == self.training.fit_step and self.training.method != "exact":
            install(self._learner, self.training.method, self._speech.train, seed=self.training.seed)
            self._share_maps()
        for group in self._optimizer.param_groups:
            group["lr"] = self._learning_rate()
        losses = self._learner.losses(batch)
        # A tenth, so that the norm of a usual gradient is about that of `clip`.
        loss = (losses.transducer.mean() + self.training.ctc_weight * losses.ctc.mean()) / 10
        self._optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self._learner.parameters(), self.training.clip)
        if bool(norm.isfinite()):  # noisy estimates of attention may blow up a step
            self._optimizer.step()
        self._step += 1
        self._average()
        return float(losses.transducer.detach().sum())

    @torch.no_grad()
    def _average(self) -> None:
        """Move the averaged weights towards those of the last step."""
        share = max(1 - self.training.averaging, 9 / (9 + self._step))
        for mean, weight in zip(self.model.parameters(), self._learner.parameters(), strict=True):
            mean.lerp_(weight, share)

    def _share_maps(self) -> None:
        """Let the averaged model attend as the one that learns."""
        for mean, own in zip(self.model.attentions, self._learner.attentions, strict=True):
            mean.use(own.method)

    def _common(self) -> SpeechTraining | None:
        """Return the training that ends with the last epoch before ``fit_step``, if there is one.

        It is the same for all methods. A ``ValueError`` says that a method would never take over.
        """
        training, steps = self.training, 0
        if not training.fit_step:
            return None
        for epochs in range(self._last_epoch):
            steps += len(self._batches(epochs))
            if steps > training.fit_step:
                return replace(training, method="exact", last_epoch=epochs) if epochs else None
        if training.method != "exact":
            raise ValueError(
                f"fit_step is {training.fit_step}, and the training ends after {steps} steps; expected an earlier "
                f"step, so that {training.method} takes part"
            )
        return None

    @cached_property
    def _steps(self) -> int:
        """The number of steps of all epochs, if each had as many as the first."""
        return len(self._batches(0)) * self.training.epochs

    def _learning_rate(self) -> float:
        training = self.training
        rising = min(1.0, (self._step + 1) / training.warmup)
        falling = (1 + math.cos(math.pi * min(1.0, self._step / self._steps))) / 2
        return training.learning_rate * rising * falling

    def _word_errors(self) -> float:
        said = [utterance.text for utterance in self._speech.test]
        return error_rates(said, recognised(self.model, self._speech.test)).words

    def _tell(self) -> None:
        if self._report is not None:
            last = self.history[-1]
            judged = f", WER {last['wer']:.2f} %" if "wer" in last else ""
            self._report(
                f"epoch {len(self.history)} of {self._last_epoch}: loss {last['loss']:.3f} per label{judged}, "
                f"{last['seconds'] / 60:.1f} CPU minutes"
            )

    def _save(self) -> None:
        tensors = state_tensors(model=self.model, learner=self._learner, optimizer=self._optimizer)
        header = {
            "training": asdict(self.training),
            "front_end": self._speech.front_end,
            "step": self._step,
            "history": self.history,
        }
        tensors |= stored_maps(self.model)
        save_checkpoint(self.path, tensors | {"random": self._random}, header)

    def _load(self, path: Path) -> None:
        tensors, header = load_checkpoint(path)
        self._random = tensors["random"]
        restore_state(tensors, model=self.model, learner=self._learner, optimizer=self._optimizer)
        self._step, self.history = header["step"], header["history"]
        if self._step > self.training.fit_step:
            if not restore_maps(self._learner, tensors):
                install(self._learner, self.training.method, self._speech.train, seed=self.training.seed)
            self._share_maps()
