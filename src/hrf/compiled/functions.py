"""exp2 for loops over many numbers, which a compiler can turn into loops over vectors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, overload

__all__ = ["exp2"]

_TAYLOR = [np.float32(math.log(2) ** k / math.factorial(k)) for k in range(8)]
_1, _T1, _T2, _T3, _T4, _T5, _T6, _T7 = _TAYLOR  # as long as rounding demands for |t| ≤ ½
_NOTHING = np.float32(-127)  # exponent of 0


def exp2(t: float) -> float:
    """2^t, for t up to 127; what float32 does not hold as a normal number is 0."""
    return 2**t


@overload(exp2, jit_options={"error_model": "numpy", "fastmath": {"contract"}})  # type: ignore[untyped-decorator]
def _exp2(t: Any) -> Any:
    def usual(t: Any) -> Any:
        return 2.0**t

    def polynomial(t: Any) -> Any:
        t = max(t, _NOTHING)
        whole = np.rint(t)
        z = t - whole
        power = _1 + z * (_T1 + z * (_T2 + z * (_T3 + z * (_T4 + z * (_T5 + z * (_T6 + z * _T7))))))
        return power * _float_of_bits((np.int32(whole) + np.int32(127)) << np.int32(23))

    return polynomial if t == types.float32 else usual


@intrinsic  # type: ignore[untyped-decorator]
def _float_of_bits(context: Any, bits: Any) -> Any:
    """The number whose bits are those of an integer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate
