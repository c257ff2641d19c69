"""The methods: kernel machines of `hrf.learn`, of scikit-learn and of GPyTorch, called alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.kernel_ridge import KernelRidge as ExactRidge
from sklearn.linear_model import Ridge
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC

from hrf.advice.kernel_advisor import NAMES
from hrf.learn import KernelRidge

__all__ = ["AUTO", "BASELINES", "CURVES", "EXACT", "MAPS", "METHODS", "TRIGONOMETRIC", "Setting"]

Array = NDArray[Any]


class Setting(NamedTuple):
    """γ, penalty, width (0 for exact methods) and seed of one fit."""

    gamma: float
    alpha: float
    width: int
    seed: int


# A method returns an estimator that is not fitted; y has one column per target.
Method = Callable[[Setting], Any]

AUTO, TRIGONOMETRIC = 'hrf KernelRidge(feature_map="auto")', "hrf KernelRidge()"
BASELINES = ("RBFSampler", "Nystroem")
CURVES = (AUTO, TRIGONOMETRIC, *BASELINES)
EXACT = ("KernelRidge (exact)", "KernelRidge (exact, float32 in place)", "SVC (exact)", "GPyTorch SGPR")
MAPS = {f'hrf KernelRidge(feature_map="{name}")': name for name in NAMES}


def _ours(name: str) -> Method:
    return lambda s: KernelRidge(
        alpha=s.alpha, gamma=s.gamma, feature_map=name, n_features=s.width, random_state=s.seed
    )


def _before_ridge(transformer: Callable[..., Any]) -> Method:
    return lambda s: make_pipeline(
        transformer(gamma=s.gamma, n_components=s.width, random_state=s.seed), Ridge(alpha=s.alpha)
    )


class InPlaceRidge:
    """Exact kernel ridge regression with one kernel matrix in float32, which Cholesky's factor overwrites."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def fit(self, x: Array, y: Array) -> InPlaceRidge:
        """Solve (K + αI) a = y, for centred targets."""
        n = len(x)
        self.x, self.mean, kernel = x, y.mean(0), np.empty((n, n), np.float32, order="F")
        for start in range(0, n, 2048):
            kernel[:, start : start + 2048] = rbf_kernel(x, x[start : start + 2048], self.setting.gamma)
        kernel.flat[:: n + 1] += self.setting.alpha
        factor = cho_factor(kernel, lower=True, overwrite_a=True, check_finite=False)
        self.dual = cho_solve(factor, (y - self.mean).astype(np.float32))
        return self

    def predict(self, new: Array) -> Array:
        """Return predictions, 1,000 rows at a time."""
        starts = range(0, len(new), 1000)
        parts = [rbf_kernel(new[k : k + 1000], self.x, self.setting.gamma) @ self.dual for k in starts]
        return np.concatenate(parts) + self.mean


class SupportVectors:
    """scikit-learn's SVC on indicators of classes, with C as the inverse of the penalty."""

    def __init__(self, setting: Setting) -> None:
        self.model = SVC(C=1 / setting.alpha, gamma=setting.gamma)

    def fit(self, x: Array, y: Array) -> SupportVectors:
        """Fit to the classes that the indicators show."""
        self.columns = y.shape[1]
        self.model.fit(x, y.argmax(1))
        return self

    def predict(self, new: Array) -> Array:
        """Return indicators."""
        return np.eye(self.columns)[self.model.predict(new)]


class InducingPoints:
    """GPyTorch's sparse Gaussian process (SGPR): all parameters by gradients of the evidence."""

    steps, rate = 30, 0.1

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def fit(self, x: Array, y: Array) -> InducingPoints:
        """Maximise the evidence by Adam, in float32, from the γ and the penalty of the search."""
        import gpytorch
        import torch

        class Process(gpytorch.models.ExactGP):  # type: ignore[misc]
            def __init__(self, rows: Any, targets: Any, points: Any, likelihood: Any, gamma: float) -> None:
                super().__init__(rows, targets, likelihood)
                self.mean = gpytorch.means.ConstantMean()
                kernel = gpytorch.kernels.RBFKernel()
                kernel.lengthscale = (2 * gamma) ** -0.5
                scaled = gpytorch.kernels.ScaleKernel(kernel)
                self.kernel = gpytorch.kernels.InducingPointKernel(scaled, points, likelihood)

            def forward(self, rows: Any) -> Any:
                return gpytorch.distributions.MultivariateNormal(self.mean(rows), self.kernel(rows))

        rows, targets = (torch.from_numpy(u).float() for u in (x, y[:, 0]))
        places = torch.randperm(len(x), generator=torch.Generator().manual_seed(self.setting.seed))
        likelihood = gpytorch.likelihoods.GaussianLikelihood()
        likelihood.noise = 0.1
        points = rows[places[: self.setting.width]].clone()
        self.model = Process(rows, targets, points, likelihood, self.setting.gamma)
        self.model.train()
        evidence = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, self.model)
        search = torch.optim.Adam(self.model.parameters(), lr=self.rate)
        for _ in range(self.steps):
            search.zero_grad()
            loss = -evidence(self.model(rows), targets)
            loss.backward()
            search.step()
        self.model.eval()
        return self

    def predict(self, new: Array) -> Array:
        """Return the posterior mean."""
        import torch

        with torch.no_grad():
            return self.model(torch.from_numpy(new).float()).mean.numpy()[:, None]


METHODS: dict[str, Method] = {
    AUTO: _ours("auto"),
    TRIGONOMETRIC: _ours("trigonometric"),
    "RBFSampler": _before_ridge(RBFSampler),
    "Nystroem": _before_ridge(Nystroem),
    **{method: _ours(name) for method, name in MAPS.items()},
    EXACT[0]: lambda s: ExactRidge(alpha=s.alpha, kernel="rbf", gamma=s.gamma),
    EXACT[1]: InPlaceRidge,
    EXACT[2]: SupportVectors,
    EXACT[3]: InducingPoints,
}
