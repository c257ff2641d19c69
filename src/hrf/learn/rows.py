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
from scipy.linalg import cho_factor, cho_solve
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
    "ridge",
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
# Blocks of wider features have as many rows as columns, so that D × D products outweigh adding them up.
_WIDE, _MOST_ROWS = 1024, 4096


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
        width: number of features that steps make per row, from which the size of blocks follows.
    """

    n_features: int
    flat_targets: bool
    width: int

    def reduce(self, step: Step[Result], combine: Callable[[Result, Result], Result]) -> Result:
        """Apply the step to every block and combine the results."""

    def map(self, step: Callable[[Array], Array]) -> Any:
        """Apply the step to the rows of every block and stack the results; lazily for Dask collections."""

    def sample(self, n: int, seed: int) -> Block:
        """Return up to n rows from all over the table, with targets and weights; rows of weight 0 are left out."""


def block_size(width: int) -> int:
    """Return the number of rows per block for features of this width."""
    least = min(width, _MOST_ROWS) if width > _WIDE else 1
    return max(least, _BLOCK_NUMBERS // max(width, 1))


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
        weight: ``(N,)``, or ``None``.
        width: number of features that steps make per row.
    """

    def __init__(self, x: Any, y: Array | None, weight: Array | None = None, *, width: int = 1) -> None:
        self.x, self.y, self.weight, self.n_features, self.width = x, y, weight, x.shape[1], width
        self.flat_targets = y is not None and y.ndim == 1

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
        first = step(self._block(0).x)
        out = np.empty((self.x.shape[0], *first.shape[1:]), first.dtype)
        out[: len(first)] = first
        for start in self._starts()[1:]:
            out[start : start + self._size] = step(self._block(start).x)
        return out

    def sample(self, n: int, seed: int) -> Block:
        """Return up to n rows, drawn without replacement, with their targets and weights."""
        there = np.arange(self.x.shape[0]) if self.weight is None else np.flatnonzero(self.weight)
        if n < len(there):
            there = np.sort(np.random.default_rng(seed).choice(there, n, replace=False))
        return self._part(there) if len(there) < self.x.shape[0] else self._part(slice(None))

    def _starts(self) -> range:
        return range(0, self.x.shape[0], self._size)

    @property
    def _size(self) -> int:
        return block_size(max(self.width, self.n_features))

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
        """Sum over rows of features ``(n, D)``, whose products are taken in their precision, and targets ``(n, k)``."""
        f = block.x
        y = np.zeros((len(f), 0)) if block.y is None else block.y.astype(np.float64, copy=False)
        wy = block.weighted(y)
        # A product of one array with itself takes half the operations.
        root = f if block.weight is None else (f.T * np.sqrt(block.weight).astype(f.dtype)).T
        gram = (root.T @ root).astype(np.float64, copy=False)
        with np.errstate(over="ignore"):  # targets of 1e200 are sound but for their squares
            squares = (wy * y).sum(0)
        sums, cross = block.weighted(f).sum(0, dtype=np.float64), f.T.astype(np.float64, copy=False) @ wy
        return cls(np.array(block.n_rows), sums, gram, wy.sum(0), cross, squares)

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


def ridge(gram: Array, penalty: float, right: Array) -> Array:
    """Return (G + penalty·I)⁻¹ times the right side, by Cholesky unless the penalty is lost in rounding."""
    if penalty > np.finfo(np.float64).eps * float(gram.trace()):
        try:
            shifted = gram.copy()
            shifted.flat[:: len(gram) + 1] += penalty
            factor = cho_factor(shifted, lower=True, overwrite_a=True, check_finite=False)
            return cho_solve(factor, right, check_finite=False)
        except np.linalg.LinAlgError:  # rounding of float32 may make it indefinite
            pass
    return Spectrum.of(gram).solve(penalty, right)


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
