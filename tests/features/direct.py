"""Every estimator straight from its definition, in complex arithmetic, sharing no code with the library.

Only drawn and fitted numbers (ω, A, shifts, …) are read from the maps.
"""

from __future__ import annotations

import numpy as np
import torch

import hrf
from examples.centred import CentredPositive
from hrf import coefficients


def direct_estimate(phi, x, y):
    """K̂(x, y) for all pairs, as a float64 tensor."""
    return torch.from_numpy(np.array([[_estimate(phi, u, v) for v in y.numpy()] for u in x.numpy()]))


def _numpy(tensor):
    return np.zeros(()) if tensor is None else tensor.numpy().squeeze()


def _estimate(phi, x, y):
    if isinstance(phi, hrf.GaussianKernel):
        return _estimate(phi.feature_map, x, y) * np.exp(-(x @ x) / 2 - y @ y / 2)
    if isinstance(phi, hrf.Hybrid):
        lam = [_coefficient(c, x, y) for c in phi.coefficients]
        return sum(w * _estimate(b, x, y) for w, b in zip([*lam, 1 - sum(lam)], phi.bases, strict=True))
    if isinstance(phi, hrf.ClusteredHybrid):
        return _clustered(phi, x, y)
    omega = phi.projection.omega.numpy()
    if isinstance(phi, CentredPositive):
        a, b = (np.exp(omega @ u - u @ u / 2) for u in (x, y))
        return 1 + np.mean((a - 1) * (b - 1))
    if isinstance(phi, hrf.Exponential):
        return _exponential(phi, omega, x, y)
    if isinstance(phi, hrf.AsymmetricExponential):
        matrix = phi.query_matrix.matrix().numpy()
        x, y = matrix @ x, np.linalg.inv(matrix).T @ y
    a, q = phi.curvature.numpy()[0], phi.basis.numpy()
    terms = [
        np.sqrt(np.prod(1 - 4 * a))
        * np.exp(
            2 * w @ np.diag(a) @ w + w @ np.diag(np.sqrt(1 - 4 * a)) @ q.T @ (x + y) - x @ x / 2 - y @ y / 2
        )
        for w in omega
    ]
    return np.mean(terms)


def _clustered(phi, x, y):
    query_centers, key_centers = phi.query_centers.numpy(), phi.key_centers.numpy()
    metric = np.eye(len(x)) if phi.query_metric is None else phi.query_metric.numpy()
    sides = (query_centers - x, metric), (key_centers - y, np.linalg.inv(metric))
    i, j = (np.argmin(np.einsum("nd,de,ne->n", gap, m, gap)) for gap, m in sides)
    if phi.served is not None and not phi.served[i, j]:
        return _estimate(phi.default, x, y)
    if phi.base in ("paper", "moments"):
        pair = i * len(key_centers) + j
        rows = phi.feature_map.projection.omega.numpy()[pair]
        a = np.diag(phi.feature_map.query_matrix.matrix().numpy()[pair])
        return _mean_of_exponentials(np.concatenate([rows, -rows]), a @ x, np.linalg.inv(a).T @ y)
    u, v = x - query_centers[i], y - key_centers[j]
    s = {"separable": 0.0, "shifted": 1.0}.get(phi.base)
    s = float(phi.shrinkage) if s is None else s
    value = 1 - s + (s * _estimate(phi.feature_map, u, v) if s else 0)
    return np.exp(x @ y - u @ v) * value


def _mean_of_exponentials(rows, u, v):
    psi_x, psi_y = (np.exp(rows @ w - np.sum(w * w) / 2) for w in (u, v))
    return np.mean(psi_x * psi_y).real


def _exponential(phi, omega, x, y):
    matrix = {hrf.Trigonometric: 1j * np.eye(len(x)), hrf.Positive: np.eye(len(x))}.get(type(phi))
    if matrix is None:
        given = phi.query_matrix.matrix()
        matrix = np.eye(len(x)) if given is None else given.numpy()
        matrix = np.diag(matrix) if matrix.ndim == 1 else matrix
    a, b = _numpy(phi.query_shift), _numpy(phi.key_shift)
    factor = np.exp(x @ (b + 0 * x) + (a + 0 * y) @ y - np.sum(a * b))
    u, v = matrix @ (x - a), np.linalg.inv(matrix).T @ (y - b)
    rows = np.concatenate([omega, -omega]) if phi.antithetic else omega
    return factor * _mean_of_exponentials(rows, u, v)


def _coefficient(lam, x, y):
    if isinstance(lam, coefficients.Angular):
        tau = lam.projection.omega.numpy()
        return np.mean((tau @ x >= 0) != (tau @ y >= 0))
    if isinstance(lam, coefficients.Indicator):
        nearest = [
            np.argmin(np.linalg.norm(c.numpy() - u, axis=-1))
            for c, u in ((lam.query_centers, x), (lam.key_centers, y))
        ]
        return float(tuple(nearest) == tuple(lam.pair))
    if isinstance(lam, coefficients.Gaussian):
        matrix = np.eye(len(y)) if lam.matrix is None else lam.matrix.numpy()
        matrix = np.diag(matrix) if matrix.ndim == 1 else matrix
        x, y = x / lam.scale, -matrix @ y / lam.scale
    return lam.constant + lam.weight * _estimate(lam.feature_map, x, y)
