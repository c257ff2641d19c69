"""Queries and keys to fit matrices to, and the error that a matrix leaves."""

from __future__ import annotations

import torch

from hrf.fitting import KINDS
from hrf.theory import map_errors

DIAGONAL, COMPLEX = KINDS[:2], (KINDS[1], KINDS[3])


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotation(dim, seed=0):
    return torch.linalg.qr(normal(dim, dim, seed=seed))[0]


def example(dim=5, n=60):
    """Queries and keys of different shapes, off the origin, that are correlated if they are paired."""
    x = normal(n, dim, seed=1) @ normal(dim, dim, seed=2) / 2 + normal(dim, seed=3)
    y = x @ normal(dim, dim, seed=4) / 4 + normal(n, dim, seed=5) / 2
    return x, y


# Three data sets in 8 dimensions: queries are wide where keys are narrow.
SCALES = 0.35 * torch.logspace(-0.5, 0.5, 8, dtype=torch.float64)


def anisotropic():
    return normal(2000, 8, seed=1) * SCALES, normal(2000, 8, seed=2) * SCALES.flip(0)


def rotated():
    x, y = anisotropic()
    return x @ rotation(8).mT, y @ rotation(8).mT


def correlated():
    """Pairs with a symmetric map from queries to keys, half of its eigenvalues negative, and noise."""
    x = normal(2000, 8, seed=1)
    signs = torch.tensor([1.0, -1.0] * 4, dtype=torch.float64)
    y = x * SCALES.flip(0) * signs + 0.2 * normal(2000, 8, seed=2)
    return x * SCALES @ rotation(8).mT, y @ rotation(8).mT


def relative_mse(x, y, matrix):
    """Relative MSE of one projection and its negative, for the n-th query and the n-th key."""
    return (map_errors.exponential_log_mse(x, y, 1, matrix) - 2 * (x * y).sum(-1)).exp()


def as_matrix(matrix, kind):
    return torch.diag_embed(matrix) if kind in DIAGONAL else matrix
