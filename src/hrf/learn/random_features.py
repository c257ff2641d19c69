"""`RandomFeatures`: any map of hrf as a scikit-learn transformer."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Generator, Tensor
from typing_extensions import Self

from hrf.advice.errors import GramProblem, LabelledRows, plain_features, predicted_gram_error
from hrf.advice.kernel_advisor import LEAST_ROWS, KernelName, choose_map, input_scale, make_map
from hrf.checks import check_count
from hrf.features.base import FeatureMap
from hrf.features.gaussian import GaussianKernel
from hrf.learn.rows import DTYPES, Array, ArrayRows, Block, Rows, as_columns, check_weights
from hrf.learn.storage import Saved
from hrf.numerics import Features, half_square
from hrf.projections import ProjectionKind

__all__ = ["RandomFeatures", "rows_of", "seed_of"]

# Data that estimators are given: checked and turned into `Rows`.


def is_dask(data: Any) -> bool:
    """Whether data are a Dask array, data frame or series; looks at names only, so that Dask is not imported."""
    return type(data).__module__.partition(".")[0] in ("dask", "dask_expr")


def rows_of(estimator: Any, x: Any, y: Any = None, weight: Any = None, *, reset: bool, **checks: Any) -> Rows:
    """Check data as scikit-learn does and return their rows.

    Args:
        estimator: gets ``n_features_in_`` and ``feature_names_in_`` if ``reset``; they are compared otherwise.
        x: ``(N, d)``: an array, a sparse matrix, a data frame of pandas or polars, or a Dask array or data frame.
        y: targets, or ``None``.
        weight: weights of rows ``(N,)``, not negative, or ``None``.
        reset: whether the estimator learns its columns from this data.
        **checks: arguments of scikit-learn's ``validate_data``, for targets.
    """
    if any(map(is_dask, (x, y, weight))):
        from hrf.learn.dask_rows import dask_rows

        multi_output = checks.get("multi_output", False)
        return dask_rows(estimator, x, y, weight, reset=reset, multi_output=multi_output)
    shared: dict[str, Any] = {"dtype": DTYPES, "accept_sparse": "csr", "reset": reset}
    if y is None:
        x = validate_data(estimator, x, **shared)
    else:
        x, y = validate_data(estimator, x, y, **shared, **checks)
    return ArrayRows(x, y, None if weight is None else _some_weights(weight, x.shape[0]))


def _some_weights(weight: Any, n: int) -> Array:
    weights = check_weights(weight, n)
    if not weights.any():
        raise ValueError(f"sample_weight is 0 for all {n} rows; expected at least one non-zero number")
    return weights


_SAMPLED = 6144  # rows that maps are chosen by and fitted to
_SAMPLED_NUMBERS = 1 << 26  # the most numbers in them: 512 MB in float64
_WIDTHS = 256, 2048  # that "auto" stays between
_PAIRED = 256  # rows on each side of the pairs that errors are measured on
_LONG = 1e3  # times the rounding of float32 is an error of 10⁻⁴ in features
_MOST_CLASSES = 100  # whole numbers with more values than this are amounts, not classes


class RandomFeatures(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Saved, BaseEstimator):
    """Random features φ(x) whose products φ(x)·φ(y) estimate a kernel.

    Args:
        kernel: ``"rbf"`` for exp(−γ‖x − y‖²), or ``"softmax"`` for exp(γ xᵀy).
        gamma: γ, or ``"scale"`` for 1/(d · variance of X), as in scikit-learn's SVC.
        feature_map: one of ``trigonometric``, ``positive``, ``optimal-positive``, ``dense-exponential``, ``centred``;
            ``"auto"`` to compare maps on a few rows and take the best (by ridge regression where ``fit`` gets targets
            that are numbers, else by the kernel), for the time of about two more fits; or a `FeatureMap` of the softmax
            kernel or, for ``"rbf"``, of the Gaussian kernel, which is used as it is.
        n_components: the largest number D of features, or ``"auto"`` to follow the number N of rows: the power of two
            that is √N ln N or more, between 256 and 2,048. Projections make two features or more each.
        projection: how the rows ω are coupled, one of `hrf.projections.KINDS`.
        random_state: a seed, a ``RandomState`` or ``None``.

    Attributes:
        feature_map_: the map; it takes rows multiplied by `scale_`.
        map_name_: the name of the map, or of its class if a map was given.
        gamma_: γ as a number.
        scale_: √(2γ) for ``"rbf"``, √γ for ``"softmax"``.
        error_: root of the mean squared error of φ(x)·φ(y) over pairs of rows: in closed form over draws of ω where it
            is known, else measured.

    >>> import numpy as np
    >>> from hrf.learn import RandomFeatures
    >>> x = np.random.default_rng(0).normal(size=(100, 3))
    >>> features = RandomFeatures(gamma=0.5, feature_map="trigonometric", random_state=0).fit_transform(x)
    >>> exact = np.exp(-0.5 * ((x[:, None] - x) ** 2).sum(-1))
    >>> features.shape, bool(np.abs(features @ features.T - exact).mean() < 0.1)
    ((100, 256), True)
    """

    def __init__(
        self,
        kernel: KernelName = "rbf",
        gamma: float | str = "scale",
        feature_map: str | FeatureMap = "trigonometric",
        n_components: int | str = 256,
        projection: ProjectionKind = "orthogonal",
        random_state: Any = None,
    ) -> None:
        self.kernel = kernel
        self.gamma = gamma
        self.feature_map = feature_map
        self.n_components = n_components
        self.projection = projection
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Draw the map, and fit or choose it by a sample of rows ``X (N, d)``; ``y`` serves ``"auto"`` only."""
        used = y if self.feature_map == "auto" else None
        rows = rows_of(self, X, used, reset=True, multi_output=True)
        return self.fit_rows(rows, targets_of_any_kind)

    def fit_rows(self, rows: Rows, targets: Callable[[Array], Array] | None = None) -> Self:
        """Do as `fit`, for checked rows.

        Args:
            rows: the rows, with or without targets.
            targets: turns targets of rows into numbers ``(n, k)`` to choose a map by; ``None`` to leave them out.
        """
        seed = seed_of(self.random_state)
        self.gamma_, width = self._gamma_and_width(rows)
        most = max(_SAMPLED, width)
        x, y, _ = rows.sample(min(most, max(2 * _PAIRED, _SAMPLED_NUMBERS // rows.n_features)), seed)
        self.scale_ = math.sqrt(input_scale(self.kernel, self.gamma_))
        y = None if targets is None or y is None else targets(y)
        self.feature_map_ = self._chosen(x, y, width, seed)
        self.error_ = self._error(x)
        self.n_features_in_ = rows.n_features
        return self

    def transform(self, X: Any) -> Any:
        """Map rows ``X (N, d)`` to features ``(N, D)``, in the precision of X; lazily for Dask collections."""
        check_is_fitted(self, "feature_map_")
        rows = rows_of(self, X, reset=False)
        rows.width = self.width
        return rows.map(self.block)

    def block(self, x: Array, dtype: Any = None) -> Array:
        """Map the checked rows of one block, ``(n, d) -> (n, D)``, in their precision or in ``dtype``."""
        return self._mapped(x, dtype, self.feature_map_.scaled_queries)

    def unwhitened(self, x: Array, dtype: Any = None) -> Array:
        """Map checked rows to features before whitening, ``(n, d) -> (n, m)``."""
        return self._mapped(x, dtype, self.feature_map_.unwhitened)

    def unwhitened_weights(self, coef: Array) -> Array:
        """Return weights for `unwhitened` that do what ``coef (D, k)`` does for `block`."""
        whitening = self.feature_map_.whitening
        return coef if whitening is None else whitening.numpy().T @ coef

    def whitened_gradient(self, gradient: Array) -> Array:
        """Return the gradient by weights of `block` for one by weights of `unwhitened`, ``(m, k) -> (D, k)``."""
        whitening = self.feature_map_.whitening
        return gradient if whitening is None else whitening.numpy() @ gradient

    @property
    def width(self) -> int:
        """Number D of features."""
        return self.feature_map_.feature_dim

    def single_noise(self) -> float:
        """Return the mean square of what rounding to float32 adds to a feature: it counts as a penalty per row."""
        whitening = self.feature_map_.whitening
        if whitening is None:
            return 0.0
        return float(np.finfo(np.float32).eps ** 2 * whitening.square().sum() / len(whitening))

    def _mapped(self, x: Array, dtype: Any, scaled: Callable[[Tensor], Features]) -> Array:
        """Map rows; in float64 where float32 has no room for ‖x‖²/2, which Gaussian maps add and subtract."""
        wanted = x.dtype if dtype is None else np.dtype(dtype)
        rows = torch.from_numpy(x * x.dtype.type(self.scale_))
        long = rows.numel() > 0 and not float(half_square(rows).amax()) <= _LONG
        single = wanted == np.float32 and not long
        with torch.no_grad():
            found = plain_features(self.feature_map_, rows.float() if single else rows.double(), scaled)
        return found.numpy().astype(wanted, copy=False)

    @property
    def _n_features_out(self) -> int:
        return self.width

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.input_tags.sparse = True
        return tags

    def _gamma_and_width(self, rows: Rows) -> tuple[float, int]:
        """Return γ and the number of features; what follows the rows takes one pass over them."""
        scaled, auto = self.gamma == "scale", self.n_components == "auto"
        gamma, width = (0.0 if scaled else self.gamma), (0 if auto else self.n_components)
        if not isinstance(gamma, Real) or not (scaled or 0 < float(gamma) < math.inf):
            raise ValueError(
                f"gamma is {gamma!r}; expected a positive number, 'scale' or, for KernelRidge, 'auto'"
            )
        if isinstance(width, str):
            raise ValueError(f"the number of features is {width!r}; expected a whole number or 'auto'")
        if scaled or auto:
            n, _, squares = rows.reduce(moments, combined_moments)
            gamma = 1 / (rows.n_features * squares / n if squares > 0 else 1.0) if scaled else gamma
            width = width_of(n / rows.n_features) if auto else width
        return float(gamma), check_count("n_components", width)

    def _chosen(self, x: Array, y: Array | None, width: int, seed: int) -> FeatureMap:
        """Return the map: the given one, the named one, or the one that does best on the sample."""
        if isinstance(self.feature_map, FeatureMap):
            self.map_name_ = type(self.feature_map).__name__
            return self._given(self.feature_map, x.shape[1])
        name: Any = self.feature_map
        arguments: dict[str, Any] = {"kernel": self.kernel, "projection": self.projection, "seed": seed}
        if name == "auto":  # there may be too few rows to measure anything on
            few = len(x) < LEAST_ROWS
            name = "trigonometric" if few else choose_map(x, y, gamma=self.gamma_, width=width, **arguments)
        self.map_name_ = name
        return make_map(name, torch.tensor(x * self.scale_), width, **arguments)

    def _given(self, given: FeatureMap, dim: int) -> FeatureMap:
        """Return a copy of the map that was passed in, for the kernel asked for."""
        if given.dim != dim or given.heads is not None:
            raise ValueError(
                f"the feature map has dim={given.dim}, heads={given.heads}; expected dim={dim} without heads"
            )
        copied = copy.deepcopy(given)
        if self.kernel == "rbf" and given.kernel == "softmax":
            return GaussianKernel(copied)
        if self.kernel == "softmax" and given.kernel == "gaussian":
            raise ValueError(
                "the feature map estimates the Gaussian kernel; expected one for the softmax kernel"
            )
        return copied

    def _error(self, x: Array) -> float:
        """Return the closed-form error where it is known, else the error of this draw on pairs of rows."""
        rows = torch.tensor(x[: 2 * _PAIRED] * self.scale_)
        if len(rows) < 2:
            return math.nan
        predicted = predicted_gram_error(self.feature_map_, rows)
        if predicted is not None:
            return predicted
        alone = LabelledRows(rows, None)
        return GramProblem(alone, alone).error(self.feature_map_, 1, Generator()).value


def width_of(n_rows: float) -> int:
    """Return the number of features for so many rows.

    Of the order √N ln N random features, ridge regression learns as fast as with the exact kernel (Rudi, Rosasco,
    Generalization Properties of Learning with Random Features, NeurIPS 2017).
    """
    least, most = _WIDTHS
    wanted = math.sqrt(n_rows) * math.log(max(n_rows, 2.0))
    return min(most, max(least, 1 << math.ceil(math.log2(max(wanted, 1.0)))))


def moments(block: Block) -> tuple[float, float, float]:
    """Step of `Rows`: number of entries, their mean, and the sum of squares about it; rows count with their weights."""
    n = block.n_rows * block.x.shape[1]
    mean = float(block.weighted(block.x).sum(dtype=np.float64)) / n if n else 0.0
    return n, mean, float(block.weighted(np.square(block.x - mean, dtype=np.float64)).sum())


def combined_moments(
    first: tuple[float, float, float], second: tuple[float, float, float]
) -> tuple[float, float, float]:
    """Combine `moments` of two blocks (Chan et al., 1979)."""
    (n, mean, squares), (m, other, more) = first, second
    if not n + m:
        return first
    shift = other - mean
    return n + m, mean + shift * m / (n + m), squares + more + shift * shift * n * m / (n + m)


def targets_of_any_kind(y: Array) -> Array:
    """Return numbers ``(n, k)``: one indicator per class where targets are classes, else the targets themselves."""
    if type_of_target(y, raise_unknown=True) in ("binary", "multiclass"):
        classes = np.unique(y)
        if len(classes) <= _MOST_CLASSES or y.dtype.kind not in "iuf":
            return np.equal(y.reshape(-1, 1), classes).astype(np.float64)
    return as_columns(y)


def seed_of(random_state: Any) -> int:
    """Draw a seed from a ``random_state`` of scikit-learn."""
    return int(check_random_state(random_state).randint(2**31 - 1))
