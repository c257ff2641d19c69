"""Atomic writes: a file appears whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["folder", "write"]


def folder(path: Path) -> Path:
    """Make the directory if it is missing; raise ``OSError`` if it cannot hold new files."""
    with _named(path):
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return path


def write(path: Path, content: bytes) -> None:
    """Write a draft beside the file and move it into place, so that nobody ever sees half of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with _named(path):
        try:
            draft.write_bytes(content)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turn errors of the file system into a sentence that names the path."""
    try:
        yield
    except OSError as error:
        raise OSError(f"cannot write {path}: {error.strerror or error}") from error
