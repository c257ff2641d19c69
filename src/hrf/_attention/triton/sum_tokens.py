"""Sums of features times values, S = Σ ψ vᵀ and z = Σ ψ: of all tokens, or before every chunk.

A program has M projections, so up to 2M rows of S, and V columns. It goes over the tokens of a part of a row:

    keys, all seen by every query    ψ = exp(±p + log K − c), c the largest log scale so far; S fades when c grows
    with a shift per token           ψ = exp(±p + shift)
    chunk by chunk (SCAN)            likewise, S ← decay S + Σ ψ vᵀ per chunk, kept after each, from the last if REVERSE

The gradient of a state is such a sum, too: over queries, of gradients g in place of values.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from hrf._attention.triton.exponents import (
    LOWEST,
    SINGLE,
    exponents,
    features,
    largest,
    load_matrix,
    load_state,
    load_tokens,
    log_weight,
    map_of_row,
    row_and_block,
    row_start,
)

__all__ = ["sum_tokens"]


@triton.jit
def sum_tokens(
    # Tokens (B, H, L, d) and their map: matrix (maps, d, columns), offset (maps, columns + 1), shift (N, L).
    x, x_batch, x_head, x_token, matrix, offset, maps, shift,
    # Values (B, H, L, width) and, if FACTORS, factors of values and the last column, (N, L); keys to ignore, (B, L).
    value, value_batch, value_head, value_token, factor, extra, hidden,
    # Scales (N, parts, blocks), decays (N, n_chunks), states (N, parts or n_chunks + 1, ·).
    scale, decay, states,
    heads, length, chunk, n_chunks, n_slots, dim, width, m, columns, square, n_features,
    KIND: tl.constexpr, SHIFTED: tl.constexpr, ONLINE: tl.constexpr, SCAN: tl.constexpr, REVERSE: tl.constexpr,
    HIDDEN: tl.constexpr, FACTORS: tl.constexpr, D: tl.constexpr, V: tl.constexpr, M: tl.constexpr, T: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Launch with a program per (row, block of projections) and (part, block of columns)."""
    blocks, parts = tl.cdiv(m, M), tl.cdiv(width, V)
    n, block = row_and_block(blocks)
    part, column = tl.program_id(1) // parts, tl.program_id(1) % parts * V
    matrix, offset = map_of_row(matrix, offset, n, heads, maps, dim, columns)
    x, value = row_start(x, n, heads, x_batch, x_head), row_start(value, n, heads, value_batch, value_head)
    tokens, size = n.to(tl.int64) * length, tl.cast(n_features * (width + 1), tl.int64)
    states += (n.to(tl.int64) * n_slots + part) * size
    j = block * M + tl.arange(0, M)
    inside = j < m
    weights = load_matrix(matrix, columns, tl.arange(0, D), dim, block * M, m, M)
    first_slot = states + (n_chunks * size if REVERSE else 0)
    if SCAN:
        s_one, z_one = load_state(first_slot, j, m, n_features, width, column, V)
        s_other, z_other = s_one, z_one
        if KIND != SINGLE:
            s_other, z_other = load_state(first_slot, m + j, 2 * m, n_features, width, column, V)
    else:
        s_one, s_other = tl.zeros([M, V], tl.float32), tl.zeros([M, V], tl.float32)
        z_one, z_other = tl.zeros([M], tl.float32), tl.zeros([M], tl.float32)
    top = tl.full([], LOWEST, tl.float32)
    columns_of_value = column + tl.arange(0, V)
    for step in range(n_chunks):
        at = n_chunks - 1 - step if REVERSE else step
        if SCAN:
            fade = tl.load(decay + n * n_chunks + at)
            s_one, s_other, z_one, z_other = s_one * fade, s_other * fade, z_one * fade, z_other * fade
        for start in range(0, chunk, T):
            first = (part + at) * chunk + start
            places = first + tl.arange(0, T)
            keep = places < length
            if HIDDEN:
                keep = keep & (tl.load(hidden + n // heads * length + places, mask=keep, other=1) == 0)
            v = load_tokens(value + column, value_token, first, keep, width - column, V, T)
            last = keep.to(tl.float32)
            if FACTORS:
                v *= tl.load(factor + tokens + places, mask=keep, other=0.0)[:, None]
                last = tl.load(extra + tokens + places, mask=keep, other=0.0)
            u = load_tokens(x, x_token, first, keep, dim, D, T)
            p = exponents(u, weights, offset, 0, block * M, m, M, PRECISION)
            if ONLINE:
                log = log_weight(u, matrix, offset, dim, m, columns, square, SHIFTED, D, M, PRECISION)
                log = tl.where(keep, log, LOWEST)
                grown = tl.maximum(top, tl.max(log + largest(p, inside, KIND), 0))
                fade, top = tl.exp(top - grown), grown
                s_one, s_other, z_one, z_other = s_one * fade, s_other * fade, z_one * fade, z_other * fade
                by = tl.where(keep, log - top, LOWEST)
            else:
                by = tl.load(shift + tokens + places, mask=keep, other=LOWEST)
            one, other = features(p, by, inside, KIND)
            s_one += tl.dot(tl.trans(one), v, input_precision=PRECISION)
            z_one += tl.sum(one * last[:, None], 0)
            if KIND != SINGLE:
                s_other += tl.dot(tl.trans(other), v, input_precision=PRECISION)
                z_other += tl.sum(other * last[:, None], 0)
        to = states
        if SCAN:
            to += (at if REVERSE else at + 1) * size
        inside_state = inside[:, None] & (columns_of_value < width)[None, :]
        at_one = to + j[:, None] * width + columns_of_value[None, :]
        tl.store(at_one, s_one, mask=inside_state)
        tl.store(to + n_features * width + j, z_one, mask=inside)
        if KIND != SINGLE:
            tl.store(at_one + m * width, s_other, mask=inside_state)
            tl.store(to + n_features * width + m + j, z_other, mask=inside)
    if ONLINE:
        tl.store(scale + (n * n_slots + part) * blocks + block, top)
