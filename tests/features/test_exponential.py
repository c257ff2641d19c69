"""Exponential maps: exactness, fits and refusals; FAVOR++ and FAVOR# against their papers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import hrf
from features.registry import COMPLEX_FULL, REAL_FULL, X, Y


def quadrature(phi: hrf.FeatureMap, nodes: int) -> torch.Tensor:
    """Gauss–Hermite nodes of the plane, one per head of a map with one projection, and their weights."""
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    phi.projection.omega.copy_(torch.tensor(list(itertools.product(points, points))).unsqueeze(1))
    w = torch.tensor([a * b for a, b in itertools.product(weights, weights)]) / (2 * np.pi)
    return w[:, None, None]


PLANE = {
    "identity": None,
    "real diagonal": torch.tensor([0.6, 1.4], dtype=torch.float64),
    "real full": REAL_FULL[:2, :2],
    "imaginary": torch.tensor([1j, 1j]),
    "complex diagonal": torch.tensor([1j, 1.3 + 0.2j], dtype=torch.complex128),
    "complex full": COMPLEX_FULL[:2, :2],
}


@pytest.mark.parametrize("matrix", PLANE)
@pytest.mark.parametrize("antithetic", [True, False])
def test_mean_and_mse_by_quadrature(matrix, antithetic):
    """Exact to the rule's accuracy, even at norms where Monte Carlo fails."""
    x, y = X[1:, :2] * 2.5, Y[:, :2] * 2.5  # norms to 2: relative MSEs to 1e8
    nodes, a = 60, PLANE[matrix]
    a = a if a is None else a.expand(nodes**2, *a.shape)
    common = {"n_projections": 1, "projection": "iid", "heads": nodes**2}
    phi = hrf.Exponential(2, matrix=a, antithetic=antithetic, **common).double()
    weights = quadrature(phi, nodes)
    estimates, kernel = phi.estimate(x.unsqueeze(0), y.unsqueeze(0)), hrf.kernels.softmax(x, y)
    torch.testing.assert_close((weights * estimates).sum(0), kernel, rtol=1e-9, atol=0)
    second = (weights * (estimates / kernel - 1).square()).sum(0)
    expected = phi.mse(x.unsqueeze(0), y.unsqueeze(0))[0] / kernel.square()
    torch.testing.assert_close(second, expected, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize(("kind", "sign"), [(hrf.Trigonometric, 1), (hrf.Positive, -1)])
def test_exact_at_equal_or_opposite_vectors(kind, sign):
    phi = kind(4, n_projections=3).double()
    exact = hrf.kernels.softmax(Y, sign * Y).diagonal()
    torch.testing.assert_close(phi.estimate(Y, sign * Y).diagonal(), exact, rtol=1e-14, atol=0)
    assert (phi.mse(Y, sign * Y).diagonal() == 0).all()
    assert phi.mse(Y, sign * Y)[0, 1] > 0


@pytest.mark.parametrize("antithetic", [True, False])
def test_complex_exponential_is_exact_where_the_sum_vanishes(antithetic):
    """Zero variance at x = −A⁻¹A⁻ᵀy: a real x for a complex A whose square is real."""
    a = torch.diag(torch.tensor([1j, 0.7, 1.3j, 1.1], dtype=torch.complex128))
    a = a @ torch.linalg.qr(REAL_FULL).Q.to(a.dtype)
    inverse = torch.linalg.inv(a)
    x = -(inverse @ inverse.mT @ Y.to(a.dtype).mT).mT
    assert x.imag.abs().max() < 1e-14
    phi = hrf.Exponential(4, n_projections=3, matrix=a, antithetic=antithetic).double()
    exact = hrf.kernels.softmax(x.real, Y).diagonal()
    torch.testing.assert_close(phi.estimate(x.real, Y).diagonal(), exact, rtol=1e-12, atol=0)
    assert (phi.mse(x.real, Y).diagonal() <= 1e-28 * exact.square()).all()


def test_shifts_move_the_point_of_zero_variance():
    a, b = X[1], Y[0]
    phi = hrf.Exponential(4, n_projections=2, query_shift=a, key_shift=b).double()
    at_shifts = phi.estimate(a[None], b[None])
    torch.testing.assert_close(at_shifts, hrf.kernels.softmax(a[None], b[None]), rtol=1e-14, atol=0)
    one_sided = hrf.Exponential(4, n_projections=2, query_shift=a, projection="iid").double()
    expected = hrf.Positive(4, n_projections=2, projection="iid").relative_error(X - a, Y)
    torch.testing.assert_close(one_sided.relative_error(X, Y), expected)


@pytest.mark.parametrize(
    ("matrix", "shift"), [*((kind, False) for kind in hrf.fitting.KINDS), (None, True), ("real-full", True)]
)
def test_fit_finds_matrix_and_means_head_by_head(matrix, shift):
    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(2, 3, 50, 4, generator=g, dtype=torch.float64) + 0.5 for _ in range(2))
    options = {"n_projections": 4, "matrix": matrix, "shift": shift, "projection": "iid"}
    phi = hrf.Exponential.fit(x, y, heads=3, **options).double()
    for head in range(3):
        q, k = x[:, head].reshape(-1, 4), y[:, head].reshape(-1, 4)
        if shift:
            torch.testing.assert_close(phi.query_shift[head, 0], q.mean(0), rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(phi.key_shift[head, 0], k.mean(0), rtol=1e-6, atol=1e-6)
        expected = hrf.Exponential.fit(q, k, **options).double().log_mse(x[0, head], y[0, head])
        torch.testing.assert_close(phi.log_mse(x, y)[0, head], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("phi", [hrf.Trigonometric(4, n_projections=2), hrf.Positive(4, n_projections=2)])
def test_plain_features_that_leave_the_range_say_what_to_use(phi):
    """exp(±‖x‖²/2) is ∞ or 0 in float32 from norm 14 on: a product of zeros would estimate a huge kernel as 0."""
    x = torch.full((3, 4), 30.0)
    with pytest.raises(OverflowError, match=r"exp\(-?1\d\d\d\), which torch.float32 .*scaled_queries"):
        phi.queries(x)
    assert phi.scaled_queries(x).values.isfinite().all()


@pytest.mark.parametrize("antithetic", [True, False])
def test_features_along_a_long_row_of_omega_are_looked_at(antithetic):
    """ωᵀx − ‖x‖²/2 is ‖ω‖²/2 at x = ω, about 128 in d = 256: only the features themselves can tell."""
    phi = hrf.Exponential(256, n_projections=4, antithetic=antithetic)
    with pytest.raises(OverflowError, match=r"to exp\(1\d\d\)"):
        phi.queries(phi.projection.omega)
    assert phi.queries(phi.projection.omega / 4).isfinite().all()


def test_whole_numbers_of_numpy_are_whole_numbers():
    phi = hrf.Positive(np.int64(4), n_projections=np.int32(2), heads=np.int8(3))
    assert repr(phi) == repr(hrf.Positive(4, n_projections=2, heads=3))


@pytest.mark.parametrize(
    ("name", "value", "error", "says"),
    [
        ("n_projections", 0, ValueError, "n_projections is 0; expected at least 1"),
        ("n_projections", 2.0, TypeError, "n_projections is 2.0 of type float; expected a whole number"),
        ("heads", 0, ValueError, "heads is 0; expected at least 1"),
        ("matrix", torch.ones(3), ValueError, r"matrix has shape \(3,\); expected \(4,\) or \(4, 4\)"),
        ("matrix", torch.ones(4, 4), ValueError, "singular: its condition number is"),
        ("matrix", torch.tensor([1.0, 0.0, 2.0, 0.0]), ValueError, "singular: 2 of its diagonal entries"),
        ("matrix", torch.full((4,), torch.nan), ValueError, "matrix has values that are NaN"),
        ("matrix", [1.0, 2.0, 3.0, 4.0], TypeError, "matrix is of type list; expected a tensor"),
        ("query_shift", torch.ones(3), ValueError, r"query_shift has shape \(3,\); expected \(4,\)"),
        ("query_shift", torch.full((4,), torch.nan), ValueError, "query_shift has values that are NaN"),
        ("query_shift", torch.ones(4) + 1j, TypeError, "torch.complex64; expected real numbers"),
        ("key_shift", torch.ones(2, 4), ValueError, r"key_shift has shape \(2, 4\); expected \(4,\)"),
        ("key_shift", [0.0] * 4, TypeError, "key_shift is of type list; expected a tensor"),
        ("projection", torch.ones(2, 4), TypeError, "projection is of type Tensor; expected one of iid"),
    ],
)
def test_bad_arguments_are_refused_in_words(name, value, error, says):
    with pytest.raises(error, match=says):
        hrf.Exponential(4, **({"n_projections": 2} | {name: value}))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own
def test_inductor_gives_the_same_features():
    phi = hrf.AngularHybrid(4, n_projections=4, n_coefficient_projections=3)
    compiled = torch.compile(phi.queries, fullgraph=True)
    torch.testing.assert_close(compiled(X.float()), phi.queries(X.float()), rtol=1e-4, atol=1e-6)
    torch.compiler.reset()


# Sums over pairs in closed forms.


G = torch.Generator().manual_seed(0)

EPS = torch.finfo(torch.float64).eps


class Largest(TorchDispatchMode):
    """Records the number of elements of the largest tensor that is made inside."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.numel = max(self.numel, out.numel())
        return out


@pytest.mark.parametrize(
    "make",
    [
        lambda dim: hrf.Exponential(dim, n_projections=4, matrix=torch.full((dim,), 0.9 + 0.3j)),
        lambda dim: hrf.AngularHybrid(dim, n_projections=dim, n_coefficient_projections=4),
        lambda dim: hrf.DenseExponential(dim, n_projections=dim, projection="iid"),
    ],
    ids=["complex", "angular hybrid", "favor#"],
)
def test_closed_forms_make_no_tensor_of_all_pairs_times_the_dimension(make):
    dim, length = 256, 64
    x, y = 0.05 * torch.randn(2, length, dim, generator=G)
    phi = make(dim)
    with Largest() as largest:
        phi.mse(x, y)
    assert length**2 <= largest.numel < length**2 * dim / 4


# FAVOR++ and FAVOR#.


DIM, M = 3, 5

GENERATOR = torch.Generator().manual_seed(0)

# Anisotropic, with means, and of different lengths: no term of the moments vanishes or equals another.
SCALES = torch.tensor([0.3, 0.7, 1.1], dtype=torch.float64)

MIXING = torch.tensor([[1.0, 0.4, -0.2], [0.0, 0.9, 0.5], [0.1, 0.0, 0.8]], dtype=torch.float64)


def vectors(n: int, mean: float) -> Tensor:
    return (mean + SCALES * torch.randn(n, DIM, generator=GENERATOR, dtype=torch.float64)) @ MIXING


QUERIES, KEYS = vectors(7, 0.4), vectors(9, -0.2)

SUMS = (QUERIES[:, None] + KEYS).flatten(0, 1)  # x + y of all pairs


def fitted(kind: type[hrf.FeatureMap]) -> hrf.FeatureMap:
    return kind(DIM, n_projections=M, projection="iid").double().fit(QUERIES, KEYS)


def favor_pp_curvature(sums: Tensor) -> float:
    """A = (1 − 1/ρ)/8 with ρ from the mean φ of ‖x + y‖² (Likhosherstov et al. 2022)."""
    phi = float(sums.square().sum(-1).mean())
    rho = (math.sqrt((2 * phi + DIM) ** 2 + 8 * DIM * phi) - 2 * phi - DIM) / (4 * phi)
    return (1 - 1 / rho) / 8


def favor_sharp_form(x: Tensor, y: Tensor) -> Tensor:
    """Q diag(A_l) Qᵀ with QΛQᵀ = E xxᵀ + E yyᵀ + μ_xμ_yᵀ + μ_yμ_xᵀ (Likhosherstov et al. 2023)."""
    second = [sum(torch.outer(v, v) for v in u) / len(u) for u in (x, y)]
    cross = torch.outer(x.mean(0), y.mean(0))
    eigenvalues, q = torch.linalg.eigh(second[0] + second[1] + cross + cross.T)
    a = [(1 - 2 * s - math.sqrt((2 * s + 1) ** 2 + 8 * s)) / 16 for s in eigenvalues.tolist()]
    return q @ torch.diag(torch.tensor(a, dtype=torch.float64)) @ q.T


def form(phi: hrf.FeatureMap) -> Tensor:
    return (phi.basis * phi.curvature) @ phi.basis.mT


def test_favor_pp_is_the_formula_of_its_paper():
    phi = fitted(hrf.OptimalPositive)
    expected = torch.full((1, DIM), favor_pp_curvature(SUMS), dtype=torch.float64)
    torch.testing.assert_close(phi.curvature, expected, rtol=1e-12, atol=0)
    assert torch.equal(phi.basis, torch.eye(DIM, dtype=torch.float64))


def test_favor_sharp_is_the_formula_of_its_paper():
    phi = fitted(hrf.DenseExponential)
    torch.testing.assert_close(form(phi), favor_sharp_form(QUERIES, KEYS), rtol=0, atol=1e-13)
    torch.testing.assert_close(phi.basis @ phi.basis.mT, torch.eye(DIM, dtype=torch.float64))


def objective(phi: hrf.FeatureMap) -> float:
    """The mean over pairs of the logarithm of a row's second moment over K², 1 + m·MSE/K²."""
    return float(torch.log1p(M * phi.relative_error(QUERIES, KEYS).square()).mean())


def turned(phi: hrf.FeatureMap, i: int, j: int, angle: float) -> Tensor:
    """Q with its columns i and j turned in their plane."""
    basis = phi.basis.clone()
    basis[:, i] = math.cos(angle) * phi.basis[:, i] + math.sin(angle) * phi.basis[:, j]
    basis[:, j] = math.cos(angle) * phi.basis[:, j] - math.sin(angle) * phi.basis[:, i]
    return basis


@pytest.mark.parametrize("step", [-1e-3, 1e-3])
def test_fits_minimise_their_objectives(step):
    isotropic, phi = fitted(hrf.OptimalPositive), fitted(hrf.DenseExponential)
    best, least = objective(isotropic), objective(phi)
    assert least < best
    isotropic.curvature += step
    assert objective(isotropic) > best
    for k in range(DIM):
        phi.curvature[0, k] += step
        assert objective(phi) > least
        phi.curvature[0, k] -= step
    basis = phi.basis.clone()
    for i, j in ((0, 1), (0, 2), (1, 2)):
        phi.basis.copy_(turned(phi, i, j, step))
        assert objective(phi) > least
        phi.basis.copy_(basis)


@pytest.mark.parametrize("kind", [hrf.OptimalPositive, hrf.DenseExponential])
def test_heads_are_fitted_each_to_its_own_data(kind):
    scales = torch.tensor([0.5, 1.0, 1.7], dtype=torch.float64)[:, None, None]
    phi = kind(DIM, n_projections=M, heads=3).double().fit(scales * QUERIES, KEYS.expand(3, -1, -1))
    for head, scale in enumerate(scales):
        alone = kind(DIM, n_projections=M).double().fit(scale * QUERIES, KEYS)
        torch.testing.assert_close(form(phi)[head], form(alone), rtol=0, atol=1e-13)
    assert not torch.allclose(form(phi)[0], form(phi)[1], rtol=0.1)
