from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import hrf
from features.registry import COMPLEX_FULL, REAL_FULL, X, Y


def quadrature(phi: hrf.FeatureMap, nodes: int = 60) -> torch.Tensor:
    """Gauss–Hermite nodes of the plane, one per head of a map with one projection, and their weights."""
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    grid = torch.tensor(list(itertools.product(points, points)))
    phi.projection.omega.copy_(grid.unsqueeze(1))
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
    a = PLANE[matrix]
    a = a if a is None else a.expand(3600, *a.shape)
    phi = hrf.Exponential(
        2, n_projections=1, matrix=a, antithetic=antithetic, projection="iid", heads=3600
    ).double()
    weights = quadrature(phi)
    estimates = phi.estimate(x.unsqueeze(0), y.unsqueeze(0))
    kernel = hrf.kernels.softmax(x, y)
    torch.testing.assert_close((weights * estimates).sum(0), kernel, rtol=1e-9, atol=0)
    second = (weights * (estimates / kernel - 1).square()).sum(0)
    expected = phi.mse(x.unsqueeze(0), y.unsqueeze(0))[0] / kernel.square()
    torch.testing.assert_close(second, expected, rtol=1e-7, atol=1e-12)


def test_trigonometric_is_exact_at_equal_vectors():
    phi = hrf.Trigonometric(4, n_projections=3).double()
    torch.testing.assert_close(
        phi.estimate(Y, Y).diagonal(), hrf.kernels.softmax(Y, Y).diagonal(), rtol=1e-14, atol=0
    )
    assert (phi.mse(Y, Y).diagonal() == 0).all()
    assert phi.mse(Y, Y)[0, 1] > 0


def test_positive_is_exact_at_opposite_vectors():
    phi = hrf.Positive(4, n_projections=3).double()
    torch.testing.assert_close(
        phi.estimate(Y, -Y).diagonal(), hrf.kernels.softmax(Y, -Y).diagonal(), rtol=1e-14, atol=0
    )
    assert (phi.mse(Y, -Y).diagonal() == 0).all()
    assert (phi.estimate(3 * X, 3 * Y) > 0).all()


@pytest.mark.parametrize("antithetic", [True, False])
def test_complex_exponential_is_exact_where_the_sum_vanishes(antithetic):
    """Zero variance at x = −A⁻¹A⁻ᵀy: a real x for a complex A whose square is real."""
    a = torch.diag(torch.tensor([1j, 0.7, 1.3j, 1.1], dtype=torch.complex128))
    rotation = torch.linalg.qr(REAL_FULL).Q
    a = a @ rotation.to(a.dtype)
    inverse = torch.linalg.inv(a)
    x = -(inverse @ inverse.mT @ Y.to(a.dtype).mT).mT
    assert x.imag.abs().max() < 1e-14
    phi = hrf.Exponential(4, n_projections=3, matrix=a, antithetic=antithetic).double()
    exact = hrf.kernels.softmax(x.real, Y).diagonal()
    torch.testing.assert_close(phi.estimate(x.real, Y).diagonal(), exact, rtol=1e-12, atol=0)
    assert (phi.mse(x.real, Y).diagonal() <= 1e-28 * exact.square()).all()


def test_famous_members_are_the_general_map():
    omega = hrf.Projections("orthogonal", 6, 4)
    pairs = {
        hrf.Positive: torch.ones(4),
        hrf.Trigonometric: torch.full((4,), 1j),
    }
    for member, matrix in pairs.items():
        special = member(4, n_projections=6, projection=omega)
        # A full matrix takes the general route through matrix products.
        general = hrf.Exponential(4, n_projections=6, matrix=torch.diag(matrix), projection=omega)
        assert special.feature_dim == general.feature_dim == 12
        torch.testing.assert_close(special.queries(X.float()), general.queries(X.float()))
        torch.testing.assert_close(special.keys(Y.float()), general.keys(Y.float()))


def test_shifts_move_the_point_of_zero_variance():
    a, b = X[1], Y[0]
    phi = hrf.Exponential(4, n_projections=2, query_shift=a, key_shift=b).double()
    at_shifts = phi.estimate(a[None], b[None])
    torch.testing.assert_close(at_shifts, hrf.kernels.softmax(a[None], b[None]), rtol=1e-14, atol=0)
    one_sided = hrf.Exponential(4, n_projections=2, query_shift=a, projection="iid").double()
    expected = hrf.Positive(4, n_projections=2, projection="iid").relative_error(X - a, Y)
    torch.testing.assert_close(one_sided.relative_error(X, Y), expected)


@pytest.mark.parametrize("matrix", [None, *hrf.fitting.KINDS])
@pytest.mark.parametrize("shift", [True, False])
def test_fit_finds_matrix_and_means_head_by_head(matrix, shift):
    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(2, 3, 50, 4, generator=g, dtype=torch.float64) + 0.5 for _ in range(2))
    phi = hrf.Exponential.fit(
        x, y, n_projections=4, matrix=matrix, shift=shift, heads=3, projection="iid"
    ).double()
    assert phi.estimate(x, y).shape == (2, 3, 50, 50)
    for head in range(3):
        q, k = x[:, head].reshape(-1, 4), y[:, head].reshape(-1, 4)
        if shift:
            torch.testing.assert_close(phi.query_shift[head, 0], q.mean(0), rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(phi.key_shift[head, 0], k.mean(0), rtol=1e-6, atol=1e-6)
        alone = hrf.Exponential.fit(
            q, k, n_projections=4, matrix=matrix, shift=shift, projection="iid"
        ).double()
        torch.testing.assert_close(
            phi.log_mse(x, y)[0, head], alone.log_mse(x[0, head], y[0, head]), rtol=1e-4, atol=1e-4
        )


def test_plain_features_that_overflow_say_what_to_use():
    x = torch.full((1, 4), 30.0)
    for phi in (
        hrf.Trigonometric(4, n_projections=2),
        hrf.AngularHybrid(4, n_projections=2, n_coefficient_projections=2),
    ):
        with pytest.raises(OverflowError, match=r"exp\(-?1\d\d\d\), which torch.float32 .*scaled_queries"):
            phi.queries(x)
        assert phi.scaled_queries(x).values.isfinite().all()


def test_plain_features_that_vanish_are_refused():
    """exp(−‖x‖²/2) is 0 in float32 from norm 14 on: a product of zeros would estimate a huge kernel as 0."""
    for phi in (hrf.Positive(4, n_projections=2), hrf.OptimalPositive(4, n_projections=2)):
        with pytest.raises(OverflowError, match=r"run from exp\(-\d+\) to exp\(-\d+\), which torch.float32"):
            phi.queries(torch.full((3, 4), 30.0))


@pytest.mark.parametrize("antithetic", [True, False])
def test_features_along_a_long_row_of_omega_are_looked_at(antithetic):
    """ωᵀx − ‖x‖²/2 is ‖ω‖²/2 at x = ω, about 128 in d = 256: only the features themselves can tell."""
    phi = hrf.Exponential(256, n_projections=4, antithetic=antithetic)
    with pytest.raises(OverflowError, match=r"to exp\(1\d\d\)"):
        phi.queries(phi.projection.omega)
    assert phi.queries(phi.projection.omega / 4).isfinite().all()


def test_whole_numbers_of_numpy_are_whole_numbers(tmp_path):
    phi = hrf.Positive(np.int64(4), n_projections=np.int32(2), heads=np.int8(3))
    assert repr(phi) == repr(hrf.Positive(4, n_projections=2, heads=3))
    phi.save(tmp_path / "map.safetensors")


def test_long_batches_of_short_sequences_are_not_cut_into_rows(monkeypatch):
    """Blocks are filled with whole sequences, so that their number depends on the floats, not on the rows."""
    phi = hrf.Positive(4, n_projections=8, heads=2)
    x = torch.randn(50, 2, 3, 4)
    blocks = []
    finish = hrf.Positive.finish
    monkeypatch.setattr(hrf.Positive, "_block", 10 * 2 * 3 * 16)
    monkeypatch.setattr(hrf.Positive, "finish", lambda *a: blocks.append(1) or finish(*a))
    streamed = phi.queries(x)
    assert len(blocks) == 5
    torch.testing.assert_close(streamed, phi.scaled_queries(x).unscaled())


@pytest.mark.parametrize("kind", ["hadamard", "halton", "sobol", "simplex"])
def test_closed_form_names_what_is_not_known(kind):
    with pytest.raises(NotImplementedError, match=f"Positive with '{kind}' projections"):
        hrf.Positive(4, n_projections=3, projection=kind).mse(X, Y)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"n_projections": 0}, ValueError, "n_projections is 0; expected at least 1"),
        (
            {"matrix": torch.ones(3)},
            ValueError,
            r"matrix has shape \(3,\); expected \(4,\) or \(4, 4\)",
        ),
        (
            {"matrix": torch.tensor([1.0, 0.0, 2.0, 0.0])},
            ValueError,
            "singular: 2 of its diagonal entries are 0",
        ),
        ({"matrix": torch.ones(4, 4)}, ValueError, "singular: its condition number is"),
        ({"matrix": torch.full((4,), torch.nan)}, ValueError, "matrix has values that are NaN"),
        ({"query_shift": torch.ones(3)}, ValueError, r"query_shift has shape \(3,\); expected \(4,\)"),
        ({"key_shift": torch.ones(2, 4)}, ValueError, r"key_shift has shape \(2, 4\); expected \(4,\)"),
        ({"heads": 0}, ValueError, "heads is 0; expected at least 1"),
        ({"heads": 2, "matrix": torch.ones(4)}, ValueError, r"expected \(2, 4\) or \(2, 4, 4\)"),
        ({"matrix": [1.0, 2.0, 3.0, 4.0]}, TypeError, "matrix is of type list; expected a tensor"),
        ({"key_shift": [0.0] * 4}, TypeError, "key_shift is of type list; expected a tensor"),
        ({"query_shift": torch.full((4,), torch.nan)}, ValueError, "query_shift has values that are NaN"),
        ({"query_shift": torch.ones(4) + 1j}, TypeError, "torch.complex64; expected real numbers"),
        ({"projection": None}, TypeError, "projection is of type NoneType; expected one of iid"),
        ({"projection": torch.ones(2, 4)}, TypeError, "projection is of type Tensor; expected one of iid"),
        ({"n_projections": 2.0}, TypeError, "n_projections is 2.0 of type float; expected a whole number"),
    ],
)
def test_bad_arguments_are_refused_in_words(arguments, error, says):
    with pytest.raises(error, match=says):
        hrf.Exponential(4, **({"n_projections": 2} | arguments))


@pytest.mark.parametrize(
    ("phi", "expected"),
    [
        (hrf.Positive(16, n_projections=32), 2 * 32 * (16 + 2)),
        (hrf.Trigonometric(16, n_projections=32), 2 * 32 * (16 + 2)),
        (hrf.AngularHybrid(16, n_projections=8, n_coefficient_projections=4), 2 * 16 * 12 + 64 + 4 + 4 * 32),
    ],
)
def test_flops(phi, expected):
    assert phi.flops() == expected


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own
def test_inductor_gives_the_same_features():
    phi = hrf.AngularHybrid(4, n_projections=4, n_coefficient_projections=3)
    compiled = torch.compile(phi.queries, fullgraph=True)
    torch.testing.assert_close(compiled(X.float()), phi.queries(X.float()), rtol=1e-4, atol=1e-6)
    torch.compiler.reset()
