"""How loops are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

__all__ = ["LANES", "jit"]

LANES = 8  # rows of working memory are multiples of it: that many numbers are multiplied at once

Function = TypeVar("Function", bound=Callable[..., Any])


def jit(function: Function) -> Function:
    """Compile a function at its first call and keep it on disk.

    Sums may be taken in another order, and products and sums in one step; that is all of `fastmath` it has.
    """
    compiled: Function = numba.njit(
        nogil=True, cache=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz"}
    )(function)
    return compiled
