"""Causal summarised attention in compiled loops: each query descends the trees of its blocks, as in causal/descent.py.

Logits have the base 2: a weight is 2^logit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hrf._attention.loops.functions import exp2
from hrf._attention.loops.jit import jit
from hrf._attention.loops.rows import clear, scaled
from hrf._attention.loops.visits import LOG2E, LOWEST, NOTHING, WIDTH, add, find_lows, judge, meet_own, scores

__all__ = ["descend"]

Array = NDArray[np.float32]
Integers = NDArray[np.int64]

_ROOTS = WIDTH * WIDTH  # a tree has fewer
_LEVELS = 20
_ONE = np.float32(1)


@jit
def descend(
    jobs: Integers,
    queries: Array,
    own: Array,
    real: NDArray[np.bool_],
    spans: Integers,
    lists: Integers,
    blocks: Integers,
    centres: Array,
    placed_centres: Array,
    roots: Array,
    tables: Array,
    pairs: Array,
    counts: Integers,
    limits: Array,
    out: Array,
) -> None:
    """Attend from some positions of some heads.

    Args:
        jobs: head and position of each job, ``(·, 2)``.
        queries: ``(N, m, g, d)``.
        own: keys and values in their order, ``(N, ·, d + d_v)``.
        real: which of them are no padding, ``(N, ·)``.
        spans: first and last of the position's own keys, and its row of ``lists``, ``(m, 3)``.
        lists: blocks of each chunk, ``(·, ·)``, −1 where there are no more.
        blocks: number of keys, first row of the table and first cluster of each block, ``(B, 3)``.
        centres: r, ``(N, B, G, d)``.
        placed_centres: r R, likewise.
        roots: R, ``(N, B, d, d)``.
        tables: rows of nodes of all blocks, ``(N, ·, d + d_v + 4)``: by cell, then roots first and clusters last.
        pairs: keys and values by cluster, ``(N, ·, d + d_v)``.
        counts: keys of each cluster, ``(N, ·)``.
        limits: log₂(τ √WIDTH / number of keys that are seen), ``(N, m)``.
        out: outputs ``(N, m, g, d_v)``; written.
    """
    dim, width, n_lists = queries.shape[3], out.shape[3], lists.shape[1]
    x, moved, logits = np.empty(dim, out.dtype), np.empty(dim, out.dtype), np.empty(WIDTH, out.dtype)
    sums, total = np.empty(width, out.dtype), np.empty(2, out.dtype)
    deltas, lows = np.empty((n_lists, dim), out.dtype), np.empty((n_lists, _ROOTS), out.dtype)
    cells, widths = np.empty(n_lists, np.int64), np.empty(n_lists, out.dtype)
    stack = np.empty((_LEVELS * _ROOTS, 2), np.int64)
    for job in range(len(jobs)):
        head, place = jobs[job, 0], jobs[job, 1]
        chunk = spans[place, 2]
        table, key_values, sizes = tables[head], pairs[head], counts[head]
        n_blocks = 0
        while n_blocks < n_lists and lists[chunk, n_blocks] >= 0:
            n_blocks += 1
        for group in range(queries.shape[2]):
            scaled(queries[head, place, group], LOG2E, x)
            clear(sums)
            total[0], total[1] = LOWEST, 0
            meet_own(x, own[head], real[head], spans[place, 0], spans[place, 1], logits, sums, total)
            top = total[0]
            for i in range(n_blocks):
                b = lists[chunk, i]
                cells[i], widths[i] = _place(
                    queries[head, place, group], roots[head, b], placed_centres[head, b], moved
                )
                for k in range(dim):
                    deltas[i, k] = x[k] - LOG2E * centres[head, b, cells[i], k]
                first = blocks[b, 1] + cells[i] * _nodes(blocks[b, 0])
                top = max(top, find_lows(deltas[i], table, first, _n_roots(blocks[b, 0]), width, lows[i]))
            mass = total[1] * exp2(max(total[0] - top, NOTHING))
            for i in range(n_blocks):
                for j in range(_n_roots(blocks[lists[chunk, i], 0])):
                    mass += exp2(max(lows[i, j] - top, NOTHING))
            if mass > 0:
                bound = top + np.float32(np.log2(mass)) + limits[head, place]
                for i in range(n_blocks):
                    b = lists[chunk, i]
                    first = blocks[b, 1] + cells[i] * _nodes(blocks[b, 0])
                    n_opened = _read_roots(
                        widths[i],
                        bound,
                        lows[i],
                        _n_roots(blocks[b, 0]),
                        table,
                        first,
                        dim,
                        logits,
                        stack,
                        sums,
                        total,
                    )
                    _read_opened(
                        x, deltas[i], widths[i], bound, blocks[b, 0], table, first, key_values, sizes, blocks[b, 2],
                        n_opened, logits, stack, sums, total,
                    )  # fmt: skip
            _write(sums, total, out[head, place, group])


@jit
def _write(sums: Array, total: Array, out: Array) -> None:
    if total[1] > 0:
        scaled(sums, _ONE / total[1], out)
    else:
        clear(out)


@jit
def _n_roots(keys: int) -> int:
    """Return the number of roots of a block."""
    count = keys // WIDTH
    while count >= _ROOTS:
        count //= WIDTH
    return count


@jit
def _nodes(keys: int) -> int:
    """Return the number of nodes of a block and a cell."""
    count = keys // WIDTH
    total = count
    while count >= _ROOTS:
        count //= WIDTH
        total += count
    return total


@jit
def _place(x: Array, root: Array, placed_centres: Array, moved: Array) -> tuple[int, float]:
    """Return the cell with the nearest centre, and γ."""
    dim = len(x)
    clear(moved)
    for k in range(dim):
        factor = x[k]
        for j in range(k + 1):  # a lower triangle
            moved[j] += factor * root[k, j]
    best, nearest = 0, np.float32(np.inf)
    for i in range(len(placed_centres)):
        distance = np.float32(0)
        for k in range(dim):
            step = moved[k] - placed_centres[i, k]
            distance += step * step
        if distance < nearest:
            best, nearest = i, distance
    return best, nearest


@jit
def _read_roots(
    width: float,
    bound: float,
    lows: Array,
    n_roots: int,
    table: Array,
    first: int,
    dim: int,
    logits: Array,
    stack: Integers,
    sums: Array,
    total: Array,
) -> int:
    """Add roots to the sums, and put those to open on the stack; return their number."""
    n_opened = 0
    for start in range(0, n_roots, WIDTH):
        for j in range(WIDTH):
            logits[j] = lows[start + j]
        n_opened = judge(logits, width, bound, table, first + start, start, 0, n_opened, stack)
        add(logits, table, first + start, dim, sums, total)
    return n_opened


@jit
def _read_opened(
    x: Array,
    delta: Array,
    width: float,
    bound: float,
    keys: int,
    table: Array,
    first: int,
    pairs: Array,
    counts: Integers,
    first_cluster: int,
    n_opened: int,
    logits: Array,
    stack: Integers,
    sums: Array,
    total: Array,
) -> None:
    """Add the children of opened nodes to the sums, and the keys of opened clusters."""
    dim, n_clusters = len(x), keys // WIDTH
    at = len(delta) + len(sums)
    while n_opened > 0:
        n_opened -= 1
        before, node = stack[n_opened, 0], stack[n_opened, 1]
        count = _n_roots(keys)
        level_first = 0
        while level_first < before:
            level_first += count
            count *= WIDTH
        if count == n_clusters:
            start = (first_cluster + node) * WIDTH
            scores(x, pairs, start, counts[first_cluster + node], logits)
            add(logits, pairs, start, dim, sums, total)
            continue
        start = before + count + node * WIDTH
        scores(delta, table, first + start, WIDTH, logits)
        for j in range(WIDTH):
            logits[j] = max(logits[j] + LOG2E * table[first + start + j, at], LOWEST)
        n_opened = judge(
            logits, width, bound, table, first + start, node * WIDTH, before + count, n_opened, stack
        )
        add(logits, table, first + start, dim, sums, total)
