"""Memory that one call of compiled loops leaves to the next.

The system hands out fresh memory page by page, each with an interruption: for attention over a thousand tokens, that
took a fifth of the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from hrf import tuning

__all__ = ["borrowed"]

Array = NDArray[np.float32]

_LINE = 16  # floats of a line of the cache
_kept: list[Array] = []  # what has been given back, oldest first
_lock = Lock()


@contextmanager
def borrowed(*shapes: tuple[int, ...]) -> Iterator[list[Array]]:
    """Lend arrays with arbitrary contents, each at the beginning of a line of the cache."""
    sizes = [math.prod(shape) for shape in shapes]
    places = list(accumulate((size + -size % _LINE for size in sizes), initial=0))
    memory = _taken(places[-1])
    try:
        yield [
            memory[place : place + size].reshape(shape)
            for place, size, shape in zip(places, sizes, shapes, strict=False)
        ]
    finally:
        _give_back(memory)


def _taken(size: int) -> Array:
    """Return the smallest array in store that has the size, or a new one."""
    with _lock:
        fitting = [place for place, array in enumerate(_kept) if len(array) >= size]
        if fitting:
            return _kept.pop(min(fitting, key=lambda place: len(_kept[place])))
    memory = np.empty(size + _LINE, np.float32)
    return memory[-memory.ctypes.data // memory.itemsize % _LINE :][:size]


def _give_back(memory: Array) -> None:
    """Store an array, and drop the oldest ones beyond `tuning.KEPT_FLOATS`."""
    with _lock:
        _kept.append(memory)
        while sum(map(len, _kept)) > tuning.KEPT_FLOATS:
            del _kept[0]
