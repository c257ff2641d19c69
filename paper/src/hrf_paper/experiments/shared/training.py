"""Train a language model in steps that can be interrupted: a resumed training is bit for bit the same.

A checkpoint has the weights and the states of the optimiser, of the LSTM and of the random generator behind dropout
and draws. It is written at the end of each epoch and every `_SAVE_EVERY` steps within it, when the sampler is rebuilt
from the embeddings anyway, so that its own state need not be stored.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor, nn

from hrf_paper.datasets import Corpus, batches
from hrf_paper.experiments.shared.checkpoints import checkpoint_folder, load_checkpoint, save_checkpoint
from hrf_paper.experiments.shared.language_model import (
    LanguageModel,
    State,
    Training,
    batch_loss,
    perplexity,
    sampled_loss,
)

__all__ = ["Trainer"]

_SAVE_EVERY = 500  # steps


class Trainer:
    """A model in training, resumed from its last checkpoint if there is one.

    Args:
        training: the model and its training.
        corpus: its text.

    Attributes:
        model: the model in its current state.
        history: validation perplexities after each finished epoch.
    """

    def __init__(self, training: Training, corpus: Corpus) -> None:
        self.training = training
        self._text = batches(corpus.train[: training.words], training.batch_size, training.length)
        self._valid, self._test = (
            batches(ids[: training.judged_words], training.batch_size, training.length)
            for ids in (corpus.valid, corpus.test)
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(training.seed)
            self.model = LanguageModel(len(corpus.vocabulary), training)
            self._random = torch.get_rng_state()
        draws = training.draws
        self._sampled = None if draws is None else sampled_loss(draws, self.model.words.weight, training.seed)
        if draws is not None and _SAVE_EVERY % draws.rebuild_every:
            raise ValueError(f"rebuild_every is {draws.rebuild_every}; expected a divisor of {_SAVE_EVERY}")
        self._optimizer = torch.optim.Adam(self.model.parameters(), lr=training.learning_rate)
        self._step = 0  # in this epoch
        self._state: State = None
        self.history: list[float] = []
        if self.path.exists():
            self._load()

    @property
    def path(self) -> Path:
        """The path of the checkpoint."""
        identity = sha256(json.dumps(asdict(self.training), sort_keys=True).encode()).hexdigest()[:16]
        return checkpoint_folder() / f"{self.training.text}-{identity}.safetensors"

    def trained(self, epochs: int) -> float:
        """Train up to that many epochs, and return the validation perplexity after them."""
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._random)
            while len(self.history) < epochs:
                self._advance()
                if self._step == len(self._text):
                    self.history.append(perplexity(self.training, self.model, self._valid))
                    self._step, self._state = 0, None
                self._random = torch.get_rng_state()
                self._save()
        return self.history[epochs - 1]

    def test_perplexity(self) -> float:
        """Return the perplexity of the test text."""
        return perplexity(self.training, self.model, self._test)

    def _advance(self) -> None:
        """Take steps up to the next checkpoint or the end of the epoch."""
        self.model.train()
        draws = self.training.draws
        end = min(self._step + _SAVE_EVERY, len(self._text))
        for step in range(self._step, end):
            if self._sampled is not None and draws is not None and step % draws.rebuild_every == 0:
                self._sampled.sampler.rebuild_(self.model.words.weight)
            self._optimizer.zero_grad()
            loss, self._state = batch_loss(
                self.training, self.model, self._sampled, self._text[step], self._state
            )
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.training.clip)
            self._optimizer.step()
        self._step = end

    def _save(self) -> None:
        tensors: dict[str, Tensor] = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        for i, moments in self._optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{i}.{k}": v for k, v in moments.items()}
        tensors |= {f"state.{i}": part for i, part in enumerate(self._state or ())}
        header = {"training": asdict(self.training), "step": self._step, "history": self.history}
        save_checkpoint(self.path, tensors | {"random": self._random}, header)

    def _load(self) -> None:
        tensors, header = load_checkpoint(self.path)
        groups: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "state": {}}
        self._random = tensors.pop("random")
        for name, tensor in tensors.items():
            group, _, rest = name.partition(".")
            groups[group][rest] = tensor
        self.model.load_state_dict(groups["model"])
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in groups["optimizer"].items():
            place, _, key = name.partition(".")
            moments.setdefault(int(place), {})[key] = tensor
        self._optimizer.load_state_dict(self._optimizer.state_dict() | {"state": moments})
        self._step, self.history = header["step"], header["history"]
        self._state = (groups["state"]["0"], groups["state"]["1"]) if groups["state"] else None
