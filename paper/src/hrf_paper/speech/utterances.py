"""Utterances: features, a transcript, and who spoke; joined end to end they make long ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

__all__ = ["Speech", "Utterance", "joined", "joined_at_random", "normalised", "taking_turns"]

_NO_SOUND = re.compile(r"<[^>]*>|\[[^\]]*\]|\+\+[^+]*\+\+")  # tags of silence and noise
_NO_LETTER = re.compile(r"[^A-Z' ]+")


@dataclass(frozen=True)
class Utterance:
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


@dataclass(frozen=True)
class Speech:
    """Utterances to train and to test with.

    Attributes:
        train: utterances to train with.
        test: utterances of other recordings.
        front_end: where features come from: ``"log-mel"`` energies of recordings, or ``"cepstra"`` without them.
    """

    train: list[Utterance]
    test: list[Utterance]
    front_end: str = "log-mel"


def normalised(text: str) -> str:
    """Return a transcript in capital letters, apostrophes and single blanks: the form of all texts.

    >>> normalised("<s> it's  Twenty-one, </s>")
    "IT'S TWENTY ONE"
    """
    return " ".join(_NO_LETTER.sub(" ", _NO_SOUND.sub(" ", text.upper()).replace("’", "'")).split())


def joined(utterances: Sequence[Utterance], frames: int) -> list[Utterance]:
    """Join utterances in their order, those of one speaker first, to about that many frames each.

    A speaker whose utterances are fewer frames in all is followed by the next speaker. The number of joined utterances
    is the one that brings their mean length closest to ``frames``.
    """
    speakers = [
        [u for u in utterances if u.speaker == name] for name in dict.fromkeys(u.speaker for u in utterances)
    ]
    if min(map(_length, speakers), default=0) < frames:
        speakers = [[utterance for own in speakers for utterance in own]]
    return [_join(group) for own in speakers for group in _cut(own, max(1, round(_length(own) / frames)))]


def taking_turns(utterances: Sequence[Utterance], frames: int, generator: Generator) -> list[Utterance]:
    """Join utterances in random order, whoever speaks, to about that many frames each."""
    order = torch.randperm(len(utterances), generator=generator).tolist()
    mixed = [utterances[i] for i in order]
    return [_join(group) for group in _cut(mixed, max(1, round(_length(mixed) / frames)))]


def joined_at_random(
    utterances: Sequence[Utterance], frames: int, generator: Generator, *, by_speaker: bool = True
) -> list[Utterance]:
    """Join utterances in random order, each up to a random length of at most about ``frames``.

    Args:
        utterances: single ones.
        frames: frames of the longest.
        generator: of order and lengths.
        by_speaker: whether to join utterances of one speaker only.
    """
    order = torch.randperm(len(utterances), generator=generator).tolist()
    groups: list[list[Utterance]] = []
    open_groups: dict[str, tuple[list[Utterance], int]] = {}
    for utterance in (utterances[i] for i in order):
        who = utterance.speaker if by_speaker else ""
        group, limit = open_groups.get(who, ([], 0))
        if _length(group) + len(utterance.features) > limit:
            group, limit = [], int(frames * float(torch.rand((), generator=generator)))
            groups.append(group)
            open_groups[who] = group, limit
        group.append(utterance)
    return [_join(group) for group in groups]


def _cut(utterances: Sequence[Utterance], count: int) -> list[list[Utterance]]:
    """Cut a sequence into runs of about equally many frames, none of them empty if there are enough utterances."""
    share = _length(utterances) / count
    groups: list[list[Utterance]] = [[] for _ in range(count)]
    before = 0
    for utterance in utterances:
        middle = before + len(utterance.features) / 2
        groups[min(count - 1, int(middle / share))].append(utterance)
        before += len(utterance.features)
    return [group for group in groups if group]


def _length(group: Sequence[Utterance]) -> int:
    return sum(len(utterance.features) for utterance in group)


def _join(group: Sequence[Utterance]) -> Utterance:
    return Utterance(
        "+".join(utterance.name for utterance in group),
        group[0].speaker,
        torch.cat([utterance.features for utterance in group]),
        " ".join(utterance.text for utterance in group),
    )
