"""Independent computations for the tests: quadrature, Haar blocks, and the estimators written out."""

import math

import numpy as np
import torch


def gauss_hermite(nodes=70):
    """Points (nodes², 2) and weights of N(0, I) in the plane."""
    point, weight = np.polynomial.hermite_e.hermegauss(nodes)
    point, weight = torch.from_numpy(point), torch.from_numpy(weight / weight.sum())
    return torch.cartesian_prod(point, point), torch.outer(weight, weight).flatten()


def terms(omega, x, y, matrix=None, *, antithetic):
    """Estimate e^{xᵀy} from every row of omega (..., d), with complex features of both sides."""
    dim = x.shape[-1]
    matrix = torch.eye(dim) if matrix is None else matrix
    matrix = torch.diag(matrix) if matrix.ndim == 1 else matrix
    matrix = matrix.to(torch.complex128)

    def features(rows):
        query = matrix @ x.to(matrix)
        key = torch.linalg.inv(matrix).mT @ y.to(matrix)
        sides = [torch.exp(rows.to(matrix) @ u - (u * u).sum() / 2) for u in (query, key)]
        return (sides[0] * sides[1]).real

    return (features(omega) + features(-omega)) / 2 if antithetic else features(omega)


def haar_blocks(n_draws, n_rows, dim, generator):
    """Draw n_rows rows of R^dim in blocks of orthogonal directions, with independent χ lengths."""
    blocks = []
    for _ in range(math.ceil(n_rows / dim)):
        q, r = torch.linalg.qr(torch.randn(n_draws, dim, dim, dtype=torch.float64, generator=generator))
        q = q * torch.diagonal(r, dim1=-2, dim2=-1).sign().unsqueeze(-2)  # QR alone is not Haar
        gaussian = torch.randn(n_draws, dim, dim, dtype=torch.float64, generator=generator)
        blocks.append(q.mT * gaussian.norm(dim=-1, keepdim=True))
    return torch.cat(blocks, -2)[:, :n_rows]


def variance_and_standard_error(samples, mean):
    """The mean square of samples − mean and the standard error of that mean."""
    squares = (samples - mean).square()
    return squares.mean(), squares.std() / math.sqrt(len(squares))


def within_five_standard_errors(samples, mean, variance):
    """Whether the samples have this variance about this mean, within their precision."""
    estimate, error = variance_and_standard_error(samples, mean)
    return abs(estimate - variance) <= 5 * error


def rotated_pair(dim, theta, generator, length_x=1.0, length_y=1.0):
    """Two vectors of given lengths at the angle theta, in a random plane."""
    plane = torch.linalg.qr(torch.randn(dim, 2, dtype=torch.float64, generator=generator)).Q
    x, y = plane.mT
    return length_x * x, length_y * (math.cos(theta) * x + math.sin(theta) * y)
