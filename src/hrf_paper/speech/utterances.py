"""Utterances: features, a transcript, and who spoke; joined end to end they make long ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Generator, Tensor

__all__ = ["Speech", "Utterance", "joined", "joined_at_random", "normalised"]

_NO_SOUND = re.compile(r"<[^>]*>|\[[^\]]*\]|\+\+[^+]*\+\+")  # tags of silence and noise
_NO_LETTER = re.compile(r"[^A-Z' ]+")


class Utterance(NamedTuple):
    """One recording.

    Attributes:
        name: its identifier in the corpus.
        speaker: who spoke.
        features: ``(frames, channels)``, 100 frames per second.
        text: the transcript, `normalised`.
    """

    name: str
    speaker: str
    features: Tensor
    text: str


class Speech(NamedTuple):
    """Utterances to train and to test with."""

    train: list[Utterance]
    test: list[Utterance]


def normalised(text: str) -> str:
    """Return a transcript in capital letters, apostrophes and single blanks: the form of all texts.

    >>> normalised("<s> it's  Twenty-one, </s>")
    "IT'S TWENTY ONE"
    """
    return " ".join(_NO_LETTER.sub(" ", _NO_SOUND.sub(" ", text.upper()).replace("’", "'")).split())


def joined(utterances: Sequence[Utterance], frames: int) -> list[Utterance]:
    """Join utterances of one speaker, in their order, until each joined one has at least that many frames.

    The last one of a speaker may be shorter; it goes to the one before it if it has less than half of the frames.
    """
    found: list[Utterance] = []
    for speaker in dict.fromkeys(utterance.speaker for utterance in utterances):
        groups: list[list[Utterance]] = [[]]
        for utterance in (u for u in utterances if u.speaker == speaker):
            if _length(groups[-1]) >= frames:
                groups.append([])
            groups[-1].append(utterance)
        if len(groups) > 1 and _length(groups[-1]) < frames / 2:
            groups[-2] += groups.pop()
        found += [_join(group) for group in groups]
    return found


def joined_at_random(utterances: Sequence[Utterance], frames: int, generator: Generator) -> list[Utterance]:
    """Join utterances of one speaker in random order, each up to a random length of at most about ``frames``."""
    order = torch.randperm(len(utterances), generator=generator).tolist()
    groups: list[list[Utterance]] = []
    open_groups: dict[str, tuple[list[Utterance], int]] = {}
    for utterance in (utterances[i] for i in order):
        group, limit = open_groups.get(utterance.speaker, ([], 0))
        if _length(group) + len(utterance.features) > limit:
            group, limit = [], int(frames * float(torch.rand((), generator=generator)))
            groups.append(group)
            open_groups[utterance.speaker] = group, limit
        group.append(utterance)
    return [_join(group) for group in groups]


def _length(group: Sequence[Utterance]) -> int:
    return sum(len(utterance.features) for utterance in group)


def _join(group: Sequence[Utterance]) -> Utterance:
    return Utterance(
        "+".join(utterance.name for utterance in group),
        group[0].speaker,
        torch.cat([utterance.features for utterance in group]),
        " ".join(utterance.text for utterance in group),
    )
