"""Rows of a table, block by block: what estimators ask of their data, whoever holds it.

`ArrayRows` holds an array or a sparse matrix in memory; ``dask_rows.py`` has its twin for Dask collections. A *step*
takes one `Block`, which has at least one row; it runs where the block is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_array
from typing_extensions import Self

from hrf import report

__all__ = [
    "DTYPES",
    "Array",
    "ArrayRows",
    "Block",
    "Rows",
    "Spectrum",
    "Step",
    "Sums",
    "advance",
    "as_columns",
    "check_weights",
    "progress",
    "wanted",
]

# A progress bar over blocks, for any estimator, around a call: ``with hrf.learn.progress(): model.fit(x, y)``.


_BAR: ContextVar[report.Progress | None] = ContextVar("hrf.learn.progress", default=None)


@contextmanager
def progress() -> Iterator[None]:
    """Show how many blocks are done while the block of code runs, on stderr of a terminal. Needs rich."""
    with report.progress("blocks") as bar:
        token = _BAR.set(bar)
        try:
            yield
        finally:
            _BAR.reset(token)


def wanted() -> bool:
    """Whether a bar is shown."""
    return _BAR.get() is not None


def advance(name: str, done: int, total: int) -> None:
    """Move the bar, if there is one."""
    bar = _BAR.get()
    if bar is not None:
        bar(name, done, total)


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


# Normal equations: sums over rows of features φ and targets y, all that a linear model needs to know of its data.


class Sums(NamedTuple):
    """Sums over rows, each with its weight, in float64.

    Attributes:
        n_rows: number n of rows.
        features: Σ φ, ``(D,)``.
        gram: Σ φφᵀ, ``(D, D)``.
        targets: Σ y, ``(k,)``; k is 0 without targets.
        cross: Σ φyᵀ, ``(D, k)``.
        squares: Σ y², ``(k,)``.
    """

    n_rows: Array
    features: Array
    gram: Array
    targets: Array
    cross: Array
    squares: Array

    @classmethod
    def of(cls, block: Block) -> Self:
        """Sum over rows of features ``(n, D)`` and targets ``(n, k)``."""
        f = block.x.astype(np.float64, copy=False)
        y = np.zeros((len(f), 0)) if block.y is None else block.y.astype(np.float64, copy=False)
        wf, wy = block.weighted(f), block.weighted(y)
        with np.errstate(over="ignore"):  # targets of 1e200 are sound but for their squares
            squares = (wy * y).sum(0)
        return cls(np.array(block.n_rows), wf.sum(0), wf.T @ f, wy.sum(0), wf.T @ y, squares)

    def plus(self, other: Sums) -> Self:
        """Add the sums over other rows."""
        return type(self)(*(a + b for a, b in zip(self, other, strict=True)))

    def centred(self) -> Self:
        """Return the sums of φ and y less their means."""
        mean = self.features / self.n_rows
        mean_target = self.targets / self.n_rows
        return self._replace(
            features=np.zeros_like(self.features),
            gram=self.gram - np.outer(self.features, mean),
            targets=np.zeros_like(self.targets),
            cross=self.cross - np.outer(mean, self.targets),
            squares=self.squares - self.targets * mean_target,
        )


class Spectrum(NamedTuple):
    """Eigenvalues ``(D,)``, ascending and not negative, and eigenvectors ``(D, D)`` in columns."""

    values: Array
    vectors: Array

    @classmethod
    def of(cls, gram: Array) -> Self:
        """Decompose a Gram matrix; rounding below zero is cut off."""
        values, vectors = np.linalg.eigh(gram)
        return cls(values.clip(min=0), vectors)

    def solve(self, penalty: float, right: Array) -> Array:
        """Return (G + penalty·I)⁻¹ times the right side ``(D, k)``; directions that are 0 in G need a penalty."""
        shifted = self.values + penalty
        floor = max(np.finfo(np.float64).eps * float(shifted[-1]), np.finfo(np.float64).tiny)
        inverse = np.where(shifted > floor, 1 / np.maximum(shifted, floor), 0.0)
        return self.vectors @ (inverse[:, None] * (self.vectors.T @ right))
