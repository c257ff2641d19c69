"""Files of data sets: read from a folder or downloaded, and checked by their SHA-256."""

from __future__ import annotations

import gzip
import os
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

from hrf.report import folder, write

__all__ = ["MissingData", "Source", "data_folder", "read_bytes"]


class MissingData(FileNotFoundError, ValueError):
    """A data set is neither in the folder nor available for download."""


class Source(NamedTuple):
    """Place where a file is published.

    Attributes:
        url: its address.
        sha256: the checksum of its contents.
    """

    url: str
    sha256: str


def data_folder() -> Path:
    """Return the folder of data sets: ``$HRF_DATA``, or ``~/.cache/hrf``."""
    return Path(os.environ.get("HRF_DATA") or Path.home() / ".cache" / "hrf")


def read_bytes(path: Path, source: Source, *, download: bool) -> bytes:
    """Return the contents of a file stored compressed as ``path``, downloaded to it if necessary.

    Raises:
        MissingData: if the file does not exist and cannot be downloaded.
        ValueError: if its contents differ from the published file.
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
    write(folder(path.parent) / path.name, gzip.compress(data))
    return data


def _checked(data: bytes, name: str, source: Source) -> bytes:
    if (received := sha256(data).hexdigest()) != source.sha256:
        raise ValueError(f"{name} has the SHA-256 {received}; expected {source.sha256}")
    return data
