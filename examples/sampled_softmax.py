"""Language models trained with a sampled softmax: ``python -m examples.sampled_softmax``.

An LSTM and a Transformer with linear attention read Penn Treebank and predict the next of 10,000 words. The output
layer is the matrix of the word embeddings (tied weights). In training its logits are computed for 40 drawn words and
the target; perplexities of the validation text use the full softmax.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import hrf
from hrf_paper.datasets import Batch, Corpus, MissingData, batches, penn_treebank

WIDTH, HEADS, LAYERS, DROPOUT = 64, 4, 2, 0.1
BATCH_SIZE, LENGTH = 20, 35
DRAWS = 40
REBUILD_EVERY = 20  # steps; in between the sampler has old embeddings, but its probabilities stay exact


class Lstm(nn.Module):
    """Words ``(L, B)`` to hidden states ``(L, B, WIDTH)``; the state is carried from batch to batch."""

    def __init__(self, n_words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(n_words, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, LAYERS, dropout=DROPOUT)

    def forward(self, words: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Return hidden states, and the last state."""
        hidden, state = self.lstm(self.words(words), state)
        return hidden, tuple(part.detach() for part in state)


class Transformer(nn.Module):
    """Words ``(L, B)`` to hidden states ``(L, B, WIDTH)``, one batch at a time."""

    def __init__(self, n_words: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(n_words, WIDTH), nn.Embedding(LENGTH, WIDTH)
        phi = partial(hrf.Positive, n_projections=32)
        layer = hrf.nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, DROPOUT, norm_first=True, feature_map=phi
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)

    def forward(self, words: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Return hidden states, and no state."""
        x = self.words(words) + self.places.weight[: len(words), None]
        causal = nn.Transformer.generate_square_subsequent_mask(len(words))
        return self.layers(x, mask=causal, is_causal=True), None


MODELS: dict[str, Callable[[int], nn.Module]] = {"lstm": Lstm, "transformer": Transformer}


def by_features(weight: Tensor) -> hrf.sampling.Sampler:
    """Draw words in proportion to exp(4 cos θ), estimated by positive features."""
    return hrf.sampling.SoftmaxSampler(weight, hrf.Positive(WIDTH, n_projections=64), radius=2.0)


SAMPLERS: dict[str, Callable[[Tensor], hrf.sampling.Sampler]] = {
    "features": by_features,
    "uniform": lambda weight: hrf.sampling.UniformSampler(len(weight)),
    "log-uniform": lambda weight: hrf.sampling.LogUniformSampler(len(weight)),
    "exact": hrf.sampling.ExactSoftmaxSampler,
}


def train(model: Any, loss: hrf.nn.SampledSoftmaxLoss, text: Sequence[Batch]) -> None:
    """Train for one pass over the batches."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    model.train(), loss.train()
    state = None
    for step, (words, targets) in enumerate(text):
        hidden, state = model(words, state)
        optimizer.zero_grad()
        loss(hidden, targets, model.words.weight).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.35)
        optimizer.step()
        if step % REBUILD_EVERY == REBUILD_EVERY - 1:
            loss.sampler.rebuild_(model.words.weight)


@torch.no_grad()
def perplexity(model: Any, loss: hrf.nn.SampledSoftmaxLoss, text: Sequence[Batch]) -> float:
    """Return the perplexity of the full softmax."""
    model.eval(), loss.eval()
    total, state = 0.0, None
    for words, targets in text:
        hidden, state = model(words, state)
        total += float(loss(hidden, targets, model.words.weight)) * targets.numel()
    return math.exp(total / sum(targets.numel() for _, targets in text))


def run(corpus: Corpus, name: str, sampler: str, steps: int) -> float:
    """Train a model and return its perplexity on the validation text."""
    torch.manual_seed(0)
    model: Any = MODELS[name](len(corpus.vocabulary))
    nn.init.normal_(model.words.weight, std=0.1)
    loss = hrf.nn.SampledSoftmaxLoss(SAMPLERS[sampler](model.words.weight), DRAWS)
    train(model, loss, batches(corpus.train, BATCH_SIZE, LENGTH)[:steps])
    return perplexity(model, loss, batches(corpus.valid, BATCH_SIZE, LENGTH))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 2 if the text is missing."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.sampled_softmax",
        description="Language models on Penn Treebank, trained with 40 drawn words instead of 10,000.",
        epilog="The text is read from $HRF_DATA/ptb, or downloaded to ~/.cache/hrf.",
    )
    parser.add_argument("--steps", type=int, default=400, help="batches to train on (default: %(default)s)")
    parser.add_argument("--sampler", choices=SAMPLERS, nargs="*", default=["features", "uniform"])
    parser.add_argument("--model", choices=MODELS, nargs="*", default=[*MODELS])
    args = parser.parse_args(argv)
    try:
        corpus = penn_treebank()
    except MissingData as error:
        print(error, file=sys.stderr)
        return 2
    print(f"perplexity of the validation text after {args.steps} batches of {BATCH_SIZE} × {LENGTH} words")
    for name in args.model:
        for sampler in args.sampler:
            print(f"{name:12} {sampler:12} {run(corpus, name, sampler, args.steps):8.1f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
