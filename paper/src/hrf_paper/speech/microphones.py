"""A random microphone per utterance: a smooth offset of all its log energies, as rooms and devices make them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Generator

from hrf_paper.speech.utterances import Utterance

__all__ = ["through_microphones"]

_WAVES = 4  # cosines over the channels: the response has two bumps at most


def through_microphones(
    utterances: Sequence[Utterance], deviation: float, generator: Generator
) -> list[Utterance]:
    """Add a response to each utterance: Σ aₖ cos(π k (j + ½) / channels), k = 0 to 3, with normal aₖ.

    Args:
        utterances: their features have channels of deviation 1.
        deviation: of the response, over utterances, as a mean over channels.
        generator: of the responses.
    """
    if not utterances:
        return []
    channels = utterances[0].features.shape[1]
    place = (torch.arange(channels) + 0.5) / channels
    waves = torch.cos(math.pi * torch.arange(_WAVES)[:, None] * place)
    # Squares of the waves sum to about (_WAVES + 1) / 2 in each channel.
    scale = deviation / math.sqrt((_WAVES + 1) / 2)
    weights = scale * torch.randn(len(utterances), _WAVES, generator=generator)
    return [
        replace(utterance, features=utterance.features + response)
        for utterance, response in zip(utterances, weights @ waves, strict=True)
    ]
