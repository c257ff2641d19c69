"""The Free Spoken Digit Dataset, a subset: 600 recordings to train and 300 to test, one digit each, 8 kHz."""

from __future__ import annotations

import io
import re
import tarfile
from hashlib import sha256
from pathlib import Path

from hrf_paper.datasets import MissingData
from hrf_paper.datasets.files import data_folder
from hrf_paper.speech.audio import log_mel, read_audio
from hrf_paper.speech.utterances import Speech, Utterance

__all__ = ["DIGITS", "spoken_digits"]

DIGITS = ("ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE")
_ARCHIVE = Path("fsdd-subset") / "fsdd-flac.tar.gz"
_SHA256 = "14c52221ca613e33e532d5f029feded18a047f3f94cb24e91d7f43350187c5ad"
_NAME = re.compile(r"recordings/(\d)_(\w+)_(\d+)\.flac")
_TEST = 5  # recordings with a smaller index are for the test: the data set's own rule


def spoken_digits(folder: Path | None = None, *, channels: int = 80) -> Speech:
    """Load the digits.

    Args:
        folder: the folder with ``fsdd-subset/``; ``$HRF_DATA`` by default, or ``~/.cache/hrf``.
        channels: channels of the features.
    """
    path = (folder or data_folder()) / _ARCHIVE
    if not path.is_file():
        raise MissingData(f"{path} is not there; set HRF_DATA to the folder that holds {_ARCHIVE.parent}/")
    content = path.read_bytes()
    if (received := sha256(content).hexdigest()) != _SHA256:
        raise ValueError(f"{path} has the SHA-256 {received}; expected {_SHA256}")
    speech = Speech([], [])
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        for member in sorted(tar.getmembers(), key=lambda member: member.name):
            parts, file = _NAME.fullmatch(member.name), tar.extractfile(member)
            if parts is None or file is None:
                continue
            digit, speaker, index = parts.groups()
            features = log_mel(read_audio(file.read()), channels)
            name = Path(member.name).stem
            side = speech.test if int(index) < _TEST else speech.train
            side.append(Utterance(name, speaker, features, DIGITS[int(digit)]))
    return speech
