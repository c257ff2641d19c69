"""LibriSpeech (Panayotov et al., 2015): the official archives, or any part of them in the same layout."""

from __future__ import annotations

import tarfile
from hashlib import sha256
from pathlib import Path
from urllib.request import urlopen

from hrf.report import folder as made
from hrf_paper.datasets import MissingData
from hrf_paper.datasets.files import data_folder
from hrf_paper.speech.audio import log_mel, read_audio
from hrf_paper.speech.utterances import Utterance, normalised

__all__ = ["ARCHIVES", "download_librispeech", "librispeech"]

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


def librispeech(part: str, folder: Path | None = None, *, channels: int = 80) -> list[Utterance]:
    """Load a part of LibriSpeech, in the order of its names.

    Args:
        part: a key of `ARCHIVES`.
        folder: the folder with ``LibriSpeech/``; by default ``$HRF_DATA/librispeech``, where
            `download_librispeech` puts it.
        channels: channels of the features.
    """
    place = _place(folder) / "LibriSpeech" / part
    if not place.is_dir():
        raise MissingData(
            f"{place} is not there; download it with hrf_paper.speech.librispeech.download_librispeech({part!r})"
        )
    return [
        Utterance(name, name.split("-")[0], log_mel(read_audio(path.parent / f"{name}.flac"), channels), text)
        for path in sorted(place.glob("*/*/*.trans.txt"))
        for name, text in _transcripts(path)
    ]


def download_librispeech(part: str, folder: Path | None = None) -> Path:
    """Download an official archive, check it and unpack it; return the folder with ``LibriSpeech/``."""
    if part not in ARCHIVES:
        raise ValueError(f"LibriSpeech has no part {part!r}; expected one of {', '.join(ARCHIVES)}")
    place = made(_place(folder))
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


def _place(folder: Path | None) -> Path:
    return folder or data_folder() / "librispeech"


def _transcripts(path: Path) -> list[tuple[str, str]]:
    """Return names and texts of a chapter."""
    rows = [line.split(maxsplit=1) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [(name, normalised(" ".join(text))) for name, *text in rows]
