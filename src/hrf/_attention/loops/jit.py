"""The compiler's options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

__all__ = ["jit"]

Function = TypeVar("Function", bound=Callable[..., Any])


def jit(function: Function) -> Function:
    """Compile a function at its first call and keep it on disk, if there is a place for it.

    It releases the interpreter's lock. Sums may be reordered, and a product and a sum fused; no other part of
    ``fastmath`` is on.
    """
    options = {"nogil": True, "error_model": "numpy", "fastmath": {"contract", "reassoc", "nsz"}}
    try:
        compiled: Function = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no folder can be written to
        compiled = numba.njit(**options)(function)
    return compiled
