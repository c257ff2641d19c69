"""The few directions in which vectors differ most in a metric, in compiled loops: trees need no others.

A path through a tree of L levels is cut along L directions at most, so vectors of `WIDTH` numbers serve as well as
longer ones, and cost less.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hrf._attention.loops.jit import jit
from hrf._attention.loops.products import add_product, add_product_transposed
from hrf._attention.loops.rows import add_scaled, clear, copy, decrease, dot, increase, scale

__all__ = ["WIDTH", "covariance", "leading", "root"]

Array = NDArray[np.float32]

WIDTH = 16  # directions
_SAMPLE = 256  # vectors that directions are found from
_ITERATIONS = 3
_BLOCK = 64  # rows of a product
_JITTER = np.float32(1e-5)  # of the trace
_TINY = np.float32(1e-30)


@jit
def leading(u: Array, metric: Array) -> Array:
    """Return a factor F ``(d, d or WIDTH)``: |u F|² is uᵀ metric u, but for directions in which rows differ little.

    Args:
        u: vectors ``(n, d)``.
        metric: ``(d, d)``.
    """
    dim = len(metric)
    factor = np.empty_like(metric)
    root(metric, factor)
    if dim <= WIDTH:
        return factor
    some = min(len(u), _SAMPLE)
    sample, mean, spread = np.empty((some, dim), u.dtype), np.empty(dim, u.dtype), np.empty_like(metric)
    for i in range(some):
        copy(u[i * len(u) // some], sample[i])
    covariance(sample, mean, spread)
    image, matrix = np.zeros_like(metric), np.zeros_like(metric)
    add_product(image, spread, factor)
    add_product_transposed(matrix, factor, image)
    directions = _top_eigenvectors(matrix)
    out = np.zeros((dim, WIDTH), u.dtype)
    add_product(out, factor, directions)
    return out


@jit
def _top_eigenvectors(matrix: Array) -> Array:
    """Return an orthonormal basis near the top eigenvectors of a symmetric matrix, ``(d, WIDTH)``."""
    dim = len(matrix)
    rows, images = np.empty((WIDTH, dim), matrix.dtype), np.empty((WIDTH, dim), matrix.dtype)
    for i in range(WIDTH):
        for j in range(dim):
            rows[i, j] = math.sin(
                np.float32(1.7) * (i + 1) * (j + 1)
            )  # any start that no eigenvector is orthogonal to
    for _ in range(_ITERATIONS):
        clear(images.reshape(-1))
        add_product(images, rows, matrix)
        for i in range(WIDTH):
            for k in range(i):
                add_scaled(images[i], images[k], -dot(images[i], images[k]))
            scale(images[i], 1 / max(np.sqrt(dot(images[i], images[i])), _TINY))
        rows, images = images, rows
    out = np.empty((dim, WIDTH), matrix.dtype)
    for j in range(dim):
        for i in range(WIDTH):
            out[j, i] = rows[i, j]
    return out


@jit
def covariance(u: Array, mean: Array, out: Array) -> None:
    """Write the mean of the rows ``u (n, d)`` and their covariance, ``(d, d)``."""
    n, dim = u.shape
    clear(mean)
    clear(out.reshape(-1))
    for j in range(n):
        increase(mean, u[j])
    inverse = np.float32(1) / max(n, 1)
    scale(mean, inverse)
    block = np.zeros((_BLOCK, dim), u.dtype)
    for start in range(0, n, _BLOCK):
        some = min(_BLOCK, n - start)
        for j in range(some):
            copy(u[start + j], block[j])
            decrease(block[j], mean)
        add_product_transposed(out, block[:some], block[:some])
    scale(out.reshape(-1), inverse)


@jit
def root(metric: Array, out: Array) -> None:
    """Write the Cholesky root R of a metric with some jitter, R Rᵀ = metric: ``|u R|²`` is uᵀ metric u."""
    dim, trace = len(metric), np.float32(0)
    for i in range(dim):
        trace += metric[i, i]
    clear(out.reshape(-1))
    for i in range(dim):
        for j in range(i + 1):
            total = metric[i, j]
            for k in range(j):
                total -= out[i, k] * out[j, k]
            if i == j:
                out[i, i] = np.sqrt(max(total + _JITTER * trace, _TINY))
            else:
                out[i, j] = total / out[j, j]
