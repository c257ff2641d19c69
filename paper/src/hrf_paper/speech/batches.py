"""Padded batches of utterances, similar lengths together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn.utils.rnn import pad_sequence

from hrf_paper.speech.alphabet import encoded
from hrf_paper.speech.augment import Augmentation
from hrf_paper.speech.utterances import Utterance

__all__ = ["SpeechBatch", "batch_of", "by_length", "padding_mask", "training_batches"]

_MOST = 32  # utterances in a batch


class SpeechBatch(NamedTuple):
    """Utterances side by side.

    Attributes:
        features: ``(B, frames, channels)``, zeros after the end of an utterance.
        frames: number of frames of each, ``(B,)``.
        labels: ``(B, most labels)``, blanks after the end.
        n_labels: number of labels of each, ``(B,)``.
    """

    features: Tensor
    frames: Tensor
    labels: Tensor
    n_labels: Tensor


def padding_mask(lengths: Tensor, longest: int) -> Tensor:
    """Return booleans ``(B, longest)``: True after the end of each sequence."""
    return torch.arange(longest, device=lengths.device) >= lengths[:, None]


def batch_of(utterances: Sequence[Utterance]) -> SpeechBatch:
    """Pad utterances to the longest of them."""
    labels = [torch.tensor(encoded(utterance.text), dtype=torch.long) for utterance in utterances]
    return SpeechBatch(
        pad_sequence([utterance.features for utterance in utterances], batch_first=True),
        torch.tensor([len(utterance.features) for utterance in utterances]),
        pad_sequence(labels, batch_first=True),
        torch.tensor([len(numbers) for numbers in labels]),
    )


def by_length(lengths: Sequence[float], frames: int) -> list[list[int]]:
    """Group indices, short ones first, so that a padded group has at most that many frames, or one utterance."""
    groups: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if not groups or lengths[i] * (len(groups[-1]) + 1) > frames or len(groups[-1]) == _MOST:
            groups.append([])
        groups[-1].append(i)
    return groups


def training_batches(
    utterances: Sequence[Utterance], frames: int, augmentation: Augmentation, generator: Generator
) -> Iterator[SpeechBatch]:
    """Yield all utterances once, varied, in batches of about that many frames and in random order."""
    # Lengths in random excess, so that an utterance meets different neighbours in each epoch.
    excess = (1 + 0.2 * torch.rand(len(utterances), generator=generator, dtype=torch.float64)).tolist()
    lengths = [len(u.features) * factor for u, factor in zip(utterances, excess, strict=True)]
    groups = by_length(lengths, frames)
    for place in torch.randperm(len(groups), generator=generator).tolist():
        chosen = [utterances[i] for i in groups[place]]
        yield batch_of([replace(u, features=augmentation(u.features, generator)) for u in chosen])
