"""A tiny model and random utterances."""

from __future__ import annotations

import torch

from hrf_paper.speech.conformer import ModelConfig
from hrf_paper.speech.transducer import ConformerTransducer
from hrf_paper.speech.utterances import Speech, Utterance

TINY = ModelConfig(
    channels=6, width=16, layers=2, heads=2, expansion=2, kernel=5, predictor_width=8, joint_width=12
)


def tiny_model(config: ModelConfig = TINY, seed: int = 0) -> ConformerTransducer:
    """Return a model with random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ConformerTransducer(config).eval()


def utterances(lengths: list[int], seed: int = 0, channels: int = 6) -> list[Utterance]:
    """Return utterances of noise, two speakers in turn."""
    generator = torch.Generator().manual_seed(seed)
    texts = ["ONE TWO", "A B C", "NINE", "GO", "IT'S"]
    return [
        Utterance(f"u{i}", f"s{i % 2}", torch.randn(n, channels, generator=generator), texts[i % len(texts)])
        for i, n in enumerate(lengths)
    ]


def tiny_speech() -> Speech:
    """Return a few utterances to train and to test with."""
    return Speech(utterances([40, 61, 33, 52, 47, 70]), utterances([45, 38], seed=1))


def corpus() -> Speech:
    """Return noise in the shape of AN4's features."""
    return Speech(utterances([60 + 10 * i for i in range(12)], 2, 26), utterances([60, 80, 100, 120], 3, 26))
