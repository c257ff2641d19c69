"""Sizes of blocks, clusters and nodes of causal attention."""

from __future__ import annotations

__all__ = ["CHUNK", "MEMBERS", "WIDTH", "blocks_of", "n_cells", "node_counts"]

CHUNK = 128  # positions that are exact until they are finished; the smallest block
WIDTH = 8  # keys per cluster, and children per node
CELLS = 8  # of queries; twice as many where several query heads share a key head
MEMBERS = 512  # last positions of a block whose queries make its cells


def blocks_of(length: int) -> list[tuple[int, int]]:
    """Return start and size of the finished blocks before position ``length``: the binary digits of its chunks.

    >>> blocks_of(128 * 6 + 5)
    [(0, 512), (512, 256)]
    """
    chunks, start, found = length // CHUNK, 0, []
    for digit in reversed(range(chunks.bit_length())):
        size = CHUNK << digit
        if chunks >> digit & 1:
            found.append((start, size))
            start += size
    return found


def n_cells(groups: int) -> int:
    """Return the number of cells of a key head that serves ``groups`` query heads, a power of two."""
    return CELLS if groups == 1 else 2 * CELLS


def node_counts(keys: int) -> list[int]:
    """Return how many nodes each level of a block of ``keys`` keys has, from the roots to the clusters.

    >>> node_counts(128), node_counts(4096)
    ([16], [8, 64, 512])
    """
    counts = [keys // WIDTH]
    while counts[0] >= WIDTH * WIDTH:
        counts.insert(0, counts[0] // WIDTH)
    return counts
