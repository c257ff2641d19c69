"""The Free Spoken Digit Dataset, a subset: 600 recordings to train and 300 to test, one digit each, 8 kHz."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from hrf_paper.datasets import MissingData
from hrf_paper.datasets.files import data_folder
from hrf_paper.speech.audio import RATE, log_mel, read_audio
from hrf_paper.speech.running_features import running_log_mel
from hrf_paper.speech.utterances import Speech, Utterance

__all__ = ["DIGITS", "Digit", "digit_strings", "recordings", "spoken", "spoken_digits"]

DIGITS = ("ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE")
_ARCHIVE = Path("fsdd-subset") / "fsdd-flac.tar.gz"
_SHA256 = "14c52221ca613e33e532d5f029feded18a047f3f94cb24e91d7f43350187c5ad"
_NAME = re.compile(r"recordings/(\d)_(\w+)_(\d+)\.flac")
_TEST = 5  # recordings with a smaller index are for the test: the data set's own rule
_MOST = 12  # digits of a string
_PAUSE = 0.3  # seconds between digits, at most


class Digit(NamedTuple):
    """A recording of one digit: who spoke, what, whether it is for the test, and its samples."""

    name: str
    speaker: str
    text: str
    test: bool
    samples: Tensor


def recordings(folder: Path | None = None) -> list[Digit]:
    """Load all recordings, in the order of their names.

    Args:
        folder: the folder with ``fsdd-subset/``; ``$HRF_DATA`` by default, or ``~/.cache/hrf``.
    """
    path = (folder or data_folder()) / _ARCHIVE
    if not path.is_file():
        raise MissingData(f"{path} is not there; set HRF_DATA to the folder that holds {_ARCHIVE.parent}/")
    content = path.read_bytes()
    if (received := sha256(content).hexdigest()) != _SHA256:
        raise ValueError(f"{path} has the SHA-256 {received}; expected {_SHA256}")
    found = []
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        for member in sorted(tar.getmembers(), key=lambda member: member.name):
            parts, file = _NAME.fullmatch(member.name), tar.extractfile(member)
            if parts is None or file is None:
                continue
            digit, speaker, index = parts.groups()
            test = int(index) < _TEST
            samples = read_audio(file.read())
            found.append(Digit(Path(member.name).stem, speaker, DIGITS[int(digit)], test, samples))
    return found


def spoken_digits(folder: Path | None = None, *, channels: int = 80) -> Speech:
    """Load the digits, one per utterance.

    Args:
        folder: as in `recordings`.
        channels: channels of the features.
    """
    speech = Speech([], [])
    for digit in recordings(folder):
        side = speech.test if digit.test else speech.train
        side.append(Utterance(digit.name, digit.speaker, log_mel(digit.samples, channels), digit.text))
    return speech


def digit_strings(
    folder: Path | None = None, *, channels: int = 40, counts: tuple[int, int] = (600, 60), seed: int = 0
) -> Speech:
    """Make strings of up to 12 digits of one speaker, with running features, to train a model for streams.

    Args:
        folder: as in `recordings`.
        channels: channels of the features.
        counts: strings to train and to test with.
        seed: of digits and pauses.
    """
    generator = Generator().manual_seed(seed)
    digits = recordings(folder)
    train, test = (
        _strings([d for d in digits if d.test == side], count, channels, generator)
        for side, count in zip((False, True), counts, strict=True)
    )
    return Speech(train, test, front_end="running log-mel")


def _strings(digits: Sequence[Digit], count: int, channels: int, generator: Generator) -> list[Utterance]:
    """Return strings of digits, of all speakers in turn."""
    speakers = sorted({digit.speaker for digit in digits})
    found = []
    for i in range(count):
        speaker = speakers[i % len(speakers)]
        own = [digit for digit in digits if digit.speaker == speaker]
        length = int(torch.randint(1, _MOST + 1, (), generator=generator))
        chosen = [own[j] for j in torch.randint(len(own), (length,), generator=generator).tolist()]
        features = running_log_mel(spoken(chosen, generator), channels)
        name, text = "+".join(digit.name for digit in chosen), " ".join(digit.text for digit in chosen)
        found.append(Utterance(name, speaker, features, text))
    return found


def spoken(digits: Sequence[Digit], generator: Generator) -> Tensor:
    """Return the samples of digits one after another, with a random pause after each."""
    pieces = []
    for digit in digits:
        pause = int(RATE * _PAUSE * float(torch.rand((), generator=generator)))
        pieces += [digit.samples, torch.zeros(pause)]
    return torch.cat(pieces)
