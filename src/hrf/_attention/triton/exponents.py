"""Tokens, exponents and features inside a kernel; ``_core/affine_features.h`` computes the same.

A block has T tokens, M projections, D ≥ d and V ≥ d_v columns, powers of two; what is beyond the sizes is zero. With
p = xᵀW + w the features of a token are exp(±p), exp(p), or cos p and sin p, times the exponential of its log weight

    log K = constant − square ‖x‖²/2,   or   constant + xᵀb − ‖u‖²/2   with u = xᵀU + u₀ in further columns of W.
"""

# Triton has no types for mypy, and its functions are read by its own compiler.
# mypy: ignore-errors

import triton
import triton.language as tl

__all__ = ["LOWEST", "PAIRS", "SINGLE", "TURNS", "map_of_row", "row_and_block", "row_start"]

PAIRS, SINGLE, TURNS = (tl.constexpr(kind) for kind in range(3))  # as _KINDS of map_kernels.py
LOWEST = tl.constexpr(-1e30)  # the log scale of nothing


@triton.jit
def row_and_block(blocks):
    """Return the row and the block of a program: the first axis of a grid has both, as others end at 65,535."""
    return tl.program_id(0) // blocks, tl.program_id(0) % blocks


@triton.jit
def row_start(start, row, heads, batch_stride, head_stride):
    """Return where the tokens of a row begin: row = batch element · heads + head."""
    row = row.to(tl.int64)
    return start + row // heads * batch_stride + row % heads * head_stride


@triton.jit
def map_of_row(matrix, offset, row, heads, maps, dim, columns):
    """Return where matrix and offset of a row's map begin."""
    own = (row % heads % maps).to(tl.int64)
    return matrix + own * dim * columns, offset + own * (columns + 1)


@triton.jit
def load_tokens(start, stride, first, keep, width, WIDTH: tl.constexpr, T: tl.constexpr):
    """Load T tokens from ``first`` in float32, zeros where they are not kept: (T, WIDTH)."""
    # One 64-bit address and short offsets: addresses of single numbers would take most registers.
    start += tl.cast(first, tl.int64) * stride
    columns = tl.arange(0, WIDTH)
    inside = keep[:, None] & (columns < width)[None, :]
    at = tl.arange(0, T)[:, None] * stride + columns[None, :]
    return tl.load(start + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def load_matrix(start, stride, rows, n_rows, first, n_columns, COLUMNS: tl.constexpr):
    """Load some rows of a matrix, and columns from ``first``: (rows, COLUMNS)."""
    columns = first + tl.arange(0, COLUMNS)
    inside = (rows < n_rows)[:, None] & (columns < n_columns)[None, :]
    return tl.load(start + rows[:, None] * stride + columns[None, :], mask=inside, other=0.0)


@triton.jit
def load_state(state, rows, n_rows, n_features, width, first, V: tl.constexpr):
    """Load rows of a state, columns from ``first``, and the last column, the sums of features: (M, V), (M,).

    A state in kernels is S, (features, width), followed by z, (features,).
    """
    sums = load_matrix(state, width, rows, n_rows, first, width, V)
    return sums, tl.load(state + n_features * width + rows, mask=rows < n_rows, other=0.0)


@triton.jit
def exponents(x, weights, offset, w_start, first, n_columns, COLUMNS: tl.constexpr, PRECISION: tl.constexpr):
    """Return columns of xᵀW + w, from ``w_start + first``: (T, COLUMNS); ``weights`` are (D, COLUMNS)."""
    j = first + tl.arange(0, COLUMNS)
    w = tl.load(offset + w_start + j, mask=j < n_columns, other=0.0)
    return tl.dot(x, weights, input_precision=PRECISION) + w[None, :]


@triton.jit
def log_weight(
    x, matrix, offset, dim, m, columns, square, SHIFTED: tl.constexpr, D: tl.constexpr, M: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the log weight of every token: (T,). There are further columns if SHIFTED."""
    k = tl.arange(0, D)
    if not SHIFTED:
        log = tl.load(offset + columns) - tl.sum(x * x, 1) * (square / 2)
    else:
        b = tl.load(matrix + k * columns + columns - 1, mask=k < dim, other=0.0)
        log = tl.load(offset + columns) + tl.load(offset + columns - 1) + tl.sum(x * b[None, :], 1)
        for first in range(0, dim, M):
            weights = load_matrix(matrix + m, columns, k, dim, first, dim, M)
            u = exponents(x, weights, offset, m, first, dim, M, PRECISION)
            log -= tl.sum(u * u, 1) / 2
    return log


@triton.jit
def pull_log_weight(
    x, along, matrix, offset, dim, m, columns, square, SHIFTED: tl.constexpr, D: tl.constexpr, M: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the gradient of x from that of the log weight: along · (b − U u) or −along · square x: (T, D)."""
    k = tl.arange(0, D)
    if not SHIFTED:
        grad = x * (along * -square)[:, None]
    else:
        b = tl.load(matrix + k * columns + columns - 1, mask=k < dim, other=0.0)
        grad = along[:, None] * b[None, :]
        for first in range(0, dim, M):
            weights = load_matrix(matrix + m, columns, k, dim, first, dim, M)
            u = exponents(x, weights, offset, m, first, dim, M, PRECISION)
            grad -= tl.dot(u * along[:, None], tl.trans(weights), input_precision=PRECISION)
    return grad


@triton.jit
def largest(p, inside, KIND: tl.constexpr):
    """Return the largest exponent of every token, of either sign: (T,)."""
    if KIND == TURNS:
        top = tl.sum(p * 0, 1)
    elif KIND == PAIRS:
        top = tl.max(tl.where(inside[None, :], tl.abs(p), 0.0), 1)
    else:
        top = tl.max(tl.where(inside[None, :], p, LOWEST), 1)
    return top


@triton.jit
def cos_sin(p):
    """Return cos p and sin p from r = p − kπ/2, |r| ≤ π/4, and polynomials (Cephes): no call that takes registers."""
    k = tl.floor(p * 0.6366197723675814 + 0.5)
    r = ((p - k * 1.5703125) - k * 4.837512969970703e-4) - k * 7.549789948768648e-8
    r = tl.minimum(tl.maximum(r, -0.8), 0.8)
    z = r * r
    sin = r + r * z * (-1.6666654611e-1 + z * (8.3321608736e-3 - z * 1.9515295891e-4))
    cos = (
        1 - z * 0.5 + z * z * (4.166664568298827e-2 + z * (-1.388731625493765e-3 + z * 2.443315711809948e-5))
    )
    quarter = k.to(tl.int32)
    odd = (quarter & 1) == 1
    one, other = tl.where(odd, sin, cos), tl.where(odd, cos, sin)
    return tl.where(((quarter + 1) & 2) == 0, one, -one), tl.where((quarter & 2) == 0, other, -other)


@triton.jit
def features(p, shift, inside, KIND: tl.constexpr):
    """Return the features times exp(shift), zeros beyond m: two blocks (T, M), the same twice for exp(p)."""
    shift = shift[:, None]
    if KIND == TURNS:
        size = tl.exp(shift)
        one, other = cos_sin(p)
        one, other = one * size, other * size
    elif KIND == PAIRS:
        one, other = tl.exp(shift + p), tl.exp(shift - p)
    else:
        one = tl.exp(shift + p)
        other = one
    return tl.where(inside[None, :], one, 0.0), tl.where(inside[None, :], other, 0.0)


@triton.jit
def pull_features(one, other, grad_one, grad_other, KIND: tl.constexpr):
    """Return the gradient of p from those of both features."""
    if KIND == PAIRS:
        grad = one * grad_one - other * grad_other
    elif KIND == TURNS:
        grad = one * grad_other - other * grad_one
    else:
        grad = one * grad_one
    return grad
