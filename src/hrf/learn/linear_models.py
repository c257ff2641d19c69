"""Models from normal equations: what all models share (features, streaming `fit` and `partial_fit`), ridge and PCA."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from numbers import Real
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    MultiOutputMixin,
    RegressorMixin,
    TransformerMixin,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted
from typing_extensions import Self

from hrf.advice.kernel_advisor import KernelName
from hrf.checks import check_count, check_positive
from hrf.features.base import FeatureMap
from hrf.learn.newton import SINGLE_WIDTH, LinearProblem, Loss, minimise
from hrf.learn.random_features import RandomFeatures, rows_of, seed_of
from hrf.learn.rows import Array, ArrayRows, Block, Rows, Spectrum, Sums, as_columns, ridge
from hrf.learn.storage import Saved
from hrf.projections import ProjectionKind

__all__ = [
    "SINGLE_WIDTH",
    "FeatureModel",
    "KernelPCA",
    "KernelRidge",
    "WeightedModel",
    "linear_step",
    "row_sums",
]


class FeatureModel(Saved, BaseEstimator):
    """A linear model on random features; subclasses define `_begin` and `_add`.

    `fit` and `partial_fit` read rows block by block and keep what does not grow with their number.
    """

    def __init__(
        self,
        kernel: KernelName,
        gamma: float | str,
        feature_map: str | FeatureMap,
        n_features: int | str,
        projection: ProjectionKind,
        random_state: Any,
    ) -> None:
        self.kernel = kernel
        self.gamma = gamma
        self.feature_map = feature_map
        self.n_features = n_features
        self.projection = projection
        self.random_state = random_state

    # Arguments of scikit-learn's ``validate_data`` for targets.
    _target_checks: ClassVar[dict[str, Any]] = {}

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from rows ``X (N, d)`` and targets y: arrays, data frames, or Dask collections."""
        return self._learn(X, y, reset=True, whole=True)

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Continue with more rows; the first call chooses γ and the map by its rows."""
        return self._learn(X, y, reset=not hasattr(self, "features_"))

    def _learn(self, x: Any, y: Any, weight: Any = None, *, reset: bool, whole: bool = False) -> Self:
        rows = self._rows(x, y, weight, reset=reset)
        if reset:
            self._begin(rows)
        rows.width = self._width
        (self._whole if whole else self._add)(rows)
        return self

    def _begin(self, rows: Rows) -> None:
        """Forget everything; choose γ and the map."""
        self.features_ = self._features().fit_rows(rows, self._numbers)

    @property
    def _width(self) -> int:
        return self.features_.width

    def _whole(self, rows: Rows) -> None:
        """Learn from all rows at once, as `fit` does."""
        self._add(rows)

    def _add(self, rows: Rows) -> None:
        raise NotImplementedError(f"{type(self).__name__} does not define how it learns")

    def _features(self, **changes: Any) -> RandomFeatures:
        """Return the transformer with the parameters of the model, not fitted."""
        arguments = {
            "kernel": self.kernel,
            "gamma": self.gamma,
            "feature_map": self.feature_map,
            "n_components": self.n_features,
            "projection": self.projection,
            "random_state": self.random_state,
        }
        return RandomFeatures(**arguments | changes)

    def _dtype(self, penalty: float, n_rows: float) -> Any:
        """Return the precision of products: float32 where its rounding is small beside the penalty."""
        least = max(_SINGLE_PENALTY, _SAFE * n_rows * self.features_.single_noise())
        return np.float32 if self.features_.width >= SINGLE_WIDTH and penalty >= least else np.float64

    def _numbers(self, y: Array) -> Array:
        """Turn targets into numbers ``(n, k)`` to choose a map by."""
        return as_columns(y).astype(np.float64)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _rows(self, x: Any, y: Any, weight: Any = None, *, reset: bool) -> Rows:
        if y is None and self.__sklearn_tags__().target_tags.required:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None; expected one target per row"
            )
        return rows_of(self, x, y, weight, reset=reset, **self._target_checks)

    def _new_rows(self, x: Any) -> Rows:
        """Check rows to predict for."""
        check_is_fitted(self, "features_")
        rows = rows_of(self, x, reset=False)
        rows.width = self.features_.width
        return rows


class WeightedModel(FeatureModel):
    """A model whose rows may have weights: a row of weight w counts as w equal rows, except where maps are chosen."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn from rows ``X (N, d)``, targets y, and weights ``(N,)``: arrays, data frames, or Dask collections."""
        return self._learn(X, y, sample_weight, reset=True, whole=True)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Continue with more rows; the first call chooses γ and the map by its rows."""
        return self._learn(X, y, sample_weight, reset=not hasattr(self, "features_"))


def row_sums(
    features: RandomFeatures, numbers: Callable[[Array], Array] | None, block: Block, dtype: Any = np.float64
) -> Sums:
    """Step of `Rows`: normal equations of a block, with targets turned into numbers unless they are left out."""
    y = None if numbers is None else numbers(block.y)
    return Sums.of(block._replace(x=features.block(block.x, dtype), y=y))


# `KernelRidge`: ridge regression on features, by the normal equations or by conjugate gradients.

Solver = Literal["auto", "direct", "iterative"]

_DIRECT_WIDTH, _DIRECT_WHITENED = 2048, 1024  # whitening features costs more than their normal equations
_SEARCHED_ROWS, _SEARCHED_WIDTH = 6144, 1024
_GAMMA_FACTORS, _PENALTIES = 2.0 ** np.arange(-5, 3), 10.0 ** np.arange(-8, 4)
_SINGLE_PENALTY, _SAFE = 1e-4, 10.0  # below, rounding of float32 would count


def _squared(scores: Array, targets: Array) -> Array:
    return 0.5 * np.square(scores - targets).sum(1)


def _bent(scores: Array, targets: Array, along: Array) -> Array:
    return along


SQUARED = Loss(1.0, True, True, _squared, np.subtract, _bent)


class KernelRidge(MultiOutputMixin, RegressorMixin, WeightedModel):
    """Kernel ridge regression: min Σ ‖y − wᵀφ(x) − b‖² + α‖w‖², with an intercept b that is not penalised.

    Up to 2,048 features (1,024 landmarks), sums of D² + Dk numbers are all that is kept of the rows, so that memory
    does not depend on how many there are. `fit` on wider maps takes conjugate gradients (`hrf.learn.newton`): memory
    of a few vectors and time in proportion to rows × features. Products of 512 features or more are taken in float32
    and summed in float64, unless α is so small, below 10⁻⁴ or what whitening makes of it, or rows are so long that
    rounding would count.

    Args:
        alpha: the penalty α, or ``"auto"`` for the best of twelve on held-out rows of a sample.
        solver: ``"direct"`` for normal equations, ``"iterative"`` for conjugate gradients, or ``"auto"``.
        tol: conjugate gradients stop at residuals of this share of the first, in the metric of the preconditioner.
        kernel: ``"rbf"`` or ``"softmax"``, as in `RandomFeatures`.
        gamma: γ or ``"scale"``, as in `RandomFeatures`, or ``"auto"`` for the best of eight about ``"scale"``. The
            search takes up to 6,144 rows and 1,024 features, and one eigendecomposition per γ serves all penalties.
        feature_map: a name, ``"auto"`` or a map, as in `RandomFeatures`.
        n_features: the largest number D of features, or ``"auto"``, as in `RandomFeatures`.
        projection: one of `hrf.projections.KINDS`.
        random_state: a seed, a ``RandomState`` or ``None``.

    Attributes:
        features_: the fitted `RandomFeatures`.
        alpha_: α as a number.
        coef_: w, ``(D,)``, or ``(D, k)`` for k targets per row.
        intercept_: b.
        sums_: the normal equations, for `partial_fit`; ``None`` after conjugate gradients.

    >>> import numpy as np
    >>> from hrf.learn import KernelRidge
    >>> x = np.random.default_rng(0).uniform(-3, 3, size=(1000, 1))
    >>> model = KernelRidge(alpha=1e-3, gamma=0.5, random_state=0).fit(x, np.sin(x[:, 0]))
    >>> model.score(x, np.sin(x[:, 0])) > 0.999
    True
    """

    _target_checks: ClassVar = {"multi_output": True, "y_numeric": True}

    def __init__(
        self,
        alpha: float | str = 1.0,
        kernel: KernelName = "rbf",
        gamma: float | str = "scale",
        feature_map: str | FeatureMap = "trigonometric",
        n_features: int | str = "auto",
        projection: ProjectionKind = "orthogonal",
        random_state: Any = None,
        solver: Solver = "auto",
        tol: float = 1e-3,
    ) -> None:
        super().__init__(kernel, gamma, feature_map, n_features, projection, random_state)
        self.alpha = alpha
        self.solver = solver
        self.tol = tol

    @available_if(lambda self: self.solver != "iterative")
    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Continue with more rows, by normal equations at any width; the first call chooses γ and the map."""
        if hasattr(self, "features_") and self.sums_ is None:
            raise ValueError(
                f"fit took conjugate gradients for {self.features_.width} features and kept no normal equations; "
                "expected solver='direct' before partial_fit"
            )
        return super().partial_fit(X, y, sample_weight)

    def predict(self, X: Any) -> Any:
        """Return predictions ``(N,)`` or ``(N, k)``; lazily for Dask collections."""
        rows = self._new_rows(X)
        return rows.map(partial(linear_step, self.features_, self.coef_, self.intercept_))

    def _begin(self, rows: Rows) -> None:
        if self.alpha != "auto" and not (isinstance(self.alpha, Real) and self.alpha >= 0):
            raise ValueError(f"alpha is {self.alpha!r}; expected a number, 0 or more, or 'auto'")
        if self.solver not in get_args(Solver):
            raise ValueError(f"solver is {self.solver!r}; expected one of {', '.join(get_args(Solver))}")
        check_positive("tol", self.tol)
        seed = seed_of(self.random_state)
        gamma, self.alpha_ = self._searched(rows, seed)
        self.features_ = self._features(gamma=gamma, random_state=seed).fit_rows(rows, self._numbers)
        self.sums_: Sums | None = None
        self.flat_ = rows.flat_targets

    def _searched(self, rows: Rows, seed: int) -> tuple[Any, float]:
        """Return γ and α: as given, or the best on every fifth row of a sample."""
        gammas, penalties = [self.gamma], [self.alpha]
        if "auto" not in (self.gamma, self.alpha):
            return self.gamma, float(self.alpha)
        sample = rows.sample(_SEARCHED_ROWS, seed)
        if self.gamma == "auto":
            scale = RandomFeatures(n_components=1).fit_rows(rows).gamma_
            gammas = [scale * factor for factor in _GAMMA_FACTORS]
        if self.alpha == "auto":
            penalties = [*_PENALTIES]
        held = np.random.default_rng(seed).permutation(np.arange(len(sample.x)) % 5 == 0)
        if held.sum() < 2:
            return ("scale" if self.gamma == "auto" else self.gamma), float(penalties[len(penalties) // 2])
        fitted, new = (
            Block(sample.x[kept], *(None if u is None else u[kept] for u in sample[1:]))
            for kept in (~held, held)
        )
        width = min(_SEARCHED_WIDTH, self.n_features) if isinstance(self.n_features, int) else _SEARCHED_WIDTH
        errors = {}
        for gamma in gammas:
            features = self._features(gamma=gamma, n_components=width, random_state=seed)
            features.fit_rows(ArrayRows(*fitted), self._numbers)
            for penalty, error in _path(features, self._numbers, fitted, new, penalties):
                errors[features.gamma_, penalty] = error
        return min(errors, key=lambda tried: errors[tried])

    def _whole(self, rows: Rows) -> None:
        whitened = self.features_.feature_map_.whitening is not None
        wide = self.features_.width > (_DIRECT_WHITENED if whitened else _DIRECT_WIDTH)
        if self.solver == "direct" or (self.solver == "auto" and not (wide and self.alpha_)):
            self._add(rows)
            return
        if not self.alpha_:
            raise ValueError("alpha is 0; expected a positive penalty for conjugate gradients")
        width = self.features_.width
        n_rows, total, largest = rows.reduce(partial(_target_sums, self._numbers), _added)
        unit = float(np.ldexp(1.0, np.frexp(largest)[1] - 1))  # a power of two, so that targets fit float32
        start = np.vstack([np.zeros((width, len(total))), total / unit / n_rows])
        penalty = np.append(np.full(width, self.alpha_), 0.0)[:, None]
        numbers = partial(_in_units, self._numbers, unit)
        problem = LinearProblem(SQUARED, numbers, self.features_, self._dtype(self.alpha_, n_rows))
        best = minimise(
            problem, [rows], start, penalty, tol=self.tol, max_steps=1, seed=seed_of(self.random_state)
        )
        if not best.converged:
            message = f"conjugate gradients did not reach tol={self.tol}; expected a larger tol or alpha"
            warnings.warn(message, ConvergenceWarning, stacklevel=4)
        self._set(unit * best.weights[:-1], unit * best.weights[-1])

    def _set(self, coef: Array, intercept: Any) -> None:
        self.coef_: Array
        self.intercept_: Any
        self.coef_, self.intercept_ = (coef[:, 0], intercept[0]) if self.flat_ else (coef, intercept)

    def _add(self, rows: Rows) -> None:
        n_rows = 0.0
        if self.features_.feature_map_.whitening is not None and self._dtype(self.alpha_, 0.0) == np.float32:
            n_rows = rows.reduce(partial(_target_sums, self._numbers), _added)[0]
        dtype = self._dtype(self.alpha_, n_rows)
        sums = rows.reduce(partial(row_sums, self.features_, self._numbers, dtype=dtype), Sums.plus)
        if self.sums_ is not None and len(sums.targets) != len(self.sums_.targets):
            raise ValueError(
                f"y has {len(sums.targets)} targets per row; expected {len(self.sums_.targets)}, as in the rows before"
            )
        self.sums_ = sums if self.sums_ is None else self.sums_.plus(sums)
        centred = self.sums_.centred()
        coef = ridge(centred.gram, self.alpha_, centred.cross)
        self._set(coef, (self.sums_.targets - self.sums_.features @ coef) / self.sums_.n_rows)


def _path(
    features: RandomFeatures, numbers: Any, fitted: Block, held: Block, penalties: Sequence[Any]
) -> Iterator[tuple[float, float]]:
    """Yield every penalty and its squared error on held-out rows, all from one eigendecomposition."""
    sums = row_sums(features, numbers, fitted)
    centred, n = sums.centred(), sums.n_rows
    spectrum = Spectrum.of(centred.gram)
    right = spectrum.vectors.T @ centred.cross
    rotated = (features.block(held.x, np.float64) - sums.features / n) @ spectrum.vectors
    for penalty in penalties:
        shifted = spectrum.values + max(penalty, np.finfo(np.float64).eps * float(spectrum.values[-1]))
        residual = rotated @ (right / shifted[:, None]) + sums.targets / n - numbers(held.y)
        yield float(penalty), float(held.weighted(np.square(residual)).sum())


def _target_sums(numbers: Callable[[Array], Array], block: Block) -> tuple[float, Array, float]:
    """Step of `Rows`: number of rows, sum of their targets, and the largest target without its sign."""
    y = numbers(block.y)
    return block.n_rows, block.weighted(y).sum(0), float(np.abs(y).max())


def _added(
    first: tuple[float, Array, float], second: tuple[float, Array, float]
) -> tuple[float, Array, float]:
    return first[0] + second[0], first[1] + second[1], max(first[2], second[2])


def _in_units(numbers: Callable[[Array], Array], unit: float, y: Array) -> Array:
    return numbers(y) / unit


def linear_step(features: RandomFeatures, coef: Array, intercept: Any, x: Array) -> Array:
    """Step of `Rows`: φᵀw + b of a block, in the precision of x."""
    return (features.unwhitened(x) @ features.unwhitened_weights(coef).astype(x.dtype) + intercept).astype(
        x.dtype
    )


# `KernelPCA`: principal components of features.


class KernelPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, FeatureModel):
    """Kernel principal components: projections of φ(x) less its mean on the axes of largest variance.

    The projections are those of scikit-learn's ``KernelPCA``, up to signs and the error of the features; nothing of the
    size of the kernel matrix is made.

    Args:
        n_components: number of axes.
        kernel: ``"rbf"`` or ``"softmax"``, as in `RandomFeatures`.
        gamma: γ or ``"scale"``, as in `RandomFeatures`.
        feature_map: a name, ``"auto"`` or a map, as in `RandomFeatures`.
        n_features: the largest number D of features, or ``"auto"``, as in `RandomFeatures`.
        projection: one of `hrf.projections.KINDS`.
        random_state: a seed, a ``RandomState`` or ``None``.

    Attributes:
        features_: the fitted `RandomFeatures`.
        components_: the axes in feature space, ``(n_components, D)``, of length 1.
        eigenvalues_: sums of squares along the axes: the eigenvalues of the centred kernel matrix.
        explained_variance_ratio_: their shares of the total.

    >>> import numpy as np
    >>> from hrf.learn import KernelPCA
    >>> x = np.random.default_rng(0).normal(size=(300, 4))
    >>> KernelPCA(n_components=3, random_state=0).fit_transform(x).shape
    (300, 3)
    """

    def __init__(
        self,
        n_components: int = 2,
        kernel: KernelName = "rbf",
        gamma: float | str = "scale",
        feature_map: str | FeatureMap = "trigonometric",
        n_features: int | str = 256,
        projection: ProjectionKind = "orthogonal",
        random_state: Any = None,
    ) -> None:
        super().__init__(kernel, gamma, feature_map, n_features, projection, random_state)
        self.n_components = n_components

    def transform(self, X: Any) -> Any:
        """Project rows ``X (N, d)`` on the axes: ``(N, n_components)``; lazily for Dask collections."""
        rows = self._new_rows(X)
        axes = self.components_.T
        return rows.map(partial(linear_step, self.features_, axes, -self.mean_ @ axes))

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _rows(self, x: Any, y: Any, weight: Any = None, *, reset: bool) -> Rows:
        return super()._rows(x, None, reset=reset)

    def _begin(self, rows: Rows) -> None:
        super()._begin(rows)
        width = self.features_.feature_map_.feature_dim
        if check_count("n_components", self.n_components) > width:
            raise ValueError(
                f"n_components is {self.n_components}; expected at most the number of features, {width}"
            )
        self.sums_: Sums | None = None

    def _add(self, rows: Rows) -> None:
        sums = rows.reduce(partial(row_sums, self.features_, None), Sums.plus)
        self.sums_ = sums if self.sums_ is None else self.sums_.plus(sums)
        values, vectors = Spectrum.of(self.sums_.centred().gram)
        axes = np.ascontiguousarray(vectors[:, ::-1][:, : self.n_components].T)
        # One sign for one axis, whatever LAPACK returns.
        largest = np.take_along_axis(axes, np.abs(axes).argmax(1)[:, None], 1)
        self.components_ = axes * np.where(largest < 0, -1.0, 1.0)
        self.eigenvalues_ = values[::-1][: self.n_components].copy()
        self.explained_variance_ratio_ = self.eigenvalues_ / max(float(values.sum()), np.finfo(float).tiny)
        self.mean_ = self.sums_.features / self.sums_.n_rows
