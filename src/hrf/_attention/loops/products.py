"""Small matrix products, whose sums stay in the processor's registers.

The compiler finds no such loop by itself, and calling a library for large products costs more than the product.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.extending import intrinsic
from numpy.typing import NDArray

from hrf._attention.loops.jit import jit

__all__ = ["COLUMNS", "ROWS", "WIDE", "add_product", "add_product_transposed", "add_row_product", "padded"]

ROWS, COLUMNS = 8, 8  # matrix sizes are multiples of these
# Rows and columns of most tiles: as many sums as there are registers, and a few registers left. What is left goes in
# tiles of SHORT rows.
TALL, WIDE = (8, 32) if binding.get_host_cpu_features().get("avx512f") else (6, 16)
SHORT = 4

Array = NDArray[np.floating]
Index = NDArray[np.int32] | int  # rows, or 0 for all of them


def _add_times(builder: Any, total: Any, factor: Any, vector: Any) -> None:
    """Add a number times a vector to the vector at ``total``."""
    zero, kind = ir.Constant(ir.IntType(32), 0), vector.type
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), factor, zero)
    first = ir.Constant(ir.VectorType(ir.IntType(32), kind.count), None)
    product = builder.fmul(builder.shuffle_vector(one, one, first), vector, flags=("contract",))
    builder.store(builder.fadd(builder.load(total), product, flags=("contract",)), total)


def _tile(n_rows: int, columns: int, *, transposed: bool) -> Any:
    """Return a function that adds ``n_rows`` × ``columns`` entries of a product to another matrix.

    There is one for a left matrix and one for its transpose: known strides need fewer instructions. An array ``index``
    names rows of the left matrix or, with a transpose, of the right one; a number stands for all rows in their order.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def add_tile(context: Any, out: Any, left: Any, right: Any, index: Any, row: Any, column: Any) -> Any:
        """Add the tile at a row and a column."""
        if not (out.dtype == left.dtype == right.dtype and out.layout == left.layout == right.layout == "C"):
            raise TypingError(f"products of contiguous arrays of one type, not of {out}, {left} and {right}")
        indexed = isinstance(index, types.Array)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            *arrays, places, row, column = arguments
            c, a, b = (
                context.make_array(kind)(context, builder, array)
                for kind, array in zip(signature.args, arrays, strict=False)
            )
            named = context.make_array(index)(context, builder, places) if indexed else None
            scalar = context.get_value_type(out.dtype)
            vector, n_bytes = ir.VectorType(scalar, columns), context.get_abi_alignment(scalar)
            widths = [builder.extract_value(matrix.shape, 1) for matrix in (c, a, b)]
            shift = builder.sub(widths[2], widths[0])

            def number(i: int) -> Any:
                return ir.Constant(row.type, i)

            def of(data: Any, row: Any, width: Any, column: Any) -> Any:
                """Return the vector at the columns of a row."""
                place = builder.gep(data, [builder.add(builder.mul(row, width), column)])
                return builder.bitcast(place, vector.as_pointer())

            def name(i: Any) -> Any:
                """Return the row that an index names."""
                return (
                    i if named is None else builder.sext(builder.load(builder.gep(named.data, [i])), row.type)
                )

            rows = [builder.add(row, number(i)) for i in range(n_rows)]
            targets = [of(c.data, i, widths[0], column) for i in rows]
            if not transposed:
                rows = [builder.mul(name(i), widths[1]) for i in rows]
            sums = [cgutils.alloca_once(builder, vector) for _ in rows]
            for place, total in zip(targets, sums, strict=True):
                builder.store(builder.load(place, align=n_bytes), total)
            steps = builder.extract_value((named if named is not None and transposed else b).shape, 0)
            from_column = builder.add(column, shift)
            with cgutils.for_range(builder, steps) as loop:
                line = name(loop.index) if transposed else loop.index
                other = builder.load(of(b.data, line, widths[2], from_column), align=n_bytes)
                for i, total in zip(rows, sums, strict=True):
                    offset = builder.add(
                        *((builder.mul(loop.index, widths[1]), i) if transposed else (i, loop.index))
                    )
                    factor = builder.load(builder.gep(a.data, [offset]))
                    _add_times(builder, total, factor, other)
            for place, total in zip(targets, sums, strict=True):
                builder.store(builder.load(total), place, align=n_bytes)
            return context.get_dummy_value()

        return types.void(out, left, right, index, types.intp, types.intp), generate

    return add_tile


_add_wide, _add_narrow = _tile(TALL, WIDE, transposed=False), _tile(ROWS, COLUMNS, transposed=False)
_add_wide_transposed = _tile(TALL, WIDE, transposed=True)
_add_short, _add_short_transposed = (
    _tile(SHORT, WIDE, transposed=transposed) for transposed in (False, True)
)
_add_narrow_transposed = _tile(ROWS, COLUMNS, transposed=True)
_add_row, _add_narrow_row = _tile(1, WIDE, transposed=False), _tile(1, COLUMNS, transposed=False)


@jit
def _tall(rows: int) -> int:
    """Return how many rows go in tall tiles, so that a multiple of `SHORT` is left; rows is a multiple of `ROWS`."""
    tall = rows // TALL * TALL
    while (rows - tall) % SHORT:
        tall -= TALL
    return tall


@jit
def add_product(out: Array, left: Array, right: Array, index: Index = 0) -> None:
    """Add ``left (m, k) @ right (k, n)`` to ``out (m, n)``, or ``left[index] @ right``.

    All are contiguous, m is a multiple of `ROWS` and n of `COLUMNS`. Of a wider left matrix the first k columns are
    taken.
    """
    tall, wide = _tall(out.shape[0]), out.shape[1] // WIDE * WIDE
    for row in range(0, tall, TALL):
        for column in range(0, wide, WIDE):
            _add_wide(out, left, right, index, row, column)
    for row in range(tall, out.shape[0], SHORT):
        for column in range(0, wide, WIDE):
            _add_short(out, left, right, index, row, column)
    for row in range(0, out.shape[0], ROWS):
        for column in range(wide, out.shape[1], COLUMNS):
            _add_narrow(out, left, right, index, row, column)


@jit
def add_product_transposed(out: Array, left: Array, right: Array, index: Index = 0) -> None:
    """Add ``left.T @ right`` to ``out (m, n)``, for ``left (k, m)`` and ``right (k, n)``, or ``left.T @ right[index]``.

    Sizes as in `add_product`. Of a wider right matrix the last n columns are taken.
    """
    tall, wide = _tall(out.shape[0]), out.shape[1] // WIDE * WIDE
    for row in range(0, tall, TALL):
        for column in range(0, wide, WIDE):
            _add_wide_transposed(out, left, right, index, row, column)
    for row in range(tall, out.shape[0], SHORT):
        for column in range(0, wide, WIDE):
            _add_short_transposed(out, left, right, index, row, column)
    for row in range(0, out.shape[0], ROWS):
        for column in range(wide, out.shape[1], COLUMNS):
            _add_narrow_transposed(out, left, right, index, row, column)


@jit
def add_row_product(out: Array, row: Array, right: Array) -> None:
    """Add ``row (1, k) @ right (k, n)`` to ``out (1, n)``; sizes as in `add_product`."""
    wide = out.shape[1] // WIDE * WIDE
    for column in range(0, wide, WIDE):
        _add_row(out, row, right, 0, 0, column)
    for column in range(wide, out.shape[1], COLUMNS):
        _add_narrow_row(out, row, right, 0, 0, column)


def padded(n: int) -> int:
    """Round n up to a multiple of `COLUMNS`."""
    return n + -n % COLUMNS
