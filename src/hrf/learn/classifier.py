"""`KernelClassifier`: logistic regression or a support vector machine on features.

`fit` minimises the loss of all rows plus (α/2)‖w‖² by L-BFGS, one pass over the rows per step, in coordinates in which
the normal equations are the identity. A sample of rows per class stays behind (`KeptRows`) for `partial_fit`,
which minimises the loss of the kept and of the new rows. While no class has more rows than are kept, that is the loss
of all rows so far. Afterwards the kept rows of a class stand for all its rows, with larger weights, and a linear term
makes the present weights w the minimum of what is kept, so that a sample replaces all rows in the curvature of the loss
but not in its minimum (Jordan, Lee, Yang, 2019).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple
from zlib import crc32

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, log_softmax, softmax
from sklearn.base import ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from typing_extensions import Self

from hrf.advice.kernel_advisor import KernelName
from hrf.checks import check_count, check_positive
from hrf.features.base import FeatureMap
from hrf.learn.linear_models import FeatureModel, linear_step
from hrf.learn.random_features import RandomFeatures, seed_of
from hrf.learn.rows import Array, ArrayRows, Block, Rows
from hrf.projections import ProjectionKind

__all__ = ["LOSSES", "KernelClassifier", "loss_of"]

# Losses of linear classifiers: value and slope at scores.
#
# Scores are ``(n, 1)`` for two classes and ``(n, k)`` for more; ``codes (n,)`` are places of the true classes.


LossName = Literal["logistic", "squared_hinge"]


class Loss(NamedTuple):
    """A loss.

    Attributes:
        bound: the largest curvature in any score.
        value: the loss of every row of ``(scores, codes)``, ``(n,)``.
        slope: its derivative by the scores.
    """

    bound: float
    value: Callable[[Array, Array], Array]
    slope: Callable[[Array, Array], Array]


def _signs(scores: Array, codes: Array) -> Array:
    """Return 1 for the true class and −1 for all others; for two classes, the sign of the second one."""
    return np.where(np.equal(codes[:, None], _places(scores)), 1.0, -1.0)


def _places(scores: Array) -> Array:
    return np.array([1]) if scores.shape[1] == 1 else np.arange(scores.shape[1])


def _logistic_value(scores: Array, codes: Array) -> Array:
    if scores.shape[1] == 1:
        return np.logaddexp(0, -_signs(scores, codes) * scores)[:, 0]
    return -np.take_along_axis(log_softmax(scores, axis=1), codes[:, None], 1)[:, 0]


def _logistic_slope(scores: Array, codes: Array) -> Array:
    probability = expit(scores) if scores.shape[1] == 1 else softmax(scores, axis=1)
    return probability - np.equal(codes[:, None], _places(scores))


def _margins(scores: Array, codes: Array) -> Array:
    """Return max(0, 1 − sign · score)."""
    return (1 - _signs(scores, codes) * scores).clip(min=0)


def _hinge_value(scores: Array, codes: Array) -> Array:
    return np.square(_margins(scores, codes)).sum(1)


def _hinge_slope(scores: Array, codes: Array) -> Array:
    return -2 * _signs(scores, codes) * _margins(scores, codes)


LOSSES: dict[LossName, Loss] = {
    "logistic": Loss(0.25, _logistic_value, _logistic_slope),
    "squared_hinge": Loss(2.0, _hinge_value, _hinge_slope),
}


def loss_of(name: LossName) -> Loss:
    """Look up a loss by its name."""
    if name not in LOSSES:
        raise ValueError(f"loss is {name!r}; expected one of {', '.join(LOSSES)}")
    return LOSSES[name]


# A sample of rows per class that stands for all rows so far.
#
# Every row gets a random key, and a class keeps the rows with its smallest keys. Samples of parts combine to a sample
# of all rows, in any order (bottom-k sampling; Cohen, Kaplan, 2007).


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


class KernelClassifier(ClassifierMixin, FeatureModel):
    """Kernel classifier: min Σ loss + (α/2)‖w‖², with intercepts that are not penalised.

    Args:
        loss: ``"logistic"`` (softmax for more than two classes), or ``"squared_hinge"`` for a support vector machine,
            one class against the rest.
        alpha: the penalty α; 1/C of scikit-learn's SVC.
        max_iter: most steps of L-BFGS, a pass over the rows each.
        tol: it stops when no derivative is larger than this share of the largest one at the start.
        kernel: ``"rbf"`` or ``"softmax"``, as in `RandomFeatures`.
        gamma: γ or ``"scale"``, as in `RandomFeatures`.
        feature_map: a name, ``"auto"`` or a map, as in `RandomFeatures`.
        n_features: the largest number D of features.
        projection: one of `hrf.projections.KINDS`.
        random_state: a seed, a ``RandomState`` or ``None``.

    Attributes:
        features_: the fitted `RandomFeatures`.
        classes_: the classes, sorted.
        coef_: w, ``(D, 1)`` for two classes, ``(D, k)`` for more.
        intercept_: ``(1,)`` or ``(k,)``.
        n_iter_: number of steps of the last optimisation.
        kept_: up to 16,384 of the rows, with their classes and weights, for `partial_fit`; files hold them too.

    >>> import numpy as np
    >>> from hrf.learn import KernelClassifier
    >>> x = np.random.default_rng(0).normal(size=(500, 2))
    >>> inside = np.where((x**2).sum(1) < 1, "inside", "outside")
    >>> KernelClassifier(alpha=0.01, random_state=0).fit(x, inside).score(x, inside) > 0.98
    True
    """

    def __init__(
        self,
        loss: LossName = "logistic",
        alpha: float = 1.0,
        max_iter: int = 200,
        tol: float = 1e-4,
        kernel: KernelName = "rbf",
        gamma: float | str = "scale",
        feature_map: str | FeatureMap = "trigonometric",
        n_features: int = 256,
        projection: ProjectionKind = "orthogonal",
        random_state: Any = None,
    ) -> None:
        super().__init__(kernel, gamma, feature_map, n_features, projection, random_state)
        self.loss = loss
        self.alpha = alpha
        self.max_iter = max_iter
        self.tol = tol

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn from rows ``X (N, d)``, their classes y ``(N,)`` and weights ``(N,)``."""
        rows = self._rows(X, y, sample_weight, reset=True)
        self.classes_ = rows.reduce(_classes, _union)
        if len(self.classes_) < 2:
            raise ValueError(f"the targets have 1 class, {self.classes_[0]!r}; expected 2 or more classes")
        self._begin(rows)
        self._add(rows)
        return self

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, sample_weight: Any = None) -> Self:
        """Continue with more rows, in any order; the first call needs all ``classes``."""
        if not hasattr(self, "features_"):
            if classes is None:
                raise ValueError(
                    "the first call of partial_fit has no classes; expected all classes, as classes="
                )
            self.classes_ = np.unique(classes)
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(
                f"classes={classes!r} is not the same as on last call to partial_fit; expected {self.classes_!r}"
            )
        return self._learn(X, y, sample_weight, reset=not hasattr(self, "features_"))

    def decision_function(self, X: Any) -> Any:
        """Return scores: ``(N,)`` for two classes, where the second is positive; ``(N, k)`` for more."""
        rows = self._new_rows(X)
        return rows.map(partial(_scored, self, np.ravel if len(self.classes_) == 2 else np.asarray))

    def predict(self, X: Any) -> Any:
        """Return the class of every row, ``(N,)``."""
        return self._new_rows(X).map(partial(_scored, self, self._best))

    @available_if(lambda self: self.loss == "logistic")
    def predict_proba(self, X: Any) -> Any:
        """Return the probability of every class, ``(N, k)``; for the logistic loss."""
        return self._new_rows(X).map(partial(_scored, self, _probabilities))

    def _numbers(self, y: Array) -> Array:
        return np.equal(y.reshape(-1, 1), self.classes_).astype(np.float64)

    def _begin(self, rows: Rows) -> None:
        loss_of(self.loss)
        check_positive("alpha", self.alpha)
        check_count("max_iter", self.max_iter)
        super()._begin(rows)
        width = self.features_.feature_map_.feature_dim
        self.weights_ = np.zeros((width + 1, 1 if len(self.classes_) == 2 else len(self.classes_)))
        self.penalty_ = np.append(np.full(width, float(self.alpha)), 0.0)[:, None]  # leaves out the intercept
        self.pull_ = np.zeros_like(self.weights_)
        self.kept_: list[Array] = []

    def _add(self, rows: Rows) -> None:
        kept = KeptRows(*self.kept_) if self.kept_ else None
        tables = [rows] if kept is None else [self._table(kept), rows]
        self.weights_ = self._minimised(tables)
        self.coef_, self.intercept_ = self.weights_[:-1], self.weights_[-1]
        most = kept_per_class(rows.n_features, len(self.classes_))
        draw = partial(
            keep, self.codes, len(self.classes_), most, [seed_of(self.random_state), self._n_seen(kept)]
        )
        new = rows.reduce(draw, partial(KeptRows.plus, most=most))
        kept = new if kept is None else kept.plus(new, most)
        if kept.thinned:
            self.pull_ = -self._slope([self._table(kept)], self.weights_)[1]
        self.kept_ = list(kept)

    def _minimised(self, tables: list[Rows]) -> Array:
        """Return the weights with the least loss of the tables, penalty and linear term."""
        before, shape = self.weights_, self.weights_.shape
        gram = sum(rows.reduce(partial(_gram, self.features_), np.add) for rows in tables)
        values, vectors = np.linalg.eigh(np.diag(self.penalty_[:, 0]) + loss_of(self.loss).bound * gram)
        # Weights per coordinate.
        change = vectors / np.sqrt(values.clip(min=np.finfo(float).eps * values[-1]))

        def objective(coordinates: Array) -> tuple[float, Array]:
            weights = before + change @ coordinates.reshape(shape)
            value, slope = self._slope(tables, weights)
            return value + float((self.pull_ * weights).sum()), (change.T @ (slope + self.pull_)).ravel()

        start = np.zeros(before.size)
        limit = self.tol * float(np.abs(objective(start)[1]).max())
        options: Any = {"maxiter": self.max_iter, "gtol": limit, "ftol": 0.0}
        found = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
        self.n_iter_ = int(found.nit)
        if found.nit >= self.max_iter:
            message = f"L-BFGS stopped after {found.nit} steps (max_iter); the weights are not the best yet"
            warnings.warn(message, ConvergenceWarning, stacklevel=4)
        return before + change @ found.x.reshape(shape)

    def _slope(self, tables: list[Rows], weights: Array) -> tuple[float, Array]:
        """Return loss and penalty at the weights, and their gradient."""
        parts = [rows.reduce(partial(_loss, self, weights), _plus) for rows in tables]
        pull = self.penalty_ * weights
        return sum(part[0] for part in parts) + 0.5 * float((weights * pull).sum()), sum(
            (part[1] for part in parts), pull
        )

    def _table(self, kept: KeptRows) -> Rows:
        return ArrayRows(kept.x, self.classes_[kept.codes], self.n_features, kept.scaled_weight)

    @staticmethod
    def _n_seen(kept: KeptRows | None) -> int:
        return 0 if kept is None else int(kept.totals.sum())

    def _best(self, scores: Array) -> Array:
        places = (scores[:, 0] > 0).astype(int) if scores.shape[1] == 1 else scores.argmax(1)
        return self.classes_[places]

    def codes(self, y: Array) -> Array:
        """Return the places of classes in `classes_`; refuse a class that is not there."""
        codes = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        if len(unknown := np.unique(y[self.classes_[codes] != y])):
            raise ValueError(
                f"y has the class {unknown[0]!r}; expected one of {', '.join(map(repr, self.classes_))}"
            )
        return codes


def _classes(block: Block) -> Array:
    """Step of `Rows`: the classes of a block, as far as rows have weights."""
    check_classification_targets(block.y)
    return np.unique(block.y if block.weight is None else block.y[block.weight > 0])


def _union(first: Array, second: Array) -> Array:
    """Return the classes of both; an array without classes has no say in their type."""
    return np.union1d(first, second) if len(first) and len(second) else first if len(first) else second


def _scored(model: KernelClassifier, finish: Any, x: Array) -> Array:
    """Step of `Rows`: scores of a block, turned into what is asked for."""
    return finish(linear_step(model.features_, model.coef_, model.intercept_, x))


def _probabilities(scores: Array) -> Array:
    if scores.shape[1] > 1:
        return softmax(scores, axis=1)
    return np.hstack([expit(-scores), expit(scores)])


def _design(features: RandomFeatures, x: Array) -> Array:
    """Return features and a column of ones, ``(n, D + 1)``, in float64."""
    f = features.block(x)
    return np.hstack([f.astype(np.float64, copy=False), np.ones((len(f), 1))])


def _gram(features: RandomFeatures, block: Block) -> Array:
    """Step of `Rows`: products of features and ones, summed over rows."""
    design = _design(features, block.x)
    return block.weighted(design).T @ design


def _loss(model: KernelClassifier, weights: Array, block: Block) -> tuple[float, Array]:
    """Step of `Rows`: the loss at the weights, and its gradient."""
    loss, design, codes = loss_of(model.loss), _design(model.features_, block.x), model.codes(block.y)
    scores = design @ weights
    value = float(block.weighted(loss.value(scores, codes)).sum())
    return value, design.T @ block.weighted(loss.slope(scores, codes))


def _plus(first: tuple[float, Array], second: tuple[float, Array]) -> tuple[float, Array]:
    return first[0] + second[0], first[1] + second[1]
