"""Hashes of keys or values by a compiled loop, which reads a cache about as fast as memory allows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hrf._attention.loops.jit import jit

__all__ = ["add_hashes"]


@jit
def add_hashes(
    words: NDArray[np.unsignedinteger],
    strides: tuple[int, int, int],
    weights: NDArray[np.uint32],
    before: int,
    length: int,
    sums: NDArray[np.uint64],
) -> None:
    """Compute Σ word · weight modulo 2⁶⁴, over the first ``before`` tokens and over all.

    Args:
        words: memory that holds ``(B, H, S, n)`` words of 32 bits or fewer; the n words of a vector are adjacent.
        strides: from one batch element, head and token to the next, in words.
        weights: ``(S,)`` or more.
        before: number of tokens of the first sum.
        length: S.
        sums: where to write, ``(2, B, H, n)``.
    """
    n = sums.shape[3]
    total = np.empty(n, np.uint64)
    for b in range(sums.shape[1]):
        for h in range(sums.shape[2]):
            total[:] = 0
            for s in range(length):
                if s == before:
                    sums[0, b, h] = total
                weight, first = np.uint64(weights[s]), b * strides[0] + h * strides[1] + s * strides[2]
                vector = words[first : first + n]
                for i in range(n):
                    total[i] += np.uint64(vector[i]) * weight
            sums[1, b, h] = total
            if before == length:
                sums[0, b, h] = total
