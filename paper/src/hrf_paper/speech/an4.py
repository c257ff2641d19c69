"""AN4, the census corpus of Carnegie Mellon: 948 utterances to train and 130 to test, as cepstra.

The 13 cepstra of a frame become 26 smoothed log-mel energies by the inverse cosine transform, so that masks and warps
of the frequency axis make sense. Each utterance loses the mean of all utterances of its speaker, who has one recording
session: the mean of one or two seconds would depend on what is said. Channels are divided by their deviation over the
training utterances.
"""

from __future__ import annotations

import io
import math
import re
import tarfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hrf_paper.datasets import MissingData
from hrf_paper.datasets.files import data_folder
from hrf_paper.speech.utterances import Speech, Utterance, normalised

__all__ = ["CHANNELS", "an4"]

CHANNELS = 26
_CEPSTRA = 13
_FILES = {
    "an4-feat-mfc.tar.gz": "7cf8d96d16351ae207b4b87aa5e83c44669711ff420a26224d99344625d55525",
    "etc/an4_train.fileids": "a8a4c7f10776bb7d6804b9f1acd0bb6eedd9978490b514c185cebc216a0efed6",
    "etc/an4_train.transcription": "6eb103966af7ed10c8d44651bc51a0b2ddd052bf430d60efcf3a7e7b9d9f4651",
    "etc/an4_test.fileids": "6860eb5ead0e3219b8aa6510fd1a0f1c0717c560bb18928329728ab2614261ce",
    "etc/an4_test.transcription": "a36c14d7473eeba948ea64aa95be1e4fa42321ae6d535ea91e2381cb16faacfd",
}


def an4(folder: Path | None = None) -> Speech:
    """Load AN4.

    Args:
        folder: the folder with ``an4-mfcc/``; ``$HRF_DATA`` by default, or ``~/.cache/hrf``.
    """
    files = _read((folder or data_folder()) / "an4-mfcc")
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


def _read(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files, checked."""
    found = {}
    for name, expected in _FILES.items():
        path = folder / name
        if not path.is_file():
            raise MissingData(
                f"{path} is not there; set HRF_DATA to the folder that holds {folder.name}/ with the cepstra of AN4"
            )
        found[name] = path.read_bytes()
        if (received := sha256(found[name]).hexdigest()) != expected:
            raise ValueError(f"{path} has the SHA-256 {received}; expected {expected}")
    return found


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
