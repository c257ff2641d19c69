"""Which kernels serve a call with a map: those of Triton on an accelerator, the compiled core on a CPU, or none.

Triton comes with builds of PyTorch for accelerators; without it PyTorch's operations serve.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from torch import Tensor

from hrf._attention.call import Call
from hrf._attention.compiled_maps import CompiledMaps

if TYPE_CHECKING:
    from hrf._attention.triton.maps import TritonMaps

__all__ = ["accelerated", "kernels_for"]

# Tests set it, to run kernels in Triton's interpreter on tensors of the CPU.
ON_CPU = False


@cache
def _is_installed() -> bool:
    return find_spec("triton") is not None


def accelerated(call: Call, query: Tensor, key: Tensor, value: Tensor) -> TritonMaps | None:
    """Return the call as Triton's kernels serve it, ``None`` where they do not: on a CPU above all."""
    if not (query.is_cuda or ON_CPU) or not _is_installed():
        return None
    from hrf._attention.triton.maps import TritonMaps

    return TritonMaps.of(call, query, key, value)


def kernels_for(call: Call, query: Tensor, key: Tensor, value: Tensor) -> TritonMaps | CompiledMaps | None:
    """Return the call as kernels serve it, ``None`` where PyTorch's operations have to."""
    return accelerated(call, query, key, value) or CompiledMaps.of(call, query, key, value)
