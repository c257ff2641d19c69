"""`KernelClassifier`: logistic regression or a support vector machine on features.

`fit` minimises the loss of all rows plus (α/2)‖w‖² by Newton's method with conjugate gradients (``newton.py``). A
sample of rows per class stays behind (`KeptRows`) for `partial_fit`, which minimises the loss of the kept and of the
new rows. While no class has more rows than are kept, that is the loss of all rows so far. Afterwards the kept rows of a
class stand for all its rows, with larger weights, and a linear term makes the present weights w the minimum of what is
kept, so that a sample replaces all rows in the curvature of the loss but not in its minimum (Jordan, Lee, Yang, 2019).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from operator import add
from typing import Any, Literal, NamedTuple
from zlib import crc32

import numpy as np
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
from hrf.learn.newton import LinearProblem, Loss, count_rows, loss_gradient, minimise
from hrf.learn.random_features import seed_of
from hrf.learn.rows import Array, ArrayRows, Block, Rows
from hrf.projections import ProjectionKind

__all__ = ["LOSSES", "KernelClassifier", "loss_of"]

# Losses of linear classifiers: value and slope at scores.
#
# Scores are ``(n, 1)`` for two classes and ``(n, k)`` for more; ``codes (n,)`` are places of the true classes.


LossName = Literal["logistic", "squared_hinge"]


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


def _logistic_bend(scores: Array, codes: Array, along: Array) -> Array:
    if scores.shape[1] == 1:
        return expit(scores) * expit(-scores) * along
    probability = softmax(scores, axis=1)
    turned = probability * along
    return turned - probability * turned.sum(1, keepdims=True)


def _hinge_bend(scores: Array, codes: Array, along: Array) -> Array:
    return 2 * (_margins(scores, codes) > 0) * along


LOSSES: dict[LossName, Loss] = {
    "logistic": Loss(0.25, False, False, _logistic_value, _logistic_slope, _logistic_bend),
    "squared_hinge": Loss(2.0, True, False, _hinge_value, _hinge_slope, _hinge_bend),
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
    codes_by: Callable[[Array], Array], n_classes: int, most: int, seeds: list[int], block: Block
) -> KeptRows:
    """Step of `Rows`: the kept rows of a block; keys depend on the seeds and on the block."""
    weight = np.ones(len(block.x)) if block.weight is None else block.weight
    codes = codes_by(block.y)
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
        max_iter: most Newton steps; the search for a step makes up to 200 passes over the rows.
        tol: it stops when the gradient, in the metric of the preconditioner, is this share of the first one.
        kernel: ``"rbf"`` or ``"softmax"``, as in `RandomFeatures`.
        gamma: γ or ``"scale"``, as in `RandomFeatures`.
        feature_map: a name, ``"auto"`` or a map, as in `RandomFeatures`.
        n_features: the largest number D of features, or ``"auto"``, as in `RandomFeatures`.
        projection: one of `hrf.projections.KINDS`.
        random_state: a seed, a ``RandomState`` or ``None``.

    Attributes:
        features_: the fitted `RandomFeatures`.
        classes_: the classes, sorted.
        coef_: w, ``(D, 1)`` for two classes, ``(D, k)`` for more.
        intercept_: ``(1,)`` or ``(k,)``.
        n_iter_: number of Newton steps of the last optimisation.
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
        n_features: int | str = "auto",
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
        if not len(self.classes_):
            raise ValueError("sample_weight is 0 for all rows; expected at least one non-zero number")
        if len(self.classes_) < 2:
            raise ValueError(f"the targets have 1 class, {self.classes_[0]!r}; expected 2 or more classes")
        self._begin(rows)
        rows.width = self.features_.width
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
        width = self.features_.width
        self.weights_ = np.zeros((width + 1, 1 if len(self.classes_) == 2 else len(self.classes_)))
        self.penalty_ = np.append(np.full(width, float(self.alpha)), 0.0)[:, None]  # leaves out the intercept
        self.pull_ = np.zeros_like(self.weights_)
        self.kept_: list[Array] = []

    def _add(self, rows: Rows) -> None:
        kept = KeptRows(*self.kept_) if self.kept_ else None
        tables = [rows] if kept is None else [self._table(kept), rows]
        problem = self._problem(tables)
        self.weights_ = self._minimised(problem, tables)
        self.coef_, self.intercept_ = self.weights_[:-1], self.weights_[-1]
        most = kept_per_class(rows.n_features, len(self.classes_))
        draw = partial(
            keep, self._codes, len(self.classes_), most, [seed_of(self.random_state), self._n_seen(kept)]
        )
        new = rows.reduce(draw, partial(KeptRows.plus, most=most))
        kept = new if kept is None else kept.plus(new, most)
        if kept.thinned:
            loss = loss_gradient(problem, [self._table(kept)], self.weights_)
            self.pull_ = -loss - self.penalty_ * self.weights_
        self.kept_ = list(kept)

    def _minimised(self, problem: LinearProblem, tables: list[Rows]) -> Array:
        """Return the weights with the least loss of the tables, penalty and linear term."""
        found = minimise(
            problem,
            tables,
            self.weights_,
            self.penalty_,
            self.pull_,
            tol=self.tol,
            max_steps=self.max_iter,
            seed=seed_of(self.random_state),
        )
        self.n_iter_ = found.n_steps
        if not found.converged:
            n = found.n_steps
            message = f"Newton's method stopped after {n} steps (max_iter); the weights are not the best yet"
            warnings.warn(message, ConvergenceWarning, stacklevel=4)
        return found.weights

    def _problem(self, tables: list[Rows]) -> LinearProblem:
        loss, n_rows = loss_of(self.loss), 0.0
        if self.features_.feature_map_.whitening is not None and self._dtype(self.alpha, 0.0) == np.float32:
            n_rows = sum(rows.reduce(count_rows, add) for rows in tables)
        return LinearProblem(loss, self._codes, self.features_, self._dtype(self.alpha, loss.bound * n_rows))

    @property
    def _codes(self) -> Callable[[Array], Array]:
        """The step that turns targets into places of classes, without the model, whose kept rows may be many."""
        return partial(codes_of, self.classes_)

    def _table(self, kept: KeptRows) -> Rows:
        return ArrayRows(kept.x, self.classes_[kept.codes], kept.scaled_weight, width=self.features_.width)

    @staticmethod
    def _n_seen(kept: KeptRows | None) -> int:
        return 0 if kept is None else int(kept.totals.sum())

    def _best(self, scores: Array) -> Array:
        places = (scores[:, 0] > 0).astype(int) if scores.shape[1] == 1 else scores.argmax(1)
        return self.classes_[places]


def codes_of(classes: Array, y: Array) -> Array:
    """Return the places of targets among the classes, sorted; refuse a class that is not there."""
    codes = np.searchsorted(classes, y).clip(max=len(classes) - 1)
    if len(unknown := np.unique(y[classes[codes] != y])):
        raise ValueError(f"y has the class {unknown[0]!r}; expected one of {', '.join(map(repr, classes))}")
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
