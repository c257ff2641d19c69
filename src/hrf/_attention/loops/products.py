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

__all__ = ["COLUMNS", "ROWS", "WIDE", "add_product", "add_product_transposed", "padded"]

ROWS, COLUMNS = 8, 8  # matrix sizes are multiples of these
# Rows and columns of most tiles: as many sums as there are registers, and a few registers left.
TALL, WIDE = (8, 32) if binding.get_host_cpu_features().get("avx512f") else (4, 16)

Array = NDArray[np.floating]


def _tile(n_rows: int, columns: int, *, transposed: bool) -> Any:
    """Return a function that adds ``n_rows`` × ``columns`` entries of a product to another matrix.

    There is one for a left matrix and one for its transpose: known strides need fewer instructions.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def add_tile(context: Any, out: Any, left: Any, right: Any, row: Any, column: Any) -> Any:
        """Add the tile at a row and a column."""
        if not (out.dtype == left.dtype == right.dtype and out.layout == left.layout == right.layout == "C"):
            raise TypingError(f"products of contiguous arrays of one type, not of {out}, {left} and {right}")

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            *arrays, row, column = arguments
            c, a, b = (
                context.make_array(kind)(context, builder, array)
                for kind, array in zip(signature.args, arrays, strict=False)
            )
            scalar = context.get_value_type(out.dtype)
            vector, n_bytes = ir.VectorType(scalar, columns), context.get_abi_alignment(scalar)
            width = builder.extract_value(b.shape, 1)

            def number(i: int) -> Any:
                return ir.Constant(row.type, i)

            def of(data: Any, row: Any) -> Any:
                """Return the vector at the columns of a row."""
                place = builder.gep(data, [builder.add(builder.mul(row, width), column)])
                return builder.bitcast(place, vector.as_pointer())

            rows = [builder.add(row, number(i)) for i in range(n_rows)]
            places = [of(c.data, i) for i in rows]
            sums = [cgutils.alloca_once(builder, vector) for _ in rows]
            for place, total in zip(places, sums, strict=True):
                builder.store(builder.load(place, align=n_bytes), total)
            with cgutils.for_range(builder, builder.extract_value(b.shape, 0)) as loop:
                other = builder.load(of(b.data, loop.index), align=n_bytes)
                for i, total in zip(rows, sums, strict=True):
                    line, place = (loop.index, i) if transposed else (i, loop.index)
                    offset = builder.add(builder.mul(line, builder.extract_value(a.shape, 1)), place)
                    factor = builder.load(builder.gep(a.data, [offset]))
                    one = builder.insert_element(ir.Constant(vector, ir.Undefined), factor, number(0))
                    first = ir.Constant(ir.VectorType(ir.IntType(32), columns), None)
                    product = builder.fmul(
                        builder.shuffle_vector(one, one, first), other, flags=("contract",)
                    )
                    builder.store(builder.fadd(builder.load(total), product, flags=("contract",)), total)
            for place, total in zip(places, sums, strict=True):
                builder.store(builder.load(total), place, align=n_bytes)
            return context.get_dummy_value()

        return types.void(out, left, right, types.intp, types.intp), generate

    return add_tile


_add_wide, _add_narrow = _tile(TALL, WIDE, transposed=False), _tile(ROWS, COLUMNS, transposed=False)
_add_wide_transposed = _tile(TALL, WIDE, transposed=True)
_add_narrow_transposed = _tile(ROWS, COLUMNS, transposed=True)


@jit
def add_product(out: Array, left: Array, right: Array) -> None:
    """Add ``left (m, k) @ right (k, n)`` to ``out (m, n)``.

    All are contiguous, m is a multiple of `ROWS` and n of `COLUMNS`.
    """
    wide = out.shape[1] // WIDE * WIDE
    for row in range(0, out.shape[0], TALL):
        for column in range(0, wide, WIDE):
            _add_wide(out, left, right, row, column)
    for row in range(0, out.shape[0], ROWS):
        for column in range(wide, out.shape[1], COLUMNS):
            _add_narrow(out, left, right, row, column)


@jit
def add_product_transposed(out: Array, left: Array, right: Array) -> None:
    """Add ``left.T @ right`` to ``out (m, n)``, for ``left (k, m)`` and ``right (k, n)``; sizes as in `add_product`."""
    wide = out.shape[1] // WIDE * WIDE
    for row in range(0, out.shape[0], TALL):
        for column in range(0, wide, WIDE):
            _add_wide_transposed(out, left, right, row, column)
    for row in range(0, out.shape[0], ROWS):
        for column in range(wide, out.shape[1], COLUMNS):
            _add_narrow_transposed(out, left, right, row, column)


def padded(n: int) -> int:
    """Round n up to a multiple of `COLUMNS`."""
    return n + -n % COLUMNS
