"""The compiler of the controllers, which run a hundred times per second of simulated time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

__all__ = ["jit"]

Function = TypeVar("Function", bound=Callable[..., Any])


def jit(function: Function) -> Function:
    """Compile a function at its first call, and keep it on disk."""
    compiled: Any = numba.njit(cache=True)(function)
    return compiled
