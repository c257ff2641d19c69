"""`KernelClassifier`: logistic regression or a support vector machine on features.

`fit` minimises the loss of all rows plus (α/2)‖w‖² by L-BFGS, one pass over the rows per step, in coordinates in which
the normal equations are the identity. `partial_fit` minimises the loss of its rows plus a quadratic, which stands for
all rows before them: the penalty, and their curvatures about the weights at that time.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from typing_extensions import Self

from hrf.advice.kernel_maps import KernelName
from hrf.checks import check_count, check_positive
from hrf.features.base import FeatureMap
from hrf.learn.base import FeatureModel
from hrf.learn.losses import LossName, loss_of
from hrf.learn.random_features import RandomFeatures
from hrf.learn.ridge import linear_step
from hrf.learn.rows import Array, Rows
from hrf.projections import ProjectionKind

__all__ = ["KernelClassifier"]


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
        feature_map: ``"auto"``, a name or a map, as in `RandomFeatures`.
        n_features: the largest number D of features.
        projection: one of `hrf.projections.KINDS`.
        random_state: a seed, a ``RandomState`` or ``None``.

    Attributes:
        features_: the fitted `RandomFeatures`.
        classes_: the classes, sorted.
        coef_: w, ``(D, 1)`` for two classes, ``(D, k)`` for more.
        intercept_: ``(1,)`` or ``(k,)``.
        n_iter_: number of steps of the last optimisation.

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
        feature_map: str | FeatureMap = "auto",
        n_features: int = 256,
        projection: ProjectionKind = "orthogonal",
        random_state: Any = None,
    ) -> None:
        super().__init__(kernel, gamma, feature_map, n_features, projection, random_state)
        self.loss = loss
        self.alpha = alpha
        self.max_iter = max_iter
        self.tol = tol

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from rows ``X (N, d)`` and their classes y ``(N,)``."""
        rows = self._rows(X, y, reset=True)
        self.classes_ = rows.reduce(_classes, np.union1d)
        if len(self.classes_) < 2:
            raise ValueError(f"the targets have 1 class, {self.classes_[0]!r}; expected 2 or more classes")
        self._begin(rows)
        self._add(rows)
        return self

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None) -> Self:
        """Continue with more rows; the first call needs all ``classes``."""
        if not hasattr(self, "features_"):
            if classes is None:
                raise ValueError(
                    "the first call of partial_fit has no classes; expected all classes, as classes="
                )
            self.classes_ = np.unique(classes)
        return super().partial_fit(X, y)

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
        # Curvature of all that came before: the penalty at first, which leaves out the intercept.
        self.precision_ = np.diag(np.append(np.full(width, float(self.alpha)), 0.0))

    def _add(self, rows: Rows) -> None:
        before, shape = self.weights_, self.weights_.shape
        gram = rows.reduce(partial(_gram, self.features_), np.add)
        metric = self.precision_ + loss_of(self.loss).bound * gram
        values, vectors = np.linalg.eigh(metric)
        # Weights per coordinate.
        change = vectors / np.sqrt(values.clip(min=np.finfo(float).eps * values[-1]))

        def objective(coordinates: Array) -> tuple[float, Array]:
            step = change @ coordinates.reshape(shape)
            value, slope = rows.reduce(partial(_loss, self, before + step), _plus)
            pull = self.precision_ @ step
            return value + 0.5 * float((step * pull).sum()), (change.T @ (slope + pull)).ravel()

        start = np.zeros(before.size)
        limit = self.tol * float(np.abs(objective(start)[1]).max())
        options: Any = {"maxiter": self.max_iter, "gtol": limit, "ftol": 0.0}
        found = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
        self.n_iter_ = int(found.nit)
        if found.nit >= self.max_iter:
            message = f"L-BFGS stopped after {found.nit} steps (max_iter); the weights are not the best yet"
            warnings.warn(message, ConvergenceWarning, stacklevel=3)
        self.weights_ = before + change @ found.x.reshape(shape)
        self.coef_, self.intercept_ = self.weights_[:-1], self.weights_[-1]
        self.precision_ = self.precision_ + rows.reduce(partial(_curvature, self, self.weights_), np.add)

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


def _classes(x: Array, y: Array) -> Array:
    """Step of `Rows`: the classes of a block."""
    check_classification_targets(y)
    return np.unique(y)


def _scored(model: KernelClassifier, finish: Any, x: Array, y: Any) -> Array:
    """Step of `Rows`: scores of a block, turned into what is asked for."""
    return finish(linear_step(model.features_, model.coef_, model.intercept_, x, y))


def _probabilities(scores: Array) -> Array:
    if scores.shape[1] > 1:
        return softmax(scores, axis=1)
    return np.hstack([expit(-scores), expit(scores)])


def _design(features: RandomFeatures, x: Array) -> Array:
    """Return features and a column of ones, ``(n, D + 1)``, in float64."""
    f = features.block(x)
    return np.hstack([f.astype(np.float64, copy=False), np.ones((len(f), 1))])


def _gram(features: RandomFeatures, x: Array, y: Any) -> Array:
    """Step of `Rows`: products of features and ones, summed over rows."""
    design = _design(features, x)
    return design.T @ design


def _loss(model: KernelClassifier, weights: Array, x: Array, y: Array) -> tuple[float, Array]:
    """Step of `Rows`: the loss at the weights, and its gradient."""
    loss, design, codes = loss_of(model.loss), _design(model.features_, x), model.codes(y)
    scores = design @ weights
    return loss.value(scores, codes), design.T @ loss.slope(scores, codes)


def _curvature(model: KernelClassifier, weights: Array, x: Array, y: Array) -> Array:
    """Step of `Rows`: the second derivative of the loss, on average over classes."""
    design = _design(model.features_, x)
    return (design * loss_of(model.loss).curvature(design @ weights, model.codes(y))[:, None]).T @ design


def _plus(first: tuple[float, Array], second: tuple[float, Array]) -> tuple[float, Array]:
    return first[0] + second[0], first[1] + second[1]
