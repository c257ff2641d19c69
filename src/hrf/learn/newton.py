"""Newton's method with conjugate gradients: linear models too wide for normal equations, and all classifiers.

    min over w of   Σ loss(wᵀφ(x) + b, y) + ½ Σ penalty · w² + Σ pull · w

Every product with the Hessian is one pass over the rows: features are computed chunk by chunk, small enough for the
cache, and forgotten, or held where all of them take 1 GB or less. So memory is a chunk, a few vectors and the
preconditioner: the Hessian of a sample of rows, exact where the sample is all rows. Ridge regression is one step, since
its Hessian does not depend on w.

References:
    Avron, Clarkson, Woodruff, Faster Kernel Ridge Regression Using Sketching and Preconditioning, SIMAX 2017.
    Rudi, Carratino, Rosasco, FALKON: An Optimal Large Scale Kernel Method, NeurIPS 2017.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import add
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cho_solve
from scipy.linalg.lapack import dpotrf

from hrf.learn.random_features import RandomFeatures
from hrf.learn.rows import Array, ArrayRows, Block, Rows

__all__ = [
    "SINGLE_WIDTH",
    "LinearProblem",
    "Loss",
    "Minimum",
    "conjugate_gradients",
    "count_rows",
    "loss_gradient",
    "minimise",
]

_CHUNK_NUMBERS = 1 << 19  # features at a time: 2 MB in float32
_HELD_BYTES = 1 << 30
_SKETCHED_ROWS, _SKETCHED_NUMBERS = 8192, 1 << 29  # at most, both: 2 GB in float32
_SKETCHED_BLOCK = 2048  # rows
SINGLE_WIDTH = 512  # from which products are taken in float32
_LEAST_SHARE = {True: 3e-7, False: 1e-5}  # of the trace, by whether there are as many rows as columns
_INNER = 200  # most passes per Newton step
_HALVINGS = 30
_ENLARGED = 8  # most tries to factorise, each with ten times the penalty


class Loss(NamedTuple):
    """A convex loss of scores ``(n, k)`` and targets.

    Attributes:
        bound: the largest curvature in any score.
        separable: whether scores do not meet each other, so that columns can be solved at once, each by itself.
        quadratic: whether the curvature is the bound everywhere, so that one step is enough.
        value: the loss of every row of ``(scores, targets)``, ``(n,)``.
        slope: its derivative by the scores, ``(n, k)``.
        bend: the change of the slope along a direction, of ``(scores, targets, direction)``.
    """

    bound: float
    separable: bool
    quadratic: bool
    value: Callable[[Array, Any], Array]
    slope: Callable[[Array, Any], Array]
    bend: Callable[[Array, Any, Array], Array]


class LinearProblem(NamedTuple):
    """A problem without its rows.

    Attributes:
        loss: the loss.
        targets: turns targets of a block into what the loss expects.
        features: the transformer; ``None`` where rows are features already.
        dtype: precision of features; sums and vectors are float64.
    """

    loss: Loss
    targets: Callable[[Array], Array]
    features: RandomFeatures | None
    dtype: Any

    def unwhitened(self, x: Array) -> Array:
        """Return features of rows, up to their whitening, in the precision of the problem."""
        return x if self.features is None else self.features.unwhitened(x, self.dtype)


class Minimum(NamedTuple):
    """Weights ``(D + 1, k)``, the last row for the intercepts; number of Newton steps; whether they were enough."""

    weights: Array
    n_steps: int
    converged: bool


def minimise(
    problem: LinearProblem,
    tables: Sequence[Rows],
    start: Array,
    penalty: Array,
    pull: Array | float = 0.0,
    *,
    tol: float,
    max_steps: int,
    seed: int,
) -> Minimum:
    """Return the minimum, by Newton's method.

    Args:
        problem: loss and features.
        tables: rows with targets.
        start: first weights, ``(D + 1, k)``.
        penalty: one number per row of the weights, ``(D + 1, 1)``.
        pull: a linear term, in the shape of the weights.
        tol: stop when the gradient, in the metric of the preconditioner, is this share of the first one.
        max_steps: most steps.
        seed: of the sample of rows for the preconditioner.
    """
    sketch = Sketch.of(problem, tables, penalty, seed)
    held = [_held(problem, rows) for rows in tables]
    axis = 0 if problem.loss.separable else None
    weights = start

    def objective(at: Array) -> tuple[float, Array]:
        value, slope = _pass(problem, held, at, None)
        pulled = penalty * at
        return value + float((at * (0.5 * pulled + pull)).sum()), slope + pulled + pull

    value, gradient = objective(weights)
    first = size = sketch.norm(gradient)
    rounding = float(np.finfo(problem.dtype).eps)
    for step in range(max_steps):
        if size <= tol * first or not size:
            return Minimum(weights, step, True)

        def product(along: Array, at: Array = weights) -> Array:
            return _pass(problem, held, at, along)[1] + penalty * along

        forcing = tol if problem.loss.quadratic else min(0.1, np.sqrt(size / first))
        least = max(forcing, tol * first / size)
        direction, solved = conjugate_gradients(product, -gradient, sketch.solve, least, axis)
        if problem.loss.quadratic:
            return Minimum(weights + direction, 1, solved)
        if -float((gradient * direction).sum()) <= rounding * abs(value):
            return Minimum(weights + direction, step + 1, True)
        weights, value, gradient, moved = _searched(objective, weights, value, gradient, direction)
        size = sketch.norm(gradient)
        if not moved:
            return Minimum(weights, step + 1, True)
    return Minimum(weights, max_steps, size <= tol * first)


def _searched(
    objective: Callable[[Array], tuple[float, Array]],
    weights: Array,
    value: float,
    gradient: Array,
    along: Array,
) -> tuple[Array, float, Array, bool]:
    """Halve the step until the value falls by a share of what the slope promises; say whether any step was found."""
    slope, length = float((gradient * along).sum()), 1.0
    for _ in range(_HALVINGS):
        new_value, new_gradient = objective(weights + length * along)
        rounding = 1e-12 * abs(value)
        if new_value <= value + 1e-4 * length * slope + rounding:
            return weights + length * along, new_value, new_gradient, True
        length /= 2
    return weights, value, gradient, False


def conjugate_gradients(
    product: Callable[[Array], Array],
    right: Array,
    precondition: Callable[[Array], Array],
    tol: float,
    axis: int | None,
) -> tuple[Array, bool]:
    """Solve H x = right until residuals are ``tol`` of the right side, in the metric of the preconditioner.

    Return x, and whether 200 products were enough.

    Args:
        product: H times a matrix, ``(D, k) -> (D, k)``.
        right: ``(D, k)``.
        precondition: an approximate inverse of H.
        tol: the tolerance.
        axis: 0 to solve column by column at once, ``None`` if H mixes columns.
    """
    solution, residual = np.zeros_like(right), right.copy()
    scaled = precondition(residual)
    along = scaled
    size = (residual * scaled).sum(axis, keepdims=True)
    limit = tol**2 * size
    for _ in range(_INNER):
        if (size <= limit).all():
            return solution, True
        turned = product(along)
        curvature = (along * turned).sum(axis, keepdims=True)
        length = np.divide(size, curvature, out=np.zeros_like(size), where=curvature > 0)
        solution += length * along
        residual -= length * turned
        scaled = precondition(residual)
        before, size = size, (residual * scaled).sum(axis, keepdims=True)
        along = scaled + np.divide(size, before, out=np.zeros_like(size), where=before > 0) * along
    return solution, bool((size <= limit).all())


class Sketch(NamedTuple):
    """P⁻¹ for P = FᵀF + diag(p), where F has features and ones of a sample of rows, weighted to stand for all.

    p is the penalty, or a small share of tr FᵀF where that is larger; P need only be near the Hessian.

    Attributes:
        factor: Cholesky factor, lower, of P, or of I + RRᵀ for R = F diag(p)^−½ if F has fewer rows than columns.
        rows: R in that case, else ``None``.
        root: p^−½.
    """

    factor: Array
    rows: Array | None
    root: Array

    @classmethod
    def of(cls, problem: LinearProblem, tables: Sequence[Rows], penalty: Array, seed: int) -> Sketch:
        """Sample rows of all tables and factorise."""
        assert problem.features is not None
        most = max(1, min(_SKETCHED_ROWS, _SKETCHED_NUMBERS // problem.features.width) // len(tables))
        parts = [_sketched_rows(problem, rows, most, seed) for rows in tables]
        f = parts[0] if len(parts) == 1 else np.concatenate(parts)
        # What is smaller than rounding of float32 cannot be told from it.
        share = _LEAST_SHARE[len(f) >= f.shape[1]]
        filled = np.maximum(np.where(penalty > 0, penalty, penalty.max()), share * float(np.vdot(f, f)))
        root = 1 / np.sqrt(filled)
        if len(f) >= f.shape[1]:
            return cls(_factor((f.T @ f).astype(np.float64), filled[:, 0]), None, root)
        f *= root[:, 0].astype(f.dtype)
        return cls(_factor((f @ f.T).astype(np.float64), np.ones(len(f))), f, root)

    def solve(self, right: Array) -> Array:
        """Return P⁻¹ times ``(D + 1, k)``."""
        if self.rows is None:
            return cho_solve((self.factor, True), right, check_finite=False)
        scaled = self.root * right
        inner = (self.rows @ scaled.astype(self.rows.dtype)).astype(np.float64)
        solved = cho_solve((self.factor, True), inner, check_finite=False).astype(self.rows.dtype)
        return self.root * (scaled - self.rows.T @ solved)

    def norm(self, gradient: Array) -> float:
        """Return √(gᵀP⁻¹g)."""
        return float(np.sqrt(max((gradient * self.solve(gradient)).sum(), 0.0)))


def _factor(gram: Array, added: Array) -> Array:
    """Return the Cholesky factor of G + diag(p), with a larger p where rounding of float32 made G indefinite.

    The factor takes the place of G.
    """
    gram = gram.T  # the same numbers, in LAPACK's order
    diagonal = gram.diagonal().copy()
    for _ in range(_ENLARGED):
        np.fill_diagonal(gram, diagonal + added)
        factor, failed = dpotrf(gram, lower=1, clean=0, overwrite_a=1)
        if not failed:
            return factor
        for i in range(len(gram)):  # the triangle above the diagonal is what it was
            gram[i:, i] = gram[i, i:]
        added = 10 * added  # equal rows: errors of their products do not cancel
    raise np.linalg.LinAlgError(
        f"the features of the rows have no finite products: {diagonal.sum():g} in all"
    )


def _sketched_rows(problem: LinearProblem, rows: Rows, most: int, seed: int) -> Array:
    assert problem.features is not None
    sample = rows.sample(most, seed)
    total, found = rows.reduce(count_rows, add), sample.n_rows
    dtype = np.float32 if problem.features.width >= SINGLE_WIDTH else problem.dtype
    f = np.ones((len(sample.x), problem.features.width + 1), dtype)
    for start in range(0, len(f), _SKETCHED_BLOCK):
        block = slice(start, start + _SKETCHED_BLOCK)
        f[block, :-1] = problem.features.block(sample.x[block], dtype)
    weight = np.ones(len(f)) if sample.weight is None else sample.weight
    f *= np.sqrt(problem.loss.bound * total / found * weight).astype(f.dtype)[:, None]
    return f


def count_rows(block: Block) -> float:
    """Step of `Rows`: number of rows, each counted with its weight."""
    return block.n_rows


# Passes over the rows.


def loss_gradient(problem: LinearProblem, tables: Sequence[Rows], weights: Array) -> Array:
    """Return the gradient of the loss alone, ``(D + 1, k)``."""
    return _pass(problem, [(problem, rows) for rows in tables], weights, None)[1]


def _held(problem: LinearProblem, rows: Rows) -> tuple[LinearProblem, Rows]:
    """Return the problem with all features in memory, if they are few enough and the rows are in memory."""
    features = problem.features
    assert features is not None
    n_bytes = features.width * np.dtype(problem.dtype).itemsize
    if not isinstance(rows, ArrayRows) or rows.x.shape[0] * n_bytes > _HELD_BYTES:
        return problem, rows
    held = rows.map(problem.unwhitened)
    return problem._replace(features=None), ArrayRows(held, rows.y, rows.weight, width=1)


def _pass(
    problem: LinearProblem, tables: Sequence[tuple[LinearProblem, Rows]], weights: Array, along: Array | None
) -> tuple[float, Array]:
    """Return the loss of all rows and its gradient, or, with a direction, the product of the Hessian with it."""
    features = problem.features
    assert features is not None
    both = weights
    if along is not None:  # a quadratic loss bends alike everywhere
        both = along if problem.loss.quadratic else np.hstack([weights, along])
    given = np.vstack([features.unwhitened_weights(both[:-1]), both[-1:]])
    parts = [rows.reduce(partial(_step, own, given, along is not None), _plus) for own, rows in tables]
    value, slope = sum(part[0] for part in parts), np.sum([part[1] for part in parts], 0)
    return value, np.vstack([features.whitened_gradient(slope[:-1]), slope[-1:]])


def _step(problem: LinearProblem, weights: Array, bent: bool, block: Block) -> tuple[float, Array]:
    """Step of `Rows`: loss and gradient of a block, or product of the Hessian with the last half of the columns."""
    targets, loss = problem.targets(block.y), problem.loss
    k = weights.shape[1] // 2 if bent and not loss.quadratic else weights.shape[1]
    given, value, total = weights[:-1].astype(problem.dtype), 0.0, np.zeros((len(weights), k))
    size = max(1, _CHUNK_NUMBERS // len(weights))
    for start in range(0, len(block.x), size):
        chunk = slice(start, start + size)
        own = Block(block.x[chunk], targets[chunk], None if block.weight is None else block.weight[chunk])
        f = problem.unwhitened(own.x)
        scores = (f @ given).astype(np.float64) + weights[-1]
        if bent:
            slope = own.weighted(loss.bend(scores[:, :k], own.y, scores[:, -k:]))
        else:
            value += float(own.weighted(loss.value(scores, own.y)).sum())
            slope = own.weighted(loss.slope(scores, own.y))
        total[:-1] += f.T @ slope.astype(problem.dtype)
        total[-1] += slope.sum(0)
    return value, total


def _plus(first: tuple[float, Array], second: tuple[float, Array]) -> tuple[float, Array]:
    return first[0] + second[0], first[1] + second[1]
