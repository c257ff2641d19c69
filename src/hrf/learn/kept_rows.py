"""A sample of rows per class that stands for all rows so far.

Every row gets a random key, and a class keeps the rows with its smallest keys. Samples of parts combine to a sample of
all rows, in any order (bottom-k sampling; Cohen, Kaplan, 2007).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from zlib import crc32

import numpy as np
from typing_extensions import Self

from hrf.learn.rows import Array, Block

__all__ = ["KeptRows", "keep", "kept_per_class"]

_KEPT = 1 << 14  # rows of all classes
_KEPT_NUMBERS = 1 << 24  # the most numbers in them: 128 MB in float64


class KeptRows(NamedTuple):
    """Rows with their classes, weights and keys.

    Attributes:
        x: ``(n, d)``.
        codes: places of the classes, ``(n,)``.
        weight: ``(n,)``, above 0.
        key: uniform in [0, 1), ``(n,)``.
        totals: weights of all rows of each class, kept or not, ``(k,)``.
    """

    x: Array
    codes: Array
    weight: Array
    key: Array
    totals: Array

    def plus(self, other: KeptRows, most: int) -> Self:
        """Combine with the sample of other rows."""
        x, codes, weight, key = (np.concatenate(pair) for pair in zip(self[:-1], other[:-1], strict=True))
        return type(self)(x, codes, weight, key, self.totals + other.totals).cut(most)

    def cut(self, most: int) -> Self:
        """Keep the rows with the smallest keys of each class, in their order."""
        order = np.lexsort((self.key, self.codes))
        codes = self.codes[order]
        place = np.arange(len(codes)) - np.searchsorted(codes, codes)  # among the rows of the class
        chosen = np.sort(order[place < most])
        x, codes, weight, key = (column[chosen] for column in self[:-1])
        return type(self)(x, codes, weight, key, self.totals)

    @property
    def scaled_weight(self) -> Array:
        """Weights that add up to the weights of all rows of each class, ``(n,)``."""
        kept = np.bincount(self.codes, self.weight, minlength=len(self.totals))
        return self.weight * np.divide(self.totals, kept, out=np.ones_like(kept), where=kept > 0)[self.codes]

    @property
    def thinned(self) -> bool:
        """Whether rows are missing."""
        return bool(self.weight.sum() < (1 - 1e-9) * self.totals.sum())


def kept_per_class(n_columns: int, n_classes: int) -> int:
    """Return the largest number of rows that a class keeps."""
    return max(1, min(_KEPT, _KEPT_NUMBERS // n_columns) // n_classes)


def keep(
    codes_of: Callable[[Array], Array], n_classes: int, most: int, seeds: list[int], block: Block
) -> KeptRows:
    """Step of `Rows`: the kept rows of a block; keys depend on the seeds and on the block."""
    weight = np.ones(len(block.x)) if block.weight is None else block.weight
    codes = codes_of(block.y)
    totals = np.bincount(codes, weight, minlength=n_classes)
    key = np.random.default_rng([*seeds, crc32(block.x.tobytes())]).random(len(weight))
    there = weight > 0
    return KeptRows(block.x[there], codes[there], weight[there], key[there], totals).cut(most)
