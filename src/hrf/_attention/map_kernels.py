"""Which kernels serve a call with a map: those of Triton on an accelerator, the compiled core on a CPU, or none.

Triton comes with builds of PyTorch for accelerators; without one of version 3.5 or later PyTorch's operations serve.
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

__all__ = ["accelerated", "is_installed", "kernels_for"]

_OLDEST = 3, 5  # as the extra ``gpu``

# Tests set it, to run kernels in Triton's interpreter on tensors of the CPU.
ON_CPU = False


@cache
def is_installed() -> bool:
    """Whether there is a Triton whose loops take the options of the kernels; PyTorch 2.7 and 2.8 bring older ones."""
    if find_spec("triton") is None:
        return False
    import triton

    return tuple(map(int, triton.__version__.split(".")[:2])) >= _OLDEST


def accelerated(call: Call, query: Tensor, key: Tensor, value: Tensor) -> TritonMaps | None:
    """Return the call as Triton's kernels serve it, ``None`` where they do not: on a CPU above all."""
    if not (query.is_cuda or ON_CPU) or not is_installed():
        return None
    from hrf._attention.triton.maps import TritonMaps

    return TritonMaps.of(call, query, key, value)


def kernels_for(call: Call, query: Tensor, key: Tensor, value: Tensor) -> TritonMaps | CompiledMaps | None:
    """Return the call as kernels serve it, ``None`` where PyTorch's operations have to."""
    return accelerated(call, query, key, value) or CompiledMaps.of(call, query, key, value)
