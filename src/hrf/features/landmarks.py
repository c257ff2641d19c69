"""Landmark features: exact kernel values at points z of the data, whitened (Williams, Seeger, NeurIPS 2000).

    φ(x) = L⁻¹ k(z, x)   with   L Lᵀ = k(z, z) + ε I,   so that   φ(x)·φ(y) = k(x, z) (k(z, z) + ε I)⁻¹ k(z, y)

That is the kernel projected on its values at the landmarks z: exact at the landmarks, biased elsewhere. Any other
root of the inverse, such as k(z, z)^{−1/2}, rotates the features and changes no product.

References:
    Arthur, Vassilvitskii, k-means++: The Advantages of Careful Seeding, SODA 2007.
    Rudi, Calandriello, Carratino, Rosasco, On Fast Leverage Score Sampling and Optimal Learning, NeurIPS 2018.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from scipy.linalg.lapack import dpotrf, dtrtri
from torch import Generator, Tensor
from typing_extensions import Self, override

from hrf.checks import check_count, generator_of, not_finite
from hrf.features import flops
from hrf.features.base import FeatureMap, Side
from hrf.features.flops import Flops
from hrf.numerics import Features, half_square

__all__ = ["LandmarkChoice", "Landmarks"]

LandmarkChoice = Literal["uniform", "k-means++", "leverage"]

# ε, for a kernel that is 1 at x = y: directions with smaller eigenvalues of k(z, z) are rounding in float32.
_JITTER = 1e-7
_PILOT = 512  # uniform landmarks from which leverage scores are estimated
_COLUMNS = 512  # of L⁻¹, which is triangular, per product


class Landmarks(FeatureMap):
    """The softmax kernel at landmarks; `GaussianKernel` around it is the Gaussian kernel at landmarks.

    Args:
        points: the landmarks z, ``(m, d)``, or ``(H, m, d)`` for one set per head.

    The width is m. `Landmarks.fit` chooses landmarks among rows of data.

    >>> import torch, hrf
    >>> x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    >>> phi = hrf.GaussianKernel(hrf.Landmarks(x[:60]))
    >>> exact = hrf.kernels.gaussian(x, x)
    >>> bool((phi.estimate(x, x) - exact).abs().mean() < 0.01)
    True
    """

    points: Tensor
    centre: Tensor
    inverse_root: Tensor

    def __init__(self, points: Tensor) -> None:
        super().__init__()
        if not isinstance(points, Tensor) or not points.is_floating_point() or points.ndim not in (2, 3):
            received = tuple(points.shape) if isinstance(points, Tensor) else type(points).__name__
            raise ValueError(f"points is {received}; expected a real tensor (m, d), or (H, m, d) with heads")
        if not points.numel():
            raise ValueError(f"points is {tuple(points.shape)}; expected one landmark and one column or more")
        if not points.is_meta and not points.isfinite().all():
            raise ValueError("points has values that are NaN or infinite; expected finite values")
        points = points.detach().to(torch.get_default_dtype()).clone()
        self.heads = points.shape[0] if points.ndim == 3 else None
        self.feature_dim, self.dim = points.shape[-2:]
        self.register_buffer("points", points)
        self.register_buffer("centre", points.mean(-2, keepdim=True))
        self.register_buffer("inverse_root", self._inverse_root(), persistent=False)

    @classmethod
    def fit(
        cls,
        rows: Tensor,
        *,
        n_landmarks: int,
        choice: LandmarkChoice = "uniform",
        generator: Generator | None = None,
        seed: int | None = None,
    ) -> Self:
        """Choose landmarks among rows ``(N, d)``: at most N, and with k-means++ no two that are equal.

        Args:
            rows: the data, scaled so that their kernel is exp(−‖x − y‖²/2).
            n_landmarks: number m of landmarks.
            choice: ``"uniform"``; ``"k-means++"``, far from each other; or ``"leverage"``, unlike other rows.
            generator: the source of randomness.
            seed: seed of a new generator, in place of ``generator``.
        """
        if choice not in _CHOICES:
            raise ValueError(f"choice is {choice!r}; expected one of {', '.join(get_args(LandmarkChoice))}")
        if (
            not isinstance(rows, Tensor)
            or rows.ndim != 2
            or not len(rows)
            or (not rows.is_meta and not_finite(rows))
        ):
            received = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
            raise ValueError(f"rows is {received}; expected a tensor (N, d) of finite numbers with N ≥ 1")
        n = min(check_count("n_landmarks", n_landmarks), len(rows))
        return cls(rows[_CHOICES[choice](rows, n, generator_of(generator, seed))])

    def _inverse_root(self) -> Tensor:
        """Return L⁻¹ in float64, ``(m, m)`` or ``(H, m, m)``."""
        z = (self.points - self.centre).double()
        gram = _gaussian(z, z)
        gram.diagonal(dim1=-2, dim2=-1).add_(_JITTER)
        # In place, in a third of the operations: transposes are in LAPACK's order.
        if gram.is_cpu and gram.ndim == 2:
            root, failed = dpotrf(gram.numpy().T, lower=0, overwrite_a=1)
            if failed:
                raise ValueError(
                    f"the kernel of {len(gram)} landmarks has no Cholesky factor; expected finite points"
                )
            return torch.from_numpy(dtrtri(root, lower=0, overwrite_c=1)[0].T)
        root = torch.linalg.cholesky(gram)
        unit = torch.eye(self.feature_dim, dtype=z.dtype, device=z.device)
        return torch.linalg.solve_triangular(root, unit, upper=False)

    @property
    @override
    def whitening(self) -> Tensor:
        """L⁻¹."""
        return self.inverse_root

    @override
    def unwhitened(self, x: Tensor) -> Features:
        values = _gaussian(x - self.centre.to(x.dtype), (self.points - self.centre).to(x.dtype))
        return Features(values, half_square(x))

    @override
    def scaled(self, x: Tensor, side: Side) -> Features:
        values, log_scale = self.unwhitened(x)
        whitening = self.inverse_root.to(x.dtype)
        if self.heads is not None or self.feature_dim <= _COLUMNS or self.needs_graph(x):
            return Features(values @ whitening.mT, log_scale)
        out = torch.empty_like(values)
        for stop in range(_COLUMNS, self.feature_dim + _COLUMNS, _COLUMNS):  # half of L⁻¹ is zero
            rows = slice(stop - _COLUMNS, stop)
            out[..., rows] = values[..., :stop] @ whitening[rows, :stop].mT
        return Features(out, log_scale)

    @property
    @override
    def unbiased(self) -> bool:
        """Whether the mean over draws is the kernel: it is not, since a projection makes it smaller."""
        return False

    @property
    @override
    def dtype(self) -> torch.dtype:
        """The precision of the landmarks; L⁻¹ has twice as many digits."""
        return self.points.dtype

    @override
    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.inverse_root = self._inverse_root().to(self.inverse_root)

    @override
    def _flops(self) -> Flops:
        """Count products with the landmarks, one exponential each, and the whitening."""
        m = self.feature_dim
        return flops.projected(m, self.dim).plus(flops.features(m), flops.projected(m, m))

    @override
    def config(self) -> dict[str, Any]:
        return {"points": self.points}


def _gaussian(x: Tensor, z: Tensor) -> Tensor:
    """Return exp(−‖x − z‖²/2): ``(..., L, d), (..., m, d) -> (..., L, m)``."""
    logs = x @ z.mT
    if logs.requires_grad:
        return (logs - half_square(z).mT - half_square(x)).exp()
    return logs.sub_(half_square(z).mT).sub_(half_square(x)).clamp_(max=0).exp_()


# Which rows become landmarks: their places, ``(n,)``.


def _uniform(rows: Tensor, n: int, generator: Generator | None) -> Tensor:
    return torch.randperm(len(rows), generator=generator)[:n]


def _spread(rows: Tensor, n: int, generator: Generator | None) -> Tensor:
    """Draw each row with a chance in proportion to its squared distance to the nearest one drawn before."""
    rows = rows.float()
    place = torch.randint(len(rows), (1,), generator=generator)
    chosen, nearest = [place], torch.full((len(rows),), torch.inf)
    for _ in range(n - 1):
        distances = torch.linalg.vector_norm(rows - rows[place], dim=-1).square_()
        nearest = torch.minimum(nearest, distances)
        if not nearest.any():  # all rows are equal to a landmark
            break
        place = torch.multinomial(nearest, 1, generator=generator)
        chosen.append(place)
    return torch.cat(chosen)


def _by_leverage(rows: Tensor, n: int, generator: Generator | None) -> Tensor:
    """Draw rows by 1 − k(x, z)(k(z, z) + λ)⁻¹k(z, x) for pilot landmarks z, with λ = N/n per pilot."""
    pilot = rows[_uniform(rows, min(n, _PILOT), generator)].double()
    gram = _gaussian(pilot, pilot)
    gram.diagonal().add_(len(pilot) / n)
    values = _gaussian(rows.double(), pilot)
    explained = (values * torch.linalg.solve(gram, values.mT).mT).sum(-1)
    scores = (1 - explained).clamp(min=1e-6)
    return torch.multinomial(scores, n, generator=generator)


_CHOICES = {"uniform": _uniform, "k-means++": _spread, "leverage": _by_leverage}
