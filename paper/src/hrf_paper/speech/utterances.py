"""Utterances from transcript and features to batches: characters, joining, microphones, variations, padding."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

# Characters and their numbers; 0 is the blank of the transducer.

BLANK = 0
CHARACTERS = " 'ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_NUMBERS = {character: i for i, character in enumerate(CHARACTERS, start=1)}


def encoded(text: str) -> list[int]:
    """Return the numbers of the characters of a normalised text.

    >>> encoded("A B")
    [3, 1, 4]
    """
    if unknown := set(text) - _NUMBERS.keys():
        raise ValueError(f"the text has {min(unknown)!r}; expected characters among {CHARACTERS!r}")
    return [_NUMBERS[character] for character in text]


def characters(labels: Iterable[int]) -> str:
    """Return the characters of labels, blanks of the transducer left out, spaces as they are."""
    return "".join(CHARACTERS[label - 1] for label in labels if label != BLANK)


def decoded(labels: Iterable[int]) -> str:
    """Return the text of labels, blanks of the transducer left out, with single spaces between words.

    >>> decoded([1, 3, 0, 1, 1, 4])
    'A B'
    """
    return " ".join(characters(labels).split())


# Utterances: features, a transcript, and who spoke; joined end to end they make long ones.

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


# A random microphone per utterance: a smooth offset of all its log energies, as rooms and devices make them.

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


# Variations of an utterance for training: speed, vocal tract, microphone, SpecAugment's masks (Park et al., 2019).

_SHORTEST = 24  # frames


@dataclass(frozen=True)
class Augmentation:
    """The strength of each variation; zeros and empty masks leave features as they are.

    Attributes:
        speed: largest relative change of the speed.
        warp: largest relative stretch of the frequency axis, for the length of the vocal tract.
        tilt: largest tilt of the spectrum, in standard deviations at its ends.
        time_masks: number of masks over time.
        time_width: width of a mask over time, at most this share of the frames.
        longest_mask: width of a mask over time, at most this number of frames.
        channel_masks: number of masks over channels.
        channel_width: width of a mask over channels, at most this share of the channels.
    """

    speed: float = 0.12
    warp: float = 0.12
    tilt: float = 0.3
    time_masks: int = 2
    time_width: float = 0.06
    longest_mask: int = 20
    channel_masks: int = 2
    channel_width: float = 0.2

    def __call__(self, features: Tensor, generator: Generator) -> Tensor:
        """Return a variation of features ``(frames, channels)``."""
        speed, warp, tilt = (2 * torch.rand(3, generator=generator, dtype=torch.float64) - 1).tolist()
        features = _faster(features, 1 + self.speed * speed)
        features = _warped(features, 1 + self.warp * warp)
        frames, channels = features.shape
        features = features + self.tilt * tilt * torch.linspace(-1, 1, channels)
        # One mask over time per 500 frames and `time_masks`: joined utterances get as many as their parts.
        for _ in range(self.time_masks * -(-frames // 500)):
            start, stop = _mask(frames, min(self.longest_mask, self.time_width * frames), generator)
            features[start:stop] = 0
        for _ in range(self.channel_masks):
            start, stop = _mask(channels, self.channel_width * channels, generator)
            features[:, start:stop] = 0
        return features


def _faster(features: Tensor, factor: float) -> Tensor:
    """Change the number of frames by interpolation."""
    frames = max(min(_SHORTEST, len(features)), round(len(features) / factor))
    return F.interpolate(features.mT[None], size=frames, mode="linear", align_corners=True)[0].mT


def _warped(features: Tensor, factor: float) -> Tensor:
    """Stretch the axis of channels by interpolation."""
    last = features.shape[1] - 1
    place = (torch.arange(last + 1) * factor).clamp(max=last)
    low = place.floor().long()
    share = place - low
    return features[:, low] * (1 - share) + features[:, (low + 1).clamp(max=last)] * share


def _mask(length: int, widest: float, generator: Generator) -> tuple[int, int]:
    """Draw a mask: where it starts and stops."""
    size, place = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
    width = int(size * (widest + 1))
    start = int(place * (length - width + 1))
    return start, start + width


# Padded batches of utterances, similar lengths together.

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
