"""Flush denormal numbers to zero for a while: arithmetic with them is slow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["flushed_denormals", "flushes_denormals"]


def flushes_denormals() -> bool:
    """Return whether torch, in this thread, takes denormal numbers for zero."""
    # PyTorch has a setter alone.
    return float(torch.tensor(1e-40) * 1) == 0


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Flush denormal numbers to zero within the block, and restore the setting of the thread after it."""
    before = flushes_denormals()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
