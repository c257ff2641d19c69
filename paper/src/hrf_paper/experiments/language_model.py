"""Language model of the paper (Section 4.3 and its appendix): an LSTM whose outputs are scored against all words.

With queries q, the outputs of the LSTM, and keys k, the word embeddings that are also its inputs (tied weights),
p(word) ∝ exp(τ qᵀk). The loss is

    cross-entropy + λ E(‖q‖ − 1)² + λ E(‖k‖ − 1)²,

with τ = 1 and λ = 0 on Penn Treebank, τ = 6 and λ = 2 on WikiText-2.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

import hrf
from hrf_paper.datasets import Batch, Corpus, batches
from hrf_paper.experiments.estimators import HYBRIDS, Estimator, matched
from hrf_paper.resume import checkpoint_path, load_checkpoint, restore_state, save_checkpoint, state_tensors

State = tuple[Tensor, Tensor] | None  # of the LSTM, carried from batch to batch
_INITIAL = 0.1  # embeddings start in [−0.1, 0.1]


@dataclass(frozen=True)
class Draws:
    """Draws of words for the loss in training.

    Attributes:
        sampler: ``uniform``, ``log-uniform``, ``exact``, or a map of `hrf_paper.experiments.estimators`.
        k: words drawn per target.
        features: D of the maps; hybrids get m·n = D.
        n_coefficient_projections: n of hybrids.
        radius: the length of queries and embeddings while words are drawn, for maps only.
        rebuild_every: steps after which the sampler is rebuilt from the current embeddings.
    """

    sampler: str
    k: int = 40
    features: int = 1024
    n_coefficient_projections: int = 8
    radius: float = 1.0
    rebuild_every: int = 20


@dataclass(frozen=True)
class Training:
    """Everything that a trained model depends on.

    Attributes:
        text: a function of `hrf_paper.datasets`, ``penn_treebank`` or ``wikitext2``.
        width: the width of embeddings and LSTM.
        epochs: passes over the text.
        layers: the number of layers of the LSTM.
        dropout: the dropout before, between and after the layers.
        batch_size: parts of the text side by side.
        length: words per batch and part.
        learning_rate: the learning rate of Adam.
        clip: largest norm of a gradient.
        temperature: τ.
        length_penalty: λ.
        words: words of the training text that are read, ``None`` for all.
        judged_words: words of the validation and of the test text, ``None`` for all.
        draws: how words are drawn, ``None`` for the full softmax.
        seed: the seed of everything random.
    """

    text: str
    width: int
    epochs: int
    layers: int = 2
    dropout: float = 0.5
    batch_size: int = 20
    length: int = 35
    learning_rate: float = 1e-3
    clip: float = 0.35
    temperature: float = 1.0
    length_penalty: float = 0.0
    words: int | None = None
    judged_words: int | None = None
    draws: Draws | None = None
    seed: int = 0

    @property
    def title(self) -> str:
        """The name of the text, for readers."""
        return {"penn_treebank": "Penn Treebank", "wikitext2": "WikiText-2"}.get(self.text, self.text)


class LanguageModel(nn.Module):
    """Words ``(L, B)`` to queries ``(L, B, width)``; the keys are ``words.weight``."""

    def __init__(self, n_words: int, training: Training) -> None:
        super().__init__()
        self.words = nn.Embedding(n_words, training.width)
        self.lstm = nn.LSTM(training.width, training.width, training.layers, dropout=training.dropout)
        self.dropout = nn.Dropout(training.dropout)
        nn.init.uniform_(self.words.weight, -_INITIAL, _INITIAL)

    def forward(self, words: Tensor, state: State = None) -> tuple[Tensor, State]:
        """Return queries and the last state, detached from the graph."""
        queries, (h, c) = self.lstm(self.dropout(self.words(words)), state)
        return self.dropout(queries), (h.detach(), c.detach())


def sampled_loss(draws: Draws, embeddings: Tensor, seed: int) -> hrf.nn.SampledSoftmaxLoss:
    """Return the loss for drawn words; ``seed`` is the seed of the map."""
    n_words, dim = embeddings.shape
    sampler: hrf.sampling.Sampler
    if draws.sampler == "uniform":
        sampler = hrf.sampling.UniformSampler(n_words)
    elif draws.sampler == "log-uniform":
        sampler = hrf.sampling.LogUniformSampler(n_words)
    elif draws.sampler == "exact":
        sampler = hrf.sampling.ExactSoftmaxSampler(embeddings)
    else:
        phi = Estimator(
            draws.sampler,
            dim,
            draws.features,
            draws.n_coefficient_projections,
            projection="orthogonal",
            sigma=1 / draws.radius,
            radius=draws.radius,
        )
        if draws.sampler in HYBRIDS:
            phi = matched(phi, "m·n = D", draws.features)
        drawn = phi(None, Generator().manual_seed(seed))
        sampler = hrf.sampling.SoftmaxSampler(embeddings, drawn, radius=draws.radius, uniform_share=0.0)
    return hrf.nn.SampledSoftmaxLoss(sampler, draws.k)


def batch_loss(
    training: Training,
    model: LanguageModel,
    sampled: hrf.nn.SampledSoftmaxLoss | None,
    batch: Batch,
    state: State,
) -> tuple[Tensor, State]:
    """Return the loss of a batch, by the full softmax or by drawn words, and the last state."""
    queries, state = model(batch.inputs, state)
    scaled, keys = training.temperature * queries, model.words.weight
    if sampled is None:
        loss = F.cross_entropy((scaled @ keys.mT).flatten(0, 1), batch.targets.flatten())
    else:
        loss = sampled(scaled, batch.targets, keys)
    if training.length_penalty:
        gaps = [(vectors.norm(dim=-1) - 1).square().mean() for vectors in (queries, keys)]
        loss = loss + training.length_penalty * (gaps[0] + gaps[1])
    return loss, state


@torch.no_grad()
def perplexity(training: Training, model: LanguageModel, text: list[Batch]) -> float:
    """Return exp of the mean cross-entropy of the full softmax, in nats."""
    model.eval()
    total, state = 0.0, None
    for words, targets in text:
        queries, state = model(words, state)
        logits = (training.temperature * queries) @ model.words.weight.mT
        total += float(F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum"))
    return math.exp(total / sum(targets.numel() for _, targets in text))


# Train a language model in steps that can be interrupted: a resumed training is bit for bit the same.
#
# A checkpoint has the weights and the states of the optimiser, of the LSTM and of the random generator behind dropout
# and draws. It is written at the end of each epoch and every `_SAVE_EVERY` steps within it, when the sampler is rebuilt
# from the embeddings anyway, so that its own state need not be stored.

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
        return checkpoint_path(self.training.text, asdict(self.training))

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
        tensors = state_tensors(model=self.model, optimizer=self._optimizer) | {"random": self._random}
        tensors |= {f"state.{i}": part for i, part in enumerate(self._state or ())}
        header = {"training": asdict(self.training), "step": self._step, "history": self.history}
        save_checkpoint(self.path, tensors, header)

    def _load(self) -> None:
        tensors, header = load_checkpoint(self.path)
        restore_state(tensors, model=self.model, optimizer=self._optimizer)
        self._random = tensors["random"]
        self._step, self.history = header["step"], header["history"]
        self._state = (tensors["state.0"], tensors["state.1"]) if "state.0" in tensors else None
