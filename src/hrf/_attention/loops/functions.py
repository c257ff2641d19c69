"""exp, exp2, cos and sin for loops over many numbers, which a compiler can turn into loops over vectors.

In float32 they are Taylor polynomials as long as rounding demands; in float64 they are the usual functions.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, overload

__all__ = ["cos_sin", "exp", "exp2", "exp_both"]

_1, _2, _3, _4, _5, _6, _7, _8, _9 = (np.float32(1 / math.factorial(k)) for k in range(1, 10))
_LN2, _LOG2E, _QUARTERS = (np.float32(c) for c in (math.log(2), math.log2(math.e), 2 / math.pi))
_NOTHING = np.float32(-127)  # exponent of 0


def _parts(number: float) -> tuple[np.float32, np.float32, np.float32]:
    """Split a number into three terms; products of the first two with integers up to 4,096 are exact."""
    found = []
    for _ in range(2):
        mantissa, exponent = math.frexp(number)
        found.append(np.float32(math.ldexp(math.floor(mantissa * 2**12), exponent - 12)))
        number -= float(found[-1])
    return found[0], found[1], np.float32(number)


_LN2_1, _LN2_2, _LN2_3 = _parts(math.log(2))
_TURN_1, _TURN_2, _TURN_3 = _parts(math.pi / 2)

# Sums keep this order: in another, splitting the constants would be pointless.
_OPTIONS = {"error_model": "numpy", "fastmath": {"contract"}}


def exp2(t: float) -> float:
    """Return 2^t, for t up to 127; results below the normal range of float32 are 0."""
    return 2**t


def exp(t: float) -> float:
    """Return e^t, for t up to 88; results below the normal range of float32 are 0."""
    return math.exp(t)


def exp_both(t: float) -> tuple[float, float]:
    """Return e^t and e^−t, for |t| up to 87."""
    return math.exp(t), math.exp(-t)


def cos_sin(t: float) -> tuple[float, float]:
    """Return cos t and sin t; in float32, for |t| up to 6,000."""
    return math.cos(t), math.sin(t)


@overload(exp2, jit_options=_OPTIONS)  # type: ignore[untyped-decorator]
def _exp2(t: Any) -> Any:
    def usual(t: Any) -> Any:
        return 2.0**t

    def polynomial(t: Any) -> Any:
        t = max(t, _NOTHING)
        whole = np.rint(t)
        return _power((t - whole) * _LN2, whole)

    return polynomial if t == types.float32 else usual


@overload(exp, jit_options=_OPTIONS)  # type: ignore[untyped-decorator]
def _exp(t: Any) -> Any:
    def usual(t: Any) -> Any:
        return math.exp(t)

    def polynomial(t: Any) -> Any:
        t = max(t, _NOTHING * _LN2)
        whole = np.rint(t * _LOG2E)
        return _power(((t - whole * _LN2_1) - whole * _LN2_2) - whole * _LN2_3, whole)

    return polynomial if t == types.float32 else usual


@overload(exp_both, jit_options=_OPTIONS)  # type: ignore[untyped-decorator]
def _exp_both(t: Any) -> Any:
    def usual(t: Any) -> Any:
        e = math.exp(t)
        return e, 1 / e

    def polynomial(t: Any) -> Any:
        whole = np.rint(t * _LOG2E)
        z = ((t - whole * _LN2_1) - whole * _LN2_2) - whole * _LN2_3
        s, exponent = z * z, np.int32(whole)
        even = _1 + s * (_2 + s * (_4 + s * _6))
        odd = z * (_1 + s * (_3 + s * (_5 + s * _7)))
        return (
            (even + odd) * _float_of_bits((np.int32(127) + exponent) << np.int32(23)),
            (even - odd) * _float_of_bits((np.int32(127) - exponent) << np.int32(23)),
        )

    return polynomial if t == types.float32 else usual


@overload(cos_sin, jit_options=_OPTIONS)  # type: ignore[untyped-decorator]
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


def _power(z: float, whole: float) -> float:
    """Return e^z 2^whole, for |z| up to log(2)/2."""
    raise NotImplementedError


@overload(_power, jit_options=_OPTIONS)  # type: ignore[untyped-decorator]
def _of_parts(z: Any, whole: Any) -> Any:
    def polynomial(z: Any, whole: Any) -> Any:
        power = _1 + z * (_1 + z * (_2 + z * (_3 + z * (_4 + z * (_5 + z * (_6 + z * _7))))))
        return power * _float_of_bits((np.int32(whole) + np.int32(127)) << np.int32(23))

    return polynomial


@intrinsic  # type: ignore[untyped-decorator]
def _float_of_bits(context: Any, bits: Any) -> Any:
    """Reinterpret the bits of an integer as a float."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate
