"""One run at a time per directory."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["only_run"]

_NAME = ".lock"


@contextmanager
def only_run(place: Path) -> Iterator[None]:
    """Hold the lock of a directory while the block runs; a ``ValueError`` names the process that has it.

    The lock is on an open file, so that the system releases it when a process ends, however it ends: a file that is
    left behind locks nobody out. The file holds the number of the process. Windows has no such locks.
    """
    if sys.platform == "win32":
        yield
        return
    descriptor = _locked(place / _NAME)
    try:
        os.truncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        (place / _NAME).unlink(missing_ok=True)
        os.close(descriptor)


def _locked(path: Path) -> int:
    """Open and lock the file, again if another run removed it in between."""
    import fcntl

    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.read(descriptor, 20).decode(errors="replace").strip()
            os.close(descriptor)
            raise ValueError(
                f"process {owner or '(unknown)'} is running experiments in {path.parent}; wait for it, or choose "
                "another directory with --out"
            ) from error
        except OSError:
            return descriptor  # this file system has no locks
        with suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        os.close(descriptor)
