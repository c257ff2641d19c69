"""Corpora: AN4, the Free Spoken Digit Dataset, and LibriSpeech."""

from __future__ import annotations

import io
import math
import re
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import numpy as np
import torch
from torch import Generator, Tensor

from hrf.report import folder
from hrf_paper.datasets import MissingData, checked, data_folder
from hrf_paper.speech.audio import RATE, log_mel, read_audio, running_log_mel
from hrf_paper.speech.utterances import Speech, Utterance, normalised

# AN4, the census corpus of Carnegie Mellon: 948 utterances to train and 130 to test, as cepstra.
#
# The 13 cepstra of a frame become 26 smoothed log-mel energies by the inverse cosine transform, so that masks and warps
# of the frequency axis make sense. Each utterance loses the mean of all utterances of its speaker, who has one
# recording session: the mean of one or two seconds would depend on what is said. Channels are divided by their
# deviation over the training utterances.

CHANNELS = 26
_CEPSTRA = 13
_FILES = {
    "an4-feat-mfc.tar.gz": "7cf8d96d16351ae207b4b87aa5e83c44669711ff420a26224d99344625d55525",
    "etc/an4_train.fileids": "a8a4c7f10776bb7d6804b9f1acd0bb6eedd9978490b514c185cebc216a0efed6",
    "etc/an4_train.transcription": "6eb103966af7ed10c8d44651bc51a0b2ddd052bf430d60efcf3a7e7b9d9f4651",
    "etc/an4_test.fileids": "6860eb5ead0e3219b8aa6510fd1a0f1c0717c560bb18928329728ab2614261ce",
    "etc/an4_test.transcription": "a36c14d7473eeba948ea64aa95be1e4fa42321ae6d535ea91e2381cb16faacfd",
}


def an4() -> Speech:
    """Load AN4 from ``$HRF_DATA/an4-mfcc``."""
    files = {name: _read(Path("an4-mfcc") / name, digest) for name, digest in _FILES.items()}
    features = _features(files["an4-feat-mfc.tar.gz"])
    train, test = (
        [
            Utterance(name, _speaker(name), features[name], _text(line))
            for name, line in zip(
                files[f"etc/an4_{split}.fileids"].decode().split(),
                files[f"etc/an4_{split}.transcription"].decode().strip().splitlines(),
                strict=True,
            )
        ]
        for split in ("train", "test")
    )
    deviation = torch.cat([utterance.features for utterance in train]).std(0)
    train, test = ([replace(u, features=u.features / deviation) for u in side] for side in (train, test))
    return Speech(train, test, front_end="cepstra")


def _read(name: Path, digest: str) -> bytes:
    """Return the contents of a file of the data folder, checked."""
    path = data_folder() / name
    if not path.is_file():
        raise MissingData(f"{path} is not there; set HRF_DATA to the folder that holds {name.parts[0]}/")
    return checked(path.read_bytes(), str(path), digest)


def _features(archive: bytes) -> dict[str, Tensor]:
    """Return log-mel energies without the speaker's mean, ``(frames, CHANNELS)``, by the name of the utterance."""
    found: dict[str, Tensor] = {}
    speakers: dict[str, list[Tensor]] = {}
    inverse = _inverse_cosine()
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            content = tar.extractfile(member)
            if content is None or not member.name.endswith(".mfc"):
                continue
            # A file is the number of values in 4 bytes, then the values, all big-endian.
            values = np.frombuffer(content.read()[4:], ">f4").astype(np.float32)
            energies = torch.from_numpy(values).view(-1, _CEPSTRA) @ inverse
            name = member.name.removeprefix("an4/feat/").removesuffix(".mfc")
            found[name] = energies
            speakers.setdefault(_speaker(name), []).append(energies)
    means = {speaker: torch.cat(own).mean(0) for speaker, own in speakers.items()}
    return {name: energies - means[_speaker(name)] for name, energies in found.items()}


def _speaker(name: str) -> str:
    """Return the speaker of an utterance, such as an4_clstk/fash/an251-fash-b."""
    return name.split("/")[1]


def _inverse_cosine() -> Tensor:
    """Return the matrix that turns cepstra into energies: ``(_CEPSTRA, CHANNELS)``."""
    k, j = torch.arange(_CEPSTRA)[:, None], torch.arange(CHANNELS)
    matrix = torch.cos(math.pi * k * (j + 0.5) / CHANNELS) * math.sqrt(2 / CHANNELS)
    matrix[0] *= math.sqrt(0.5)
    return matrix


def _text(line: str) -> str:
    """Return the transcript of a line, which ends with the utterance's name in parentheses."""
    return normalised(re.sub(r"\s*\([^)]*\)\s*$", "", line))


# The Free Spoken Digit Dataset, a subset: 600 recordings to train and 300 to test, one digit each, 8 kHz.

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


def recordings() -> list[Digit]:
    """Load all recordings from ``$HRF_DATA/fsdd-subset``, in the order of their names."""
    found = []
    with tarfile.open(fileobj=io.BytesIO(_read(_ARCHIVE, _SHA256))) as tar:
        for member in sorted(tar.getmembers(), key=lambda member: member.name):
            parts, file = _NAME.fullmatch(member.name), tar.extractfile(member)
            if parts is None or file is None:
                continue
            digit, speaker, index = parts.groups()
            test = int(index) < _TEST
            samples = read_audio(file.read())
            found.append(Digit(Path(member.name).stem, speaker, DIGITS[int(digit)], test, samples))
    return found


def spoken_digits(*, channels: int = 80) -> Speech:
    """Load the digits, one per utterance, with so many channels of features."""
    speech = Speech([], [])
    for digit in recordings():
        side = speech.test if digit.test else speech.train
        side.append(Utterance(digit.name, digit.speaker, log_mel(digit.samples, channels), digit.text))
    return speech


def digit_strings(*, channels: int = 40, counts: tuple[int, int] = (600, 60), seed: int = 0) -> Speech:
    """Make strings of up to 12 digits of one speaker, with running features, to train a model for streams.

    Args:
        channels: channels of the features.
        counts: strings to train and to test with.
        seed: of digits and pauses.
    """
    generator = Generator().manual_seed(seed)
    digits = recordings()
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


# LibriSpeech (Panayotov et al., 2015): the official archives, or any part of them in the same layout.

_ADDRESS = "https://www.openslr.org/resources/12/{}.tar.gz"
# SHA-256 of the archives by the name of the part.
ARCHIVES = {
    "dev-clean": "76f87d090650617fca0cac8f88b9416e0ebf80350acb97b343a85fa903728ab3",
    "dev-other": "12661c48e8c3fe1de2c1caa4c3e135193bfb1811584f11f569dd12645aa84365",
    "test-clean": "39fde525e59672dc6d1551919b1478f724438a95aa55f874b576be21967e6c23",
    "test-other": "d09c181bba5cf717b3dee7d4d592af11a3ee3a09e08ae025c5506f6ebe961c29",
    "train-clean-100": "d4ddd1d5a6ab303066f14971d768ee43278a5f2a0aa43dc716b0e64ecbbbf6e2",
    "train-clean-360": "146a56496217e96c14334a160df97fffedd6e0a04e66b9c5af0d40be3c792ecf",
    "train-other-500": "ddb22f27f96ec163645d53215559df6aa36515f26e01dd70798188350adcb6d2",
}
_PIECE = 1 << 20  # bytes that are read at a time


def librispeech(part: str, folder: str = "librispeech", *, channels: int = 80) -> list[Utterance]:
    """Load a part of LibriSpeech, in the order of its names.

    Args:
        part: a key of `ARCHIVES`.
        folder: the folder of ``$HRF_DATA`` with ``LibriSpeech/``; by default where `download_librispeech` puts it.
        channels: channels of the features.
    """
    place = data_folder() / folder / "LibriSpeech" / part
    if not place.is_dir():
        raise MissingData(
            f"{place} is not there; download it with hrf_paper.speech.corpora.download_librispeech({part!r})"
        )
    return [
        Utterance(name, name.split("-")[0], log_mel(read_audio(path.parent / f"{name}.flac"), channels), text)
        for path in sorted(place.glob("*/*/*.trans.txt"))
        for name, text in _transcripts(path)
    ]


def download_librispeech(part: str) -> Path:
    """Download an official archive, check it and unpack it; return the folder with ``LibriSpeech/``."""
    if part not in ARCHIVES:
        raise ValueError(f"LibriSpeech has no part {part!r}; expected one of {', '.join(ARCHIVES)}")
    place = folder(data_folder() / "librispeech")
    archive = place / f"{part}.tar.gz"
    received = sha256()
    try:
        with urlopen(_ADDRESS.format(part), timeout=60) as answer, archive.open("wb") as file:
            while piece := answer.read(_PIECE):
                received.update(piece)
                file.write(piece)
        if received.hexdigest() != ARCHIVES[part]:
            raise ValueError(f"{part} has the SHA-256 {received.hexdigest()}; expected {ARCHIVES[part]}")
        with tarfile.open(archive) as tar:
            tar.extractall(place, filter="data")
    except OSError as error:
        raise MissingData(f"{_ADDRESS.format(part)} cannot be downloaded: {error}") from error
    finally:
        archive.unlink(missing_ok=True)
    return place


def _transcripts(path: Path) -> list[tuple[str, str]]:
    """Return names and texts of a chapter."""
    rows = [line.split(maxsplit=1) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [(name, normalised(" ".join(text))) for name, *text in rows]
