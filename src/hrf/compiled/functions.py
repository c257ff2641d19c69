"""exp, exp2, cos and sin for loops over many numbers, which a compiler can turn into loops over vectors.

Those of float32 are Taylor polynomials as long as rounding demands. Those of float64 are the usual ones.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, overload

__all__ = ["cos_sin", "exp", "exp2"]

_1, _2, _3, _4, _5, _6, _7, _8, _9 = (np.float32(1 / math.factorial(k)) for k in range(1, 10))
_LN2, _LOG2E = np.float32(math.log(2)), np.float32(math.log2(math.e))
_LEAST = np.float32(-126)  # of exponents of normal numbers

# π/2 in three parts, of which the first two have so few digits that products with small integers are exact.
_QUARTERS = np.float32(2 / math.pi)
_TURN_1 = np.float32(1.5703125)
_TURN_2 = np.float32(0.000483751296997)
_TURN_3 = np.float32(math.pi / 2 - float(_TURN_1) - float(_TURN_2))

_OPTIONS = {
    "error_model": "numpy",
    "fastmath": {"contract"},
}  # in this order: the parts of π/2 would lose their point


def exp2(t: float) -> float:
    """2^t, for t up to 127; what float32 does not hold as a normal number becomes the least of them."""
    return 2**t


def exp(t: float) -> float:
    """e^t, likewise."""
    return math.exp(t)


def cos_sin(t: float) -> tuple[float, float]:
    """cos t and sin t, in float32 for |t| up to 1,000."""
    return math.cos(t), math.sin(t)


@overload(exp2, jit_options=_OPTIONS)
def _exp2(t: Any) -> Any:
    def usual(t: Any) -> Any:
        return 2.0**t

    def polynomial(t: Any) -> Any:
        t = max(t, _LEAST)
        whole = np.rint(t)
        z = (t - whole) * _LN2
        power = _1 + z * (_1 + z * (_2 + z * (_3 + z * (_4 + z * (_5 + z * (_6 + z * _7))))))
        return power * _float_of_bits((np.int32(whole) + np.int32(127)) << np.int32(23))

    return polynomial if t == types.float32 else usual


@overload(exp, jit_options=_OPTIONS)
def _exp(t: Any) -> Any:
    def usual(t: Any) -> Any:
        return math.exp(t)

    def polynomial(t: Any) -> Any:
        return exp2(t * _LOG2E)

    return polynomial if t == types.float32 else usual


@overload(cos_sin, jit_options=_OPTIONS)
def _cos_sin(t: Any) -> Any:
    def usual(t: Any) -> Any:
        return math.cos(t), math.sin(t)

    def polynomial(t: Any) -> Any:
        whole = np.rint(t * _QUARTERS)
        z = ((t - whole * _TURN_1) - whole * _TURN_2) - whole * _TURN_3
        s = z * z
        sine = z * (_1 - s * (_3 - s * (_5 - s * (_7 - s * _9))))
        cosine = _1 - s * (_2 - s * (_4 - s * (_6 - s * _8)))
        quarter = np.int32(whole)
        if quarter & np.int32(1):
            cosine, sine = -sine, cosine
        if quarter & np.int32(2):
            cosine, sine = -cosine, -sine
        return cosine, sine

    return polynomial if t == types.float32 else usual


@intrinsic
def _float_of_bits(context: Any, bits: Any) -> Any:
    """The number whose bits are those of an integer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate
