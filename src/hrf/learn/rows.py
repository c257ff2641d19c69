"""Rows of a table, block by block: what estimators ask of their data, whoever holds it.

`ArrayRows` holds an array in memory; ``dask_rows.py`` has its twin for Dask collections. A *step* takes the rows of one
block, ``(n, d)``, and their targets (or ``None``); it runs where the block is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hrf.learn.progress import advance

__all__ = ["DTYPES", "Array", "ArrayRows", "Rows", "Step", "block_size"]

Array = NDArray[Any]
Result = TypeVar("Result")
Step = Callable[[Array, Any], Result]

DTYPES = (np.float64, np.float32)  # that estimators compute in; others become the first

_BLOCK_NUMBERS = 1 << 21  # features of a block: 16 MB in float64


class Rows(Protocol):
    """A table of rows, with one target per row where there are targets.

    Attributes:
        n_features: number d of columns.
        flat_targets: whether targets have one axis, ``(N,)``.
    """

    n_features: int
    flat_targets: bool

    def reduce(self, step: Step[Result], combine: Callable[[Result, Result], Result]) -> Result:
        """Apply the step to every block and combine the results."""

    def map(self, step: Step[Array]) -> Any:
        """Apply the step to every block and stack the results; lazily for Dask collections."""

    def sample(self, n: int, seed: int) -> tuple[Array, Array | None]:
        """Return up to n rows from all over the table, and their targets."""


def block_size(width: int) -> int:
    """Return the number of rows per block for features of this width."""
    return max(1, _BLOCK_NUMBERS // max(width, 1))


class ArrayRows:
    """Rows in memory, checked by scikit-learn already.

    Args:
        x: ``(N, d)``.
        y: ``(N,)`` or ``(N, k)``, or ``None``.
        width: number of features that a step makes per row.
    """

    def __init__(self, x: Array, y: Array | None, width: int) -> None:
        self.x, self.y, self.n_features = x, y, x.shape[1]
        self.flat_targets = y is not None and y.ndim == 1
        self._size = block_size(width)

    def reduce(self, step: Step[Result], combine: Callable[[Result, Result], Result]) -> Result:
        """Apply the step to every block and combine the results."""
        starts = self._starts()
        total = step(*self._block(0))
        for done, start in enumerate(starts[1:], start=1):
            advance("blocks", done, len(starts))
            total = combine(total, step(*self._block(start)))
        advance("blocks", len(starts), len(starts))
        return total

    def map(self, step: Step[Array]) -> Array:
        """Apply the step to every block and stack the results."""
        blocks = [step(*self._block(start)) for start in self._starts()]
        return np.concatenate(blocks)

    def sample(self, n: int, seed: int) -> tuple[Array, Array | None]:
        """Return up to n rows, drawn without replacement, and their targets."""
        if n >= len(self.x):
            return self.x, self.y
        chosen = np.sort(np.random.default_rng(seed).choice(len(self.x), n, replace=False))
        return self.x[chosen], None if self.y is None else self.y[chosen]

    def _starts(self) -> range:
        """First rows of all blocks, of which there is one even without rows."""
        return range(0, max(len(self.x), 1), self._size)

    def _block(self, start: int) -> tuple[Array, Array | None]:
        block = slice(start, start + self._size)
        return self.x[block], None if self.y is None else self.y[block]
