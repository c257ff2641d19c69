"""The compiled core: loops other than matrix products of tensors, in C++, chosen by instruction set at run time.

`run` calls a function of ``core.cpp`` with a structure of 8-byte fields: the address of a tensor, an integer or a float
each, in the order of the structure. Everything here has a twin in PyTorch's operations, which is the definition, and
serves where there is no core: on accelerators, and where no compiler was found at installation.

``HRF_CORE=avx512``, ``avx2``, ``baseline`` or ``off`` chooses by hand.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import struct
import warnings
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from hrf import tuning
from hrf.numerics import is_traced

__all__ = ["Prepared", "found", "instructions", "run", "serves", "task_tokens"]

INSTRUCTIONS = ("baseline", "avx2", "avx512")  # from narrowest to widest, as `best_instructions` counts them

Field = Tensor | int | float | None


@cache
def instructions() -> str | None:
    """Return the instruction set in use: the widest that the processor grants, or the one that is asked for.

    ``None`` is no core; one warning says so where it is missing.
    """
    wanted = os.environ.get("HRF_CORE", "")
    if wanted == "off":
        return None
    if (build := Path(__file__).parents[3] / "hatch_build.py").exists():  # an editable install
        runpy.run_path(str(build))["compile_core"]()
    if wanted not in ("", *INSTRUCTIONS):
        raise ValueError(f"HRF_CORE is {wanted!r}; expected one of {', '.join(INSTRUCTIONS)} or off")
    baseline = _file("baseline")
    if not baseline.exists():
        warnings.warn(
            "hrf was installed without its compiled core: PyTorch's operations take over, and summarised attention, "
            "angular hybrids, causal attention and decoding are several times slower. Install a C++ compiler (such as "
            "g++) and reinstall hybrid-random-features; HRF_CORE=off silences this warning",
            RuntimeWarning,
            stacklevel=4,
        )
        return None
    granted = ctypes.CDLL(str(baseline)).best_instructions()
    if wanted and INSTRUCTIONS.index(wanted) > granted:
        raise ValueError(f"HRF_CORE is {wanted!r}; this processor grants {INSTRUCTIONS[granted]} at most")
    return wanted or next(n for n in reversed(INSTRUCTIONS[: granted + 1]) if _file(n).exists())


@cache
def _library() -> ctypes.CDLL | None:
    name = instructions()
    if name is None:
        return None
    library = ctypes.CDLL(str(_file(name)))
    library.set_team.argtypes = [ctypes.c_void_p]
    library.set_team(_team())
    for function in (library.found_sizes, library.take_found):
        function.restype = None
    library.found_sizes.argtypes = [ctypes.c_int64, ctypes.c_void_p]
    library.take_found.argtypes = [ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]
    return library


def _file(name: str) -> Path:
    return Path(__file__).with_name(f"core.{name}.so")


def _team() -> int | None:
    """Return the entry point of PyTorch's OpenMP threads, if it has them."""
    if "backend: OpenMP" not in torch.__config__.parallel_info():
        return None
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p).value
    except (AttributeError, OSError, TypeError):
        return None


def serves(*tensors: Tensor) -> bool:
    """Return whether the core can read these tensors: on the CPU, in float32 or float64, outside of compiled graphs."""
    if is_traced() or not all(t.is_cpu and t.dtype in (torch.float32, torch.float64) for t in tensors):
        return False
    return _library() is not None


class Prepared:
    """A call of the core whose arguments stay where they are."""

    def __init__(self, name: str, *fields: Field) -> None:
        library = _library()
        assert library is not None, "callers ask `serves` first"
        self._function = getattr(library, name)
        self._function.argtypes, self._function.restype = [ctypes.c_char_p, ctypes.c_int64], ctypes.c_int64
        self._name, self._fields = name, fields  # tensors are kept alive
        kinds = {t.dtype for t in fields if isinstance(t, Tensor) and t.is_floating_point()}
        if len(kinds) > 1:
            raise ValueError(f"{name}: {kinds}; expected one dtype")
        numbers = [_number(name, place, field) for place, field in enumerate(fields)]
        self._packed = struct.pack("".join("d" if isinstance(n, float) else "q" for n in numbers), *numbers)

    def __call__(self) -> int:
        """Call; return what the function returns."""
        found: int = self._function(self._packed, len(self._packed))
        if not found:
            raise RuntimeError(
                f"the compiled core does not fit this version of hrf ({self._name}): reinstall it"
            )
        return found


def run(name: str, *fields: Field) -> int:
    """Call a function of the core."""
    return Prepared(name, *fields)()


def _number(name: str, place: int, field: Field) -> int | float:
    if isinstance(field, Tensor):
        # The last line of defence: a wrong stride must never reach a pointer.
        if not (field.is_contiguous() and field.is_cpu):
            raise ValueError(f"{name}, field {place}: {tuple(field.shape)}, {field.stride()}, {field.device}")
        return field.data_ptr()
    return field if isinstance(field, float) else int(field or 0)


def found(handle: int) -> tuple[Tensor, Tensor]:
    """Return and free what `summarised_forward` found: rows of exact keys, and rows of queries with opened clusters."""
    library = _library()
    assert library is not None
    sizes = torch.zeros(2, dtype=torch.long)
    library.found_sizes(handle, sizes.data_ptr())
    n_exact, n_opened = sizes.tolist()
    exact, opened = torch.empty(n_exact, dtype=torch.int32), torch.empty(n_opened // 2, 2, dtype=torch.int32)
    library.take_found(handle, exact.data_ptr(), opened.data_ptr())
    return exact, opened


def task_tokens(rows: int, length: int) -> int:
    """Return how many tokens of a row are one task, so that no thread waits long for another."""
    tasks = tuning.TASKS_PER_THREAD * torch.get_num_threads()
    return max(tuning.TASK_TOKENS, -(-length * rows // tasks))
