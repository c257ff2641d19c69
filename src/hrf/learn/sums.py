"""Normal equations: sums over rows of features φ and targets y, all that a linear model needs to know of its data."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from typing_extensions import Self

from hrf.learn.rows import Array, Block

__all__ = ["Spectrum", "Sums"]


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
