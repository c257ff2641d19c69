"""Files of data sets: found in a folder or fetched, and the ones that were meant."""

from __future__ import annotations

import gzip
import os
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

__all__ = ["MissingData", "Source", "data_folder", "read_bytes"]


class MissingData(FileNotFoundError, ValueError):
    """A data set is neither in the folder nor to be had."""


class Source(NamedTuple):
    """Where a file is published.

    Attributes:
        url: its address.
        sha256: of its contents.
    """

    url: str
    sha256: str


def data_folder() -> Path:
    """Where data sets are: ``$HRF_DATA``, or ``~/.cache/hrf``."""
    return Path(os.environ.get("HRF_DATA") or Path.home() / ".cache" / "hrf")


def read_bytes(path: Path, source: Source, *, download: bool) -> bytes:
    """The contents of a file that is kept compressed as ``path``, fetched and put there if need be.

    Raises:
        MissingData: if it is not there and cannot be fetched.
        ValueError: if its contents are not the ones that were published.
    """
    if path.is_file():
        try:
            data = gzip.decompress(path.read_bytes())
        except (OSError, EOFError) as error:
            raise ValueError(
                f"{path} cannot be read as gzip: {error}; remove it to have it fetched"
            ) from error
        return _checked(data, str(path), source)
    hint = f"set HRF_DATA to the folder that holds {path.parent.name}/"
    if not download:
        raise MissingData(f"{path} is not there; {hint}")
    try:
        with urlopen(source.url, timeout=60) as answer:
            data = _checked(answer.read(), source.url, source)
    except OSError as error:
        raise MissingData(
            f"{path} is not there and {source.url} cannot be reached ({error}); {hint}"
        ) from error
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_bytes(gzip.compress(data))
    part.replace(path)  # whole or not at all
    return data


def _checked(data: bytes, name: str, source: Source) -> bytes:
    if (received := sha256(data).hexdigest()) != source.sha256:
        raise ValueError(f"{name} has the SHA-256 {received}; expected {source.sha256}")
    return data
