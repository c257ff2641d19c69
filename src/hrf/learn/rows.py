"""Rows of a table, block by block: what estimators ask of their data, whoever holds it.

`ArrayRows` holds an array or a sparse matrix in memory; ``dask_rows.py`` has its twin for Dask collections. A *step*
takes one `Block`, which has at least one row; it runs where the block is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_array

from hrf.learn.progress import advance

__all__ = [
    "DTYPES",
    "Array",
    "ArrayRows",
    "Block",
    "Rows",
    "Step",
    "as_columns",
    "block_size",
    "check_weights",
]

Array = NDArray[Any]
Result = TypeVar("Result")

DTYPES = (np.float64, np.float32)  # that estimators compute in; others become the first

_BLOCK_NUMBERS = 1 << 21  # features of a block: 16 MB in float64


class Block(NamedTuple):
    """Rows ``(n, d)``, targets ``(n,)`` or ``(n, k)``, and weights ``(n,)``; ``None`` where there are none.

    A row of weight w counts as w equal rows.
    """

    x: Array
    y: Any = None
    weight: Array | None = None

    def weighted(self, values: Array) -> Array:
        """Multiply values, one per row along the first axis, by the weights of the rows."""
        return values if self.weight is None else (values.T * self.weight).T

    @property
    def n_rows(self) -> float:
        """Number of rows, each counted with its weight."""
        return float(len(self.x)) if self.weight is None else float(self.weight.sum())


Step = Callable[[Block], Result]


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

    def map(self, step: Callable[[Array], Array]) -> Any:
        """Apply the step to the rows of every block and stack the results; lazily for Dask collections."""

    def sample(self, n: int, seed: int) -> Block:
        """Return up to n rows from all over the table, with targets and weights; rows of weight 0 are left out."""


def block_size(width: int) -> int:
    """Return the number of rows per block for features of this width."""
    return max(1, _BLOCK_NUMBERS // max(width, 1))


def as_columns(targets: Array) -> Array:
    """Return targets ``(n,)`` or ``(n, k)`` as columns ``(n, k)``."""
    return targets[:, None] if targets.ndim == 1 else targets


def check_weights(weight: Any, n: int) -> Array:
    """Return the weights of n rows in float64, ``(n,)``; refuse numbers that are negative or not finite."""
    given = np.full(n, weight) if np.isscalar(weight) else weight
    weights = check_array(
        given, ensure_2d=False, dtype=np.float64, input_name="sample_weight", ensure_min_samples=0
    )
    if weights.shape != (n,):
        raise ValueError(f"sample_weight has shape {weights.shape}; expected one weight per row, ({n},)")
    if (weights < 0).any():
        raise ValueError(f"sample_weight has the value {weights.min():g}; expected weights of 0 or more")
    return weights


class ArrayRows:
    """Rows in memory, checked by scikit-learn already.

    Args:
        x: ``(N, d)``: an array, or a sparse matrix in CSR format, of which blocks are made dense.
        y: ``(N,)`` or ``(N, k)``, or ``None``.
        width: number of features that a step makes per row.
        weight: ``(N,)``, or ``None``.
    """

    def __init__(self, x: Any, y: Array | None, width: int, weight: Array | None = None) -> None:
        self.x, self.y, self.weight, self.n_features = x, y, weight, x.shape[1]
        self.flat_targets = y is not None and y.ndim == 1
        self._size = block_size(max(width, x.shape[1]))

    def reduce(self, step: Step[Result], combine: Callable[[Result, Result], Result]) -> Result:
        """Apply the step to every block and combine the results."""
        starts = self._starts()
        total = step(self._block(0))
        for done, start in enumerate(starts[1:], start=1):
            advance("blocks", done, len(starts))
            total = combine(total, step(self._block(start)))
        advance("blocks", len(starts), len(starts))
        return total

    def map(self, step: Callable[[Array], Array]) -> Array:
        """Apply the step to the rows of every block and stack the results."""
        return np.concatenate([step(self._block(start).x) for start in self._starts()])

    def sample(self, n: int, seed: int) -> Block:
        """Return up to n rows, drawn without replacement, with their targets and weights."""
        there = np.arange(self.x.shape[0]) if self.weight is None else np.flatnonzero(self.weight)
        if n < len(there):
            there = np.sort(np.random.default_rng(seed).choice(there, n, replace=False))
        return self._part(there) if len(there) < self.x.shape[0] else self._part(slice(None))

    def _starts(self) -> range:
        return range(0, self.x.shape[0], self._size)

    def _block(self, start: int) -> Block:
        return self._part(slice(start, start + self._size))

    def _part(self, rows: Any) -> Block:
        y, weight = (None if u is None else u[rows] for u in (self.y, self.weight))
        x = self.x[rows]
        return Block(x if isinstance(x, np.ndarray) else x.toarray(), y, weight)
