"""Quotients φ(x)ᵀS / φ(x)ᵀz, and with the keys of the own chunk if CAUSAL.

A program has T rows and V columns of values. It goes over the projections with a the largest exponent so far, as online
softmax does, so that features are exp(±p − a) ≤ 1; sums fade when a grows. With sⱼ the log scale of key j,
cᵢ the largest so far and c that of the state before the chunk, a row of sums at the scale a + cᵢ is

    Oᵢ = exp(c − cᵢ) φᵢᵀS + Σ_{j≤i} exp(sⱼ − cᵢ) φᵢᵀψⱼ vⱼ.

`scale_keys` computes log K and s of every key for causal calls.
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
    load_state,
    load_tokens,
    log_weight,
    map_of_row,
    row_and_block,
    row_start,
)

__all__ = ["read_state", "scale_keys"]


@triton.jit
def scale_keys(
    x, x_batch, x_head, x_token, matrix, offset, maps, hidden, logs, scales,
    heads, length, dim, m, columns, square,
    KIND: tl.constexpr, SHIFTED: tl.constexpr, HIDDEN: tl.constexpr, D: tl.constexpr, M: tl.constexpr, T: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write log weights, and log scales s = log K + the largest exponent, (N, L) both; LOWEST where ignored."""
    n, block = row_and_block(tl.cdiv(length, T))
    matrix, offset = map_of_row(matrix, offset, n, heads, maps, dim, columns)
    x = row_start(x, n, heads, x_batch, x_head)
    start = block * T
    places = start + tl.arange(0, T)
    keep = places < length
    if HIDDEN:
        keep = keep & (tl.load(hidden + n // heads * length + places, mask=keep, other=1) == 0)
    u, top = load_tokens(x, x_token, start, keep, dim, D, T), tl.full([T], LOWEST, tl.float32)
    for first in range(0, m, M):
        weights = load_matrix(matrix, columns, tl.arange(0, D), dim, first, m, M)
        p = exponents(u, weights, offset, 0, first, m, M, PRECISION)
        top = tl.maximum(top, largest(p, first + tl.arange(0, M) < m, KIND))
    log = log_weight(u, matrix, offset, dim, m, columns, square, SHIFTED, D, M, PRECISION)
    at = n.to(tl.int64) * length + places
    tl.store(logs + at, tl.where(keep, log, LOWEST), mask=places < length)
    tl.store(scales + at, tl.where(keep, log + top, LOWEST), mask=places < length)


@triton.jit
def read_state(
    # Queries (B, H, L, d) and their map, as in sum_tokens.py; states (N, n_slots, ·), of each chunk if CAUSAL.
    x, x_batch, x_head, x_token, matrix, offset, maps, states,
    # If CAUSAL: keys and their map, values, and per key log K − s, s and c up to it, (N, S); c of each chunk, (N, K).
    key, key_batch, key_head, key_token, key_matrix, key_offset, key_maps,
    value, value_batch, value_head, value_token, shift, scales, tops, starts, hidden,
    # Quotients (N, L, width), denominators, log scales without c, and a: (N, L).
    out, used, logs, exponent,
    heads, length, keys, groups, n_slots, dim, width, m, columns, square, n_features,
    KIND: tl.constexpr, SHIFTED: tl.constexpr, CAUSAL: tl.constexpr, HIDDEN: tl.constexpr, D: tl.constexpr,
    V: tl.constexpr, M: tl.constexpr, T: tl.constexpr, SPAN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Launch with a program per (row, block of queries) and block of columns; a chunk has SPAN blocks of T keys."""
    (n, block), column = row_and_block(tl.cdiv(length, T)), tl.program_id(1) * V
    matrix, offset = map_of_row(matrix, offset, n, heads, maps, dim, columns)
    x = row_start(x, n, heads, x_batch, x_head)
    start, slot, others = block * T, 0, 1
    places = start + tl.arange(0, T)
    keep, rows = places < length, n.to(tl.int64) * length
    if CAUSAL:
        # Keys of the own chunk as far as the own block.
        slot, others = block // (groups * SPAN), block % (groups * SPAN) // groups + 1
        row = n.to(tl.int64) * keys
        key_matrix, key_offset = map_of_row(key_matrix, key_offset, n, heads, key_maps, dim, columns)
        key = row_start(key, n, heads, key_batch, key_head)
        value = row_start(value, n, heads, value_batch, value_head)
    states += (n.to(tl.int64) * n_slots + slot) * n_features * (width + 1)
    sums, total = tl.zeros([T, V], tl.float32), tl.zeros([T], tl.float32)
    top = tl.full([T], 0.0 if KIND == TURNS else LOWEST, tl.float32)
    for r in range(others):
        if CAUSAL:
            key_first = (slot * SPAN + r) * T
            key_places = key_first + tl.arange(0, T)
            shown = key_places < keys
            by = tl.load(shift + row + key_places, mask=shown, other=LOWEST)
            if HIDDEN:
                shown = shown & (tl.load(hidden + n // heads * keys + key_places, mask=shown, other=1) == 0)
                by = tl.where(shown, by, LOWEST)
            scores = tl.zeros([T, T], tl.float32)
        for first in range(0, m, M):
            j = first + tl.arange(0, M)
            inside, again = j < m, first // m  # 0, which the compiler does not know: tokens are loaded anew
            u = load_tokens(x, x_token, start + again, keep, dim, D, T)
            weights = load_matrix(matrix, columns, tl.arange(0, D), dim, first, m, M)
            p = exponents(u, weights, offset, 0, first, m, M, PRECISION)
            grown = tl.maximum(top, largest(p, inside, KIND))  # does not grow after the first keys
            fade, top = tl.exp(top - grown), grown
            one, other = features(p, -top, inside, KIND)
            if r == 0:
                s, z = load_state(states, j, m, n_features, width, column, V)
                sums = sums * fade[:, None] + tl.dot(one, s, input_precision=PRECISION)
                total = total * fade + tl.sum(one * z[None, :], 1)
                if KIND != SINGLE:
                    s, z = load_state(states, m + j, 2 * m, n_features, width, column, V)
                    sums += tl.dot(other, s, input_precision=PRECISION)
                    total += tl.sum(other * z[None, :], 1)
            if CAUSAL:
                y = load_tokens(key, key_token, key_first + again, shown, dim, D, T)
                weights = load_matrix(key_matrix, columns, tl.arange(0, D), dim, first, m, M)
                p = exponents(y, weights, key_offset, 0, first, m, M, PRECISION)
                key_one, key_other = features(p, by, inside, KIND)
                scores = scores * fade[:, None] + tl.dot(one, tl.trans(key_one), input_precision=PRECISION)
                if KIND != SINGLE:
                    scores += tl.dot(other, tl.trans(key_other), input_precision=PRECISION)
        if CAUSAL:
            position = places // groups
            c = tl.load(tops + row + position, mask=keep, other=-LOWEST)
            if r == 0:
                decay = tl.exp(tl.load(starts + n * tl.cdiv(keys, T * SPAN) + slot) - c)
                sums, total = sums * decay[:, None], total * decay
            s = tl.load(scales + row + key_places, mask=shown, other=LOWEST)
            visible = shown[None, :] & (key_places[None, :] <= position[:, None])
            scores *= tl.exp(tl.where(visible, s[None, :] - c[:, None], LOWEST))
            v = load_tokens(value + column, value_token, key_first, shown, width - column, V, T)
            sums += tl.dot(scores, v, input_precision=PRECISION)
            total += tl.sum(scores, 1)
    u = load_tokens(x, x_token, start, keep, dim, D, T)
    log = log_weight(u, matrix, offset, dim, m, columns, square, SHIFTED, D, M, PRECISION)
    divisor = tl.where(total == 0, 1.0, total)
    columns_of_value = column + tl.arange(0, V)
    at = tl.arange(0, T)[:, None] * width + columns_of_value[None, :]
    tl.store(
        out + (rows + start) * width + at,
        sums / divisor[:, None],
        mask=keep[:, None] & (columns_of_value < width)[None, :],
    )
    tl.store(used + rows + places, total, mask=keep)
    tl.store(logs + rows + places, log + top, mask=keep)
    tl.store(exponent + rows + places, top, mask=keep)
