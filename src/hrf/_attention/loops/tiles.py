"""Operations on tiles, small matrices whose columns are processed together: maxima, exponentials, signs.

The compiler vectorises loops over columns, but reloads per-column numbers in every row; these keep them in registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.polynomial import Chebyshev, Polynomial
from numpy.typing import NDArray

from hrf._attention.loops.jit import jit

__all__ = ["LARGEST", "LOWEST", "exponentials", "lowest_bit", "maxima", "tilt", "total_exponentials"]

Array = NDArray[np.float32]

LARGEST = 10 * math.log2(math.e)  # of γd² log₂ e / 2, as in summarised/read.py
LOWEST = -1e30  # finite, so that differences of scales are never NaN

_FLOAT, _INT = ir.FloatType(), ir.IntType(32)
# 2^z for |z| up to 1/2, with a relative error of 1e-7, less than the rounding of float32.
_POWERS = Chebyshev.interpolate(np.exp2, 5, domain=[-0.5, 0.5]).convert(kind=Polynomial).coef


def _constant(number: float, width: int) -> Any:
    scalar = ir.Constant(_FLOAT, float(np.float32(number)))
    return ir.Constant(ir.VectorType(_FLOAT, width), [scalar] * width)


def _integers(number: int, width: int) -> Any:
    return ir.Constant(ir.VectorType(_INT, width), [ir.Constant(_INT, number)] * width)


def _exp2(builder: Any, t: Any, width: int) -> Any:
    """Return 2^t for a vector; t below −126 counts as −126, t above 126 as 126."""
    vector = ir.VectorType(_FLOAT, width)
    low, high = _constant(-126, width), _constant(126, width)
    t = builder.select(builder.fcmp_ordered(">", t, low), t, low)
    t = builder.select(builder.fcmp_ordered("<", t, high), t, high)
    rint = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(vector, [vector]), f"llvm.rint.v{width}f32"
    )
    whole = builder.call(rint, [t])
    z = builder.fsub(t, whole)
    power = _constant(_POWERS[-1], width)
    for coefficient in _POWERS[-2::-1]:
        product = builder.fmul(power, z, flags=("contract",))
        power = builder.fadd(product, _constant(coefficient, width), flags=("contract",))
    exponent = builder.add(builder.fptosi(whole, ir.VectorType(_INT, width)), _integers(127, width))
    return builder.fmul(power, builder.bitcast(builder.shl(exponent, _integers(23, width)), vector))


def _down_columns(width: int, step: Callable[..., Any]) -> Any:
    """Return a function that goes down some columns of a tile.

    ``step(builder, place, kept, given)`` returns the next vector to keep, from the place of the tile's next row, the
    vector kept so far and one that is given.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def run(typing: Any, tile: Any, n: Any, given: Any, kept: Any, column: Any) -> Any:
        """Read and write ``kept`` at the columns, before and after n rows of the tile."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kinds = signature.args[0], signature.args[2], signature.args[3]
            given = arguments[0], arguments[2], arguments[3]
            arrays = [context.make_array(k)(context, builder, u) for k, u in zip(kinds, given, strict=True)]
            vector, column = ir.VectorType(_FLOAT, width), arguments[4]

            def at(array: Any, offset: Any) -> Any:
                return builder.bitcast(builder.gep(array.data, [offset]), vector.as_pointer())

            numbers, first = (builder.load(at(array, column), align=4) for array in arrays[1:])
            total = cgutils.alloca_once_value(builder, first)
            row_length = builder.extract_value(arrays[0].shape, 1)
            with cgutils.for_range(builder, arguments[1]) as loop:
                place = at(arrays[0], builder.add(builder.mul(loop.index, row_length), column))
                builder.store(step(builder, place, builder.load(total), numbers), total)
            builder.store(builder.load(total), at(arrays[2], column), align=4)
            return context.get_dummy_value()

        return types.void(tile, types.intp, given, kept, types.intp), generate

    return run


def _maximum(width: int) -> Any:
    def step(builder: Any, place: Any, kept: Any, _: Any) -> Any:
        value = builder.load(place, align=4)
        return builder.select(builder.fcmp_ordered(">", value, kept), value, kept)

    return _down_columns(width, step)


def _exponential(width: int) -> Any:
    def step(builder: Any, place: Any, kept: Any, given: Any) -> Any:
        value = _exp2(builder, builder.fsub(builder.load(place, align=4), given), width)
        builder.store(value, place, align=4)
        return builder.fadd(kept, value)

    return _down_columns(width, step)


def _total(width: int) -> Any:
    def step(builder: Any, place: Any, kept: Any, given: Any) -> Any:
        value = _exp2(builder, builder.fsub(builder.load(place, align=4), given), width)
        return builder.fadd(kept, value)

    return _down_columns(width, step)


_total_32 = _total(32)
_maximum_32, _maximum_16, _maximum_8 = (_maximum(width) for width in (32, 16, 8))
_exponential_32, _exponential_16, _exponential_8 = (_exponential(width) for width in (32, 16, 8))


@jit
def maxima(tile: Array, n: int, top: Array) -> None:
    """Raise ``top``, one number per column, to the largest in the first n rows."""
    column, columns = 0, tile.shape[1]
    while column + 32 <= columns:
        _maximum_32(tile, n, top, top, column)
        column += 32
    if column + 16 <= columns:
        _maximum_16(tile, n, top, top, column)
        column += 16
    if column < columns:
        _maximum_8(tile, n, top, top, column)


@jit
def exponentials(tile: Array, n: int, top: Array, sums: Array) -> None:
    """Turn t into 2^(t − top) in the first n rows, and add them up per column."""
    column, columns = 0, tile.shape[1]
    while column + 32 <= columns:
        _exponential_32(tile, n, top, sums, column)
        column += 32
    if column + 16 <= columns:
        _exponential_16(tile, n, top, sums, column)
        column += 16
    if column < columns:
        _exponential_8(tile, n, top, sums, column)


@jit
def total_exponentials(tile: Array, n: int, top: Array, sums: Array) -> None:
    """Add up 2^(t − top) per column over the first n rows; the number of columns is a multiple of 32."""
    for column in range(0, tile.shape[1], 32):
        _total_32(tile, n, top, sums, column)


@intrinsic  # type: ignore[untyped-decorator]
def tilt(
    typing: Any,
    scores: Any,
    spread: Any,
    log_spread: Any,
    widths: Any,
    log_widths: Any,
    limits: Any,
    out: Any,
    tops: Any,
    column: Any,
) -> Any:
    """Write log₂ W̃ = s + e of a key for 32 groups from a column on; `LOWEST` where the group meets the key exactly.

    e = γd² log₂ e / 2, at most `LARGEST`. The key is exact where s + log₂ √expm1(γd²) is over a limit; the root's
    logarithm is the lesser of log₂ √(γd²) + e/2 + e² log 2 / 12, its series, and e: right to 0.05.

    Args:
        typing: context of the compiler.
        scores: s.
        spread: d² log₂ e / 2.
        log_spread: log₂ √d².
        widths: γ.
        log_widths: log₂ √γ.
        limits: one per group.
        out: written.
        tops: largest of ``out`` so far; raised.
        column: the first group.

    Returns:
        An integer whose bit i says that group ``column + i`` meets the key exactly.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(_FLOAT, 32)

        def place(i: int) -> Any:
            array = context.make_array(signature.args[i])(context, builder, arguments[i])
            return builder.bitcast(builder.gep(array.data, [arguments[-1]]), vector.as_pointer())

        def load(i: int) -> Any:
            return builder.load(place(i), align=4)

        def spread_out(number: Any) -> Any:
            first = builder.insert_element(ir.Constant(vector, ir.Undefined), number, ir.Constant(_INT, 0))
            return builder.shuffle_vector(first, first, _integers(0, 32))

        def lesser(one: Any, other: Any) -> Any:
            return builder.select(builder.fcmp_ordered("<", one, other), one, other)

        score, e = load(0), builder.fmul(spread_out(arguments[1]), load(3))
        series = builder.fadd(builder.fmul(e, _constant(math.log(2) / 12, 32)), _constant(0.5, 32))
        series = builder.fadd(builder.fmul(series, e), builder.fadd(spread_out(arguments[2]), load(4)))
        over = builder.fcmp_ordered(">", builder.fadd(score, lesser(series, e)), load(5))
        tilted = builder.fadd(score, lesser(e, _constant(LARGEST, 32)))
        tilted = builder.select(over, _constant(LOWEST, 32), tilted)
        builder.store(tilted, place(6), align=4)
        top = load(7)
        builder.store(builder.select(builder.fcmp_ordered(">", tilted, top), tilted, top), place(7), align=4)
        return builder.bitcast(over, _INT)

    kinds = scores, types.float32, types.float32, widths, log_widths, limits, out, tops, types.intp
    return types.uint32(*kinds), generate


@intrinsic  # type: ignore[untyped-decorator]
def lowest_bit(typing: Any, bits: Any) -> Any:
    """Return the place of the lowest bit that is set."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint32(types.uint32), generate
