"""The compiler's options, and a cache on disk that may fail."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import numba
from numba.core.caching import FunctionCache

__all__ = ["jit"]

Function = TypeVar("Function", bound=Callable[..., Any])

_REASONS: list[str] = []  # what was wrong with the cache, once it was said


def jit(function: Function) -> Function:
    """Compile a function at its first call and keep it on disk, if there is a place for it.

    It releases the interpreter's lock. Sums may be reordered, and a product and a sum fused; no other part of
    ``fastmath`` is on.
    """
    options = {"nogil": True, "error_model": "numpy", "fastmath": {"contract", "reassoc", "nsz"}}
    compiled: Any = numba.njit(**options)(function)
    try:
        compiled._cache = _OptionalCache(function)
    except (RuntimeError, OSError) as error:  # no folder can be written to
        _warn(error)
    return compiled


class _OptionalCache(FunctionCache):  # type: ignore[misc, unused-ignore]
    """Numba's cache; where a file of it cannot be read or written, the function is compiled as if there were none."""

    def load_overload(self, *arguments: Any) -> Any:
        """Return the compiled function, ``None`` if it is not there or damaged."""
        try:
            return super().load_overload(*arguments)
        except Exception as error:  # unpickling a damaged file raises errors of many types
            _warn(error)
        try:
            self.flush()  # a damaged index would stay, a new one can be filled
        except Exception:
            self.disable()
        return None

    def save_overload(self, *arguments: Any) -> None:
        """Write the compiled function, if possible."""
        try:
            super().save_overload(*arguments)
        except Exception as error:
            self.disable()
            _warn(error)


def _warn(error: Exception) -> None:
    """Say once per process that compiled loops do not come from the cache."""
    if _REASONS:
        return
    _REASONS.append(" ".join(str(error).split()) or type(error).__name__)
    warnings.warn(
        f"Numba's cache of compiled loops cannot be used ({_REASONS[0]}); they are compiled again, which takes some "
        "seconds. NUMBA_CACHE_DIR names a folder for the cache",
        RuntimeWarning,
        stacklevel=2,
    )
