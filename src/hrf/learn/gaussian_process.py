"""`KernelGaussianProcess`: Gaussian-process regression on features, with γ and noise by the evidence.

    y = m + f + ε,   f ~ N(0, s² ΦΦᵀ),   ε ~ N(0, σ²)

With λ = σ²/s² and the eigenvalues e of ΦᵀΦ, the evidence of n targets costs D operations per λ:

    −2 log p(y) = n log(2π s²) + Σ log(e + λ) + (n − D) log λ + rᵀ(ΦΦᵀ + λ)⁻¹r / s²,   r = y − m.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar
from sklearn.base import RegressorMixin
from typing_extensions import Self

from hrf.advice.kernel_advisor import KernelName
from hrf.features.base import FeatureMap
from hrf.learn.linear_models import FeatureModel, linear_step, row_sums
from hrf.learn.random_features import RandomFeatures, seed_of
from hrf.learn.rows import Array, Block, Rows, Spectrum, Sums
from hrf.projections import ProjectionKind

__all__ = ["KernelGaussianProcess"]

_FACTORS = 2.0 ** np.arange(-4, 5)  # of γ = "scale", among which the evidence chooses
# Least mean of the kernel's diagonal: positive features underflow for large γ, and λ has to stay a number.
_LEAST = 1e-100
_LEAST_TARGET, _MOST_TARGET = 1e-60, 1e100  # their squares, summed, stay numbers
_RATIOS = np.linspace(-20, 5, 51)  # logarithms of λ over the mean of the kernel's diagonal


class KernelGaussianProcess(RegressorMixin, FeatureModel):
    """Gaussian-process regression in feature space, with a mean and a standard deviation for every row.

    Args:
        noise: the variance σ² of the noise, or ``"evidence"``.
        kernel: ``"rbf"`` or ``"softmax"``, as in `RandomFeatures`.
        gamma: γ, ``"scale"``, or ``"evidence"`` for the best of nine values about ``"scale"``, each a factor of two
            apart; the normal equations of all nine are kept.
        feature_map: a name, ``"auto"`` or a map, as in `RandomFeatures`.
        n_features: the largest number D of features, or ``"auto"``, as in `RandomFeatures`.
        projection: one of `hrf.projections.KINDS`.
        random_state: a seed, a ``RandomState`` or ``None``.

    Attributes:
        features_: the fitted `RandomFeatures`, with the chosen γ.
        noise_: σ².
        amplitude_: s², the variance of f where the kernel is 1.
        log_evidence_: log p(y) of all targets so far, at these values.
        log_evidences_: the same for every γ that was tried.

    >>> import numpy as np
    >>> from hrf.learn import KernelGaussianProcess
    >>> rng = np.random.default_rng(0)
    >>> x = rng.uniform(-3, 3, size=(500, 1))
    >>> model = KernelGaussianProcess(random_state=0).fit(x, np.sin(x[:, 0]) + 0.1 * rng.normal(size=500))
    >>> 0.008 < model.noise_ < 0.012
    True
    """

    _target_checks: ClassVar = {"y_numeric": True}

    def __init__(
        self,
        noise: float | str = "evidence",
        kernel: KernelName = "rbf",
        gamma: float | str = "evidence",
        feature_map: str | FeatureMap = "trigonometric",
        n_features: int | str = 256,
        projection: ProjectionKind = "orthogonal",
        random_state: Any = None,
    ) -> None:
        super().__init__(kernel, gamma, feature_map, n_features, projection, random_state)
        self.noise = noise

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return means ``(N,)``, and with ``return_std`` standard deviations of new targets too, noise included."""
        rows = self._new_rows(X)
        mean = rows.map(partial(linear_step, self.features_, self.coef_, self.intercept_))
        if not return_std:
            return mean
        return mean, rows.map(partial(_deviation, self.features_, self.spread_, self.noise_))

    def _begin(self, rows: Rows) -> None:
        if self.noise != "evidence" and not (isinstance(self.noise, int | float) and self.noise > 0):
            raise ValueError(f"noise is {self.noise!r}; expected a positive variance or 'evidence'")
        seed = seed_of(self.random_state)
        chosen = self._features(gamma="scale" if self.gamma == "evidence" else self.gamma, random_state=seed)
        self.candidates_ = [chosen.fit_rows(rows, self._numbers)]
        if self.gamma == "evidence":
            tried = [chosen.gamma_ * factor for factor in _FACTORS]
            name = self.feature_map if isinstance(self.feature_map, FeatureMap) else chosen.map_name_
            same = {"feature_map": name, "random_state": seed}
            self.candidates_ = [self._features(gamma=gamma, **same).fit_rows(rows) for gamma in tried]
        self.sums_: list[Sums] = []

    @property
    def _width(self) -> int:
        return self.candidates_[0].width

    def _add(self, rows: Rows) -> None:
        sums = rows.reduce(partial(_all_sums, self.candidates_, self._numbers), _all_plus)
        sums = _all_plus(self.sums_, sums) if self.sums_ else sums
        _check_size(sums[0])
        self.sums_ = sums
        fits = [_Fit.of(total, self.noise) for total in self.sums_]
        self.log_evidences_ = np.array([fit.log_evidence for fit in fits])
        best = int(self.log_evidences_.argmax())
        fit, total = fits[best], self.sums_[best]
        self.features_ = self.candidates_[best]
        self.noise_, self.amplitude_, self.log_evidence_ = fit.noise, fit.amplitude, fit.log_evidence
        self.intercept_ = float(total.targets[0] / total.n_rows)
        self.coef_ = fit.spectrum.solve(fit.ratio, fit.right)[:, 0]
        # Var f = s² λ φᵀ(ΦᵀΦ + λ)⁻¹φ = ‖φᵀ spread‖²
        self.spread_ = fit.spectrum.vectors * np.sqrt(fit.noise / (fit.spectrum.values + fit.ratio))


def _check_size(sums: Sums) -> None:
    """Refuse targets whose squares are too large or too small for numbers."""
    with np.errstate(over="ignore"):
        size = float(np.sqrt(sums.squares[0] / sums.n_rows))
    if size and not _LEAST_TARGET < size < _MOST_TARGET:
        reached = f"is {size:.0e}" if math.isfinite(size) else "overflows"
        raise ValueError(
            f"the root mean square of the targets {reached}; expected between {_LEAST_TARGET:g} and {_MOST_TARGET:g}: "
            "scale them first (TransformedTargetRegressor with StandardScaler)"
        )


class _Fit(NamedTuple):
    """Noise and amplitude with the most evidence, for one γ."""

    spectrum: Spectrum
    right: Array  # Φᵀr: (D, 1)
    ratio: float
    noise: float
    amplitude: float
    log_evidence: float

    @classmethod
    def of(cls, sums: Sums, noise: float | str) -> Self:
        """Maximise the evidence over λ: on a grid, then between the neighbours of its best point."""
        spectrum = Spectrum.of(sums.gram)
        right = sums.cross - np.outer(sums.features, sums.targets / sums.n_rows)
        rounding = np.finfo(float).eps * float(sums.squares[0]) + math.sqrt(np.finfo(float).tiny)
        # The square of constant targets about their mean is 0, up to rounding.
        square = max(float(sums.squares[0] - sums.targets[0] ** 2 / sums.n_rows), rounding)
        evidence = partial(
            _evidence, spectrum, (spectrum.vectors.T @ right)[:, 0], square, float(sums.n_rows), noise
        )
        unit = math.log(max(spectrum.values.sum() / float(sums.n_rows), _LEAST))
        grid = _RATIOS + unit
        best = int(np.argmax([evidence(log_ratio)[0] for log_ratio in grid]))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
        found = minimize_scalar(
            lambda log_ratio: -evidence(log_ratio)[0], bounds=(low, high), method="bounded"
        )
        value, amplitude = evidence(found.x)
        ratio = math.exp(found.x)
        return cls(spectrum, right, ratio, ratio * amplitude, amplitude, value)


def _evidence(
    spectrum: Spectrum, projected: Array, square: float, n: float, noise: float | str, log_ratio: float
) -> tuple[float, float]:
    """Return log p(y) and s² at a λ; s² has the most evidence, or follows from the noise where it is given."""
    ratio = math.exp(log_ratio)
    shifted = spectrum.values + ratio
    residual = max(square - float((projected**2 / shifted).sum()), np.finfo(float).eps * square) / ratio
    amplitude = residual / n if isinstance(noise, str) else noise / ratio
    log_determinant = float(np.log(shifted).sum()) + (n - len(shifted)) * log_ratio
    return -0.5 * (n * math.log(2 * math.pi * amplitude) + log_determinant + residual / amplitude), amplitude


def _all_sums(candidates: list[RandomFeatures], numbers: Any, block: Block) -> list[Sums]:
    """Step of `Rows`: normal equations for every γ."""
    return [row_sums(features, numbers, block) for features in candidates]


def _all_plus(first: list[Sums], second: list[Sums]) -> list[Sums]:
    return [a.plus(b) for a, b in zip(first, second, strict=True)]


def _deviation(features: RandomFeatures, spread: Array, noise: float, x: Array) -> Array:
    """Step of `Rows`: standard deviations of new targets."""
    latent = np.square(features.block(x) @ spread.astype(x.dtype)).sum(-1)
    return np.sqrt(latent + x.dtype.type(noise))
