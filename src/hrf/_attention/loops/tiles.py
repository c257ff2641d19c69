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
from numpy.typing import NDArray

from hrf._attention.loops.jit import jit

__all__ = ["LARGEST", "exponentials", "lowest_bit", "maxima", "tilt"]

Array = NDArray[np.float32]

LARGEST = 10 * math.log2(math.e)  # of γd² log₂ e / 2, as in summarised/read.py

_FLOAT, _INT = ir.FloatType(), ir.IntType(32)
# 2^z = Σ (z log 2)^k / k!, for |z| up to 1/2, to the precision of float32.
_POWERS = [math.log(2) ** k / math.factorial(k) for k in range(8)]


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


@intrinsic  # type: ignore[untyped-decorator]
def tilt(
    typing: Any,
    weights: Any,
    spread: Any,
    widths: Any,
    limits: Any,
    out: Any,
    masses: Any,
    errors: Any,
    column: Any,
) -> Any:
    """Write W̃ = W exp(γd²/2) of a key for 32 groups from a column on, 0 where the group has to meet the key exactly.

    Args:
        weights: W.
        spread: d² log₂ e / 2.
        widths: γ.
        limits: of W² expm1(γd²), the squared error of a summary.
        out: W̃; written.
        masses: sums of W̃; added to.
        errors: sums of squared errors; added to.
        column: the first group.

    Returns:
        An integer whose bit i says that group ``column + i`` is over its limit.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(_FLOAT, 32)
        zero, one, largest = _constant(0, 32), _constant(1, 32), _constant(LARGEST, 32)

        def place(i: int) -> Any:
            array = context.make_array(signature.args[i])(context, builder, arguments[i])
            return builder.bitcast(builder.gep(array.data, [arguments[-1]]), vector.as_pointer())

        def load(i: int) -> Any:
            return builder.load(place(i), align=4)

        one_spread = builder.insert_element(ir.Constant(vector, ir.Undefined), arguments[1], ir.Constant(_INT, 0))
        spreads = builder.shuffle_vector(one_spread, one_spread, _integers(0, 32))
        weight, exponent = load(0), builder.fmul(spreads, load(2))
        exponent = builder.select(builder.fcmp_ordered("<", exponent, largest), exponent, largest)
        factor = _exp2(builder, exponent, 32)
        # expm1(t) is at least t, which rounding would lose.
        least = builder.fmul(exponent, _constant(2 * math.log(2), 32))
        excess = builder.fsub(builder.fmul(factor, factor), one)
        excess = builder.select(builder.fcmp_ordered(">", excess, least), excess, least)
        error = builder.fmul(builder.fmul(weight, weight), excess)
        over = builder.fcmp_ordered(">", error, load(3))
        tilted = builder.select(over, zero, builder.fmul(weight, factor))
        builder.store(tilted, place(4), align=4)
        builder.store(builder.fadd(load(5), tilted), place(5), align=4)
        builder.store(builder.fadd(load(6), builder.select(over, zero, error)), place(6), align=4)
        return builder.bitcast(over, _INT)

    kinds = weights, types.float32, widths, limits, out, masses, errors, types.intp
    return types.uint32(*kinds), generate


@intrinsic  # type: ignore[untyped-decorator]
def lowest_bit(typing: Any, bits: Any) -> Any:
    """Return the place of the lowest bit that is set."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint32(types.uint32), generate
