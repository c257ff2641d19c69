"""One token of decoding: the state fades and takes the key in, then the queries of all groups read it.

A program has a row, V columns of values and T queries; that of the first queries writes the state. The state goes
through it once, M projections at a time. The scale of the key needs all projections: it comes from a first loop over
them without the state.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from hrf._attention.triton.exponents import (
    LOWEST,
    SINGLE,
    TURNS,
    exponents,
    features,
    largest,
    load_matrix,
    load_tokens,
    log_weight,
    map_of_row,
    row_start,
)

__all__ = ["step"]


@triton.jit
def renew(
    state, new_state, rows, n_rows, width, column, decay, psi, v,
    V: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Let rows of a state (·, width + 1) fade, add Σ ψ (v, 1)ᵀ, write and return them: (M, V), (M,)."""
    columns = column + tl.arange(0, V)
    inside = (rows < n_rows)[:, None] & (columns < width)[None, :]
    at, last = rows[:, None] * (width + 1) + columns[None, :], rows * (width + 1) + width
    s = tl.load(state + at, mask=inside, other=0.0) * decay
    s += tl.dot(tl.trans(psi), v, input_precision=PRECISION)
    z = tl.load(state + last, mask=rows < n_rows, other=0.0) * decay + tl.sum(psi, 0)
    if tl.program_id(2) == 0:
        tl.store(new_state + at, s, mask=inside)
        tl.store(new_state + last, z, mask=rows < n_rows)
    return s, z


@triton.jit
def step(
    x, x_batch, x_head, x_token, matrix, offset, maps,
    key, key_batch, key_head, key_token, key_matrix, key_offset, key_maps,
    value, value_batch, value_head, value_token, hidden,
    # States (N, features, width + 1) and log scales (N,) before and after.
    state, scale, new_state, new_scale,
    # Quotients (N, L, width), denominators and log scales of queries without that of the state, (N, L).
    out, used, logs,
    heads, length, dim, width, m, columns, square, n_features,
    KIND: tl.constexpr, SHIFTED: tl.constexpr, HIDDEN: tl.constexpr, D: tl.constexpr, V: tl.constexpr,
    M: tl.constexpr, T: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Launch with a program per row, block of columns and T queries; T rows hold the key, with zeros below."""
    n, column, start = tl.program_id(0), tl.program_id(1) * V, tl.program_id(2) * T
    matrix, offset = map_of_row(matrix, offset, n, heads, maps, dim, columns)
    key_matrix, key_offset = map_of_row(key_matrix, key_offset, n, heads, key_maps, dim, columns)
    k, places = tl.arange(0, D), tl.arange(0, T)
    keep, shown = start + places < length, places < 1
    if HIDDEN:
        shown = shown & (tl.load(hidden + n // heads + places * 0) == 0)
    x, key = row_start(x, n, heads, x_batch, x_head), row_start(key, n, heads, key_batch, key_head)
    y = load_tokens(key, key_token, 0, shown, dim, D, T)
    value = row_start(value, n, heads, value_batch, value_head) + column
    v = load_tokens(value, value_token, 0, shown, width - column, V, T)
    top = tl.full([T], LOWEST, tl.float32)
    for first in range(0, m, M):
        weights = load_matrix(key_matrix, columns, k, dim, first, m, M)
        p = exponents(y, weights, key_offset, 0, first, m, M, PRECISION)
        top = tl.maximum(top, largest(p, first + tl.arange(0, M) < m, KIND))
    log = log_weight(y, key_matrix, key_offset, dim, m, columns, square, SHIFTED, D, M, PRECISION)
    before = tl.load(scale + n)
    after = tl.maximum(before, tl.max(tl.where(shown, log + top, LOWEST), 0))
    by, decay = tl.where(shown, log - after, LOWEST), tl.exp(before - after)
    size = n.to(tl.int64) * n_features * (width + 1)
    state, new_state = state + size, new_state + size
    sums, total = tl.zeros([T, V], tl.float32), tl.zeros([T], tl.float32)
    top = tl.full([T], 0.0 if KIND == TURNS else LOWEST, tl.float32)
    for first in range(0, m, M):
        j = first + tl.arange(0, M)
        inside, again = j < m, first // m  # 0, which the compiler does not know: tokens are loaded anew
        y = load_tokens(key, key_token, again, shown, dim, D, T)
        weights = load_matrix(key_matrix, columns, k, dim, first, m, M)
        one, other = features(exponents(y, weights, key_offset, 0, first, m, M, PRECISION), by, inside, KIND)
        s, z = renew(state, new_state, j, m, width, column, decay, one, v, V, PRECISION)
        u = load_tokens(x, x_token, start + again, keep, dim, D, T)
        weights = load_matrix(matrix, columns, k, dim, first, m, M)
        p = exponents(u, weights, offset, 0, first, m, M, PRECISION)
        grown = tl.maximum(top, largest(p, inside, KIND))
        fade, top = tl.exp(top - grown), grown
        read_one, read_other = features(p, -top, inside, KIND)
        sums = sums * fade[:, None] + tl.dot(read_one, s, input_precision=PRECISION)
        total = total * fade + tl.sum(read_one * z[None, :], 1)
        if KIND != SINGLE:
            s, z = renew(state, new_state, m + j, 2 * m, width, column, decay, other, v, V, PRECISION)
            sums += tl.dot(read_other, s, input_precision=PRECISION)
            total += tl.sum(read_other * z[None, :], 1)
    u = load_tokens(x, x_token, start, keep, dim, D, T)
    log = log_weight(u, matrix, offset, dim, m, columns, square, SHIFTED, D, M, PRECISION)
    at, columns_of_value = n.to(tl.int64) * length + start + places, column + tl.arange(0, V)
    quotients = sums / tl.where(total == 0, 1.0, total)[:, None]
    inside = keep[:, None] & (columns_of_value < width)[None, :]
    tl.store(out + at[:, None] * width + columns_of_value[None, :], quotients, mask=inside)
    tl.store(used + at, total, mask=keep)
    tl.store(logs + at, log + top, mask=keep)
    tl.store(new_scale + n, after)
