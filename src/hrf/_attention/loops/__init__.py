"""Loops that are no matrix products, compiled by Numba where it is installed: ``hybrid-random-features[fast]``.

Without it, or on an accelerator, the same results come from PyTorch's operations alone.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

from hrf import tuning
from hrf.numerics import is_traced

__all__ = ["arrays", "each", "installed", "parts", "serves"]


@cache
def installed() -> bool:
    """Return whether Numba is installed and works; one warning says so where it is installed and does not."""
    try:
        import numba

        if numba.config.DISABLE_JIT:
            return False
        from hrf._attention.loops import codes, pairs  # noqa: F401 (whether they can be imported)
    except Exception as error:  # a damaged or unsuitable Numba raises errors of many types
        if not isinstance(error, ModuleNotFoundError) or error.name != "numba":
            reason = " ".join(str(error).split()) or type(error).__name__
            warnings.warn(
                f"Numba is installed but does not work ({reason}); PyTorch's slower operations take over",
                RuntimeWarning,
                stacklevel=2,
            )
        return False
    return True


def serves(*tensors: Tensor) -> bool:
    """Return whether compiled loops can read these tensors: on the CPU, in float32 or float64."""
    if not installed() or is_traced():
        return False
    return all(t.is_cpu and t.dtype in (torch.float32, torch.float64) for t in tensors)


def parts(tokens: Tensor) -> list[tuple[int, slice]]:
    """Cut ``(R, L, ·)`` into rows, and long rows into parts, so that no thread waits long for another."""
    n_rows, length = tokens.shape[:2]
    size = max(tuning.TASK_TOKENS, -(-length * n_rows // (tuning.TASKS_PER_THREAD * torch.get_num_threads())))
    return [(row, slice(start, start + size)) for row in range(n_rows) for start in range(0, length, size)]


def arrays(*tensors: Tensor) -> tuple[Any, ...]:
    """Return tensors as NumPy arrays; tensors to write to have to be contiguous."""
    return tuple(t.detach().contiguous().numpy() for t in tensors)


def each(function: Callable[..., object], tasks: Iterable[tuple[Any, ...]]) -> None:
    """Call a compiled function, which releases the interpreter's lock, once per task.

    As many calls run at a time as PyTorch has threads, in these very threads where possible: they spin for some
    milliseconds after every operation, and threads of our own would have to share the processor with them.
    """
    pending = iter(list(tasks))
    errors: list[BaseException] = []

    def work(_: object = None) -> None:
        try:
            for task in pending:
                if errors:
                    break
                function(*task)
        except BaseException as error:  # an error would be lost in a foreign thread
            errors.append(error)

    n_threads, team = torch.get_num_threads(), _team()
    if n_threads == 1:
        work()
    elif team is None:
        with ThreadPoolExecutor(n_threads) as pool:
            pool.map(work, range(n_threads))
    else:
        team(_WORK(work), None, n_threads, 0)
    if errors:
        raise errors[0]


_WORK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@cache
def _team() -> Callable[..., None] | None:
    """Return a function that calls another in every OpenMP thread, if PyTorch uses OpenMP."""
    if "backend: OpenMP" not in torch.__config__.parallel_info():
        return None
    try:
        team: Any = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):
        return None
    team.argtypes, team.restype = [_WORK, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None
    return cast("Callable[..., None]", team)
