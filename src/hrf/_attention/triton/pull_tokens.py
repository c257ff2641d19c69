"""Gradients of tokens and, for keys, of values, from G = (g, e) per token and a state.

For queries S is the state, g the gradient of the sums and e that of the denominator. For keys S is the gradient of the
state, g the value and e = 1. With ψ = exp(±p + shift) the gradient of the features is share (S g + z e), so ∂p
follows; the gradient of the log weight is Σ ψ ∂ψ. If CAUSAL, partners in the own chunk (keys up to a query, queries
from a key on) add, with W = exp(s of the key − c of the query),

    Σ_j Wᵢⱼ (gᵢ · gⱼ + eᵢ eⱼ) ψⱼ,   and for keys, to ∂v,   Σ_j Wᵢⱼ (ψᵢ · ψⱼ) gⱼ.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from hrf._attention.triton.exponents import (
    LOWEST,
    SINGLE,
    exponents,
    features,
    load_matrix,
    load_state,
    load_tokens,
    log_weight,
    map_of_row,
    pull_features,
    pull_log_weight,
    row_and_block,
    row_start,
)

__all__ = ["pull_tokens"]


@triton.jit
def load_given(
    value, value_token, factor, extra, at, first, keep, width, FACTORS: tl.constexpr, V: tl.constexpr,
    T: tl.constexpr,
):  # fmt: skip
    """Load G of some tokens: (T, V), (T,)."""
    g, e = load_tokens(value, value_token, first, keep, width, V, T), keep.to(tl.float32)
    if FACTORS:
        g *= tl.load(factor + at, mask=keep, other=0.0)[:, None]
        e = tl.load(extra + at, mask=keep, other=0.0)
    return g, e


@triton.jit
def pair_weights(
    scales,
    tops,
    n,
    places,
    keep,
    length,
    groups,
    other_places,
    other_keep,
    others,
    other_groups,
    KEYS: tl.constexpr,
):
    """Return W of tokens and partners, zero where a query would see a later key: (T, T)."""
    position, other_position = places // groups, other_places // other_groups
    at, other_at = n.to(tl.int64) * (length // groups), n.to(tl.int64) * (others // other_groups)
    level = tl.load((scales if KEYS else tops) + at + position, mask=keep, other=0.0)
    other_level = tl.load((tops if KEYS else scales) + other_at + other_position, mask=other_keep, other=0.0)
    if KEYS:
        visible, gap = other_position[None, :] >= position[:, None], level[:, None] - other_level[None, :]
    else:
        visible, gap = other_position[None, :] <= position[:, None], other_level[None, :] - level[:, None]
    return tl.exp(tl.where(visible & keep[:, None] & other_keep[None, :], gap, LOWEST))


@triton.jit
def pull_tokens(
    # Tokens and their map, G, as in sum_tokens.py; shift and share per token, (N, L); states (N, n_slots, ·).
    x, x_batch, x_head, x_token, matrix, offset, maps, shift, share,
    value, value_batch, value_head, value_token, factor, extra, hidden, scale, states,
    # Partners if CAUSAL: likewise.
    other_x, other_batch, other_head, other_token, other_matrix, other_offset, other_maps, other_shift,
    other_value, other_value_batch, other_value_head, other_value_token, other_factor, other_extra,
    # s of keys, c of keys (N, S); gradients (N, L, dim) and (N, L, width).
    scales, tops, grad_x, grad_value,
    heads, length, others, groups, other_groups, n_slots, dim, width, m, columns, square, n_features,
    KIND: tl.constexpr, SHIFTED: tl.constexpr, KEYS: tl.constexpr, TOKENS: tl.constexpr, VALUES: tl.constexpr,
    CAUSAL: tl.constexpr, HIDDEN: tl.constexpr, D: tl.constexpr, V: tl.constexpr, M: tl.constexpr,
    T: tl.constexpr, SPAN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Launch with a program per (row, block of tokens); tokens and partners have so many rows per position.

    TOKENS and VALUES say which gradients are wanted: both at once would not fit the registers if CAUSAL.
    """
    n, block = row_and_block(tl.cdiv(length, T))
    matrix, offset = map_of_row(matrix, offset, n, heads, maps, dim, columns)
    x, value = row_start(x, n, heads, x_batch, x_head), row_start(value, n, heads, value_batch, value_head)
    first_token, slot, r_first, r_end = block * T, 0, 0, 1
    places = first_token + tl.arange(0, T)
    keep = places < length
    if HIDDEN and KEYS:
        keep = keep & (tl.load(hidden + n // heads * length + places, mask=keep, other=1) == 0)
    at = n.to(tl.int64) * length + places
    u = load_tokens(x, x_token, first_token, keep, dim, D, T)
    g, e = load_given(value, value_token, factor, extra, at, first_token, keep, width, not KEYS, V, T)
    weight = keep.to(tl.float32)
    if KEYS and not CAUSAL:
        log = log_weight(u, matrix, offset, dim, m, columns, square, SHIFTED, D, M, PRECISION)
        by = tl.where(keep, log - tl.load(scale + n), LOWEST)
    else:
        by = tl.where(keep, tl.load(shift + at, mask=keep, other=LOWEST), LOWEST)
    if CAUSAL:
        slot, local = block // (groups * SPAN), block % (groups * SPAN) // groups
        # Queries of the own chunk from the own block on, or keys as far as that.
        r_first = local * other_groups if KEYS else 0
        r_end = SPAN * other_groups if KEYS else local + 1
        weight = tl.load(share + at, mask=keep, other=0.0)
        other_matrix, other_offset = map_of_row(
            other_matrix, other_offset, n, heads, other_maps, dim, columns
        )
        other_x = row_start(other_x, n, heads, other_batch, other_head)
        other_value = row_start(other_value, n, heads, other_value_batch, other_value_head)
    states += (n.to(tl.int64) * n_slots + slot) * n_features * (width + 1)
    grad, along = tl.zeros([T, D], tl.float32), tl.zeros([T], tl.float32)
    if VALUES:
        grad_v = tl.zeros([T, V], tl.float32)
    for r in tl.range(r_first, r_end, disable_licm=True):
        if CAUSAL:
            other_first = (slot * SPAN * other_groups + r) * T
            other_places = other_first + tl.arange(0, T)
            other_keep = other_places < others
            if HIDDEN and not KEYS:
                seen = tl.load(hidden + n // heads * others + other_places, mask=other_keep, other=1) == 0
                other_keep = other_keep & seen
            other_at = n.to(tl.int64) * others + other_places
            other_by = tl.load(other_shift + other_at, mask=other_keep, other=LOWEST)
            scores = tl.zeros([T, T], tl.float32)
            if TOKENS:
                other_g, other_e = load_given(
                    other_value, other_value_token, other_factor, other_extra, other_at, other_first, other_keep,
                    width, KEYS, V, T,
                )  # fmt: skip
                pairs = pair_weights(
                    scales,
                    tops,
                    n,
                    places,
                    keep,
                    length,
                    groups,
                    other_places,
                    other_keep,
                    others,
                    other_groups,
                    KEYS,
                )
                products = tl.dot(g, tl.trans(other_g), input_precision=PRECISION)
                products = (products + e[:, None] * other_e[None, :]) * pairs
        for first in tl.range(0, m, M, disable_licm=True):
            j = first + tl.arange(0, M)
            inside, again = j < m, first // m  # 0, which the compiler does not know: tokens are loaded anew
            u = load_tokens(x, x_token, first_token + again, keep, dim, D, T)
            g, _ = load_given(
                value, value_token, factor, extra, at, first_token + again, keep, width, not KEYS, V, T
            )
            weights = load_matrix(matrix, columns, tl.arange(0, D), dim, first, m, M)
            p = exponents(u, weights, offset, 0, first, m, M, PRECISION)
            one, other = features(p, by, inside, KIND)
            grad_one, grad_other = tl.zeros([T, M], tl.float32), tl.zeros([T, M], tl.float32)
            if r == r_first:
                s, z = load_state(states, j, m, n_features, width, 0, V)
                if TOKENS:
                    product = tl.dot(g, tl.trans(s), input_precision=PRECISION) + e[:, None] * z[None, :]
                    grad_one += product * weight[:, None]
                if VALUES:
                    grad_v += tl.dot(one * weight[:, None], s, input_precision=PRECISION)
                if KIND != SINGLE:
                    s, z = load_state(states, m + j, 2 * m, n_features, width, 0, V)
                    if TOKENS:
                        product = tl.dot(g, tl.trans(s), input_precision=PRECISION) + e[:, None] * z[None, :]
                        grad_other += product * weight[:, None]
                    if VALUES:
                        grad_v += tl.dot(other * weight[:, None], s, input_precision=PRECISION)
            if CAUSAL:
                y = load_tokens(other_x, other_token, other_first + again, other_keep, dim, D, T)
                w = load_matrix(other_matrix, columns, tl.arange(0, D), dim, first, m, M)
                q = exponents(y, w, other_offset, 0, first, m, M, PRECISION)
                other_one, other_other = features(q, other_by, inside, KIND)
                if TOKENS:
                    grad_one += tl.dot(products, other_one, input_precision=PRECISION)
                if VALUES:
                    scores += tl.dot(one, tl.trans(other_one), input_precision=PRECISION)
                if KIND != SINGLE:
                    if TOKENS:
                        grad_other += tl.dot(products, other_other, input_precision=PRECISION)
                    if VALUES:
                        scores += tl.dot(other, tl.trans(other_other), input_precision=PRECISION)
            if TOKENS:
                along += tl.sum(one * grad_one, 1)
                if KIND != SINGLE:
                    along += tl.sum(other * grad_other, 1)
                grad_p = pull_features(one, other, grad_one, grad_other, KIND)
                grad += tl.dot(grad_p, tl.trans(weights), input_precision=PRECISION)
        if CAUSAL and VALUES:
            pairs = pair_weights(
                scales,
                tops,
                n,
                places,
                keep,
                length,
                groups,
                other_places,
                other_keep,
                others,
                other_groups,
                KEYS,
            )
            g, _ = load_given(
                other_value, other_value_token, other_factor, other_extra, other_at, other_first, other_keep,
                width, KEYS, V, T,
            )  # fmt: skip
            grad_v += tl.dot(scores * pairs, g, input_precision=PRECISION)
    here, local = (places < length)[:, None], tl.arange(0, T)[:, None]
    row = n.to(tl.int64) * length + first_token
    if VALUES:
        column = tl.arange(0, V)[None, :]
        tl.store(grad_value + row * width + (local * width + column), grad_v, mask=here & (column < width))
    if TOKENS:
        if KEYS:
            u = load_tokens(x, x_token, first_token, keep, dim, D, T)
            grad += pull_log_weight(
                u, along, matrix, offset, dim, m, columns, square, SHIFTED, D, M, PRECISION
            )
        k = tl.arange(0, D)[None, :]
        tl.store(grad_x + row * dim + (local * dim + k), grad, mask=here & (k < dim))
