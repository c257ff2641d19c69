"""Fitted matrices attain the loss that their closed forms promise, lower errors, and cope with degenerate data."""

from __future__ import annotations

import math

import pytest
import torch

import hrf
from fitting.data import (
    COMPLEX,
    DIAGONAL,
    SCALES,
    anisotropic,
    as_matrix,
    correlated,
    example,
    normal,
    relative_mse,
    rotated,
)
from hrf import theory
from hrf.fitting import (
    KINDS,
    RIDGE,
    SecondMoments,
    fit_matrix,
    matrix_from_centers,
    matrix_loss,
    optimal_loss,
)
from hrf.theory import map_errors


@pytest.mark.parametrize("paired", [False, True])
def test_moments_are_means_over_the_pairs_that_meet(paired):
    x, y = example()
    pairs = [(q, k) for q in x for k in y] if not paired else list(zip(x, y, strict=True))
    moments = SecondMoments.of(x, y, paired=paired)
    for moment, mean in (
        (moments.queries, sum(q.outer(q) for q, _ in pairs)),
        (moments.keys, sum(k.outer(k) for _, k in pairs)),
        (moments.cross, sum(q.outer(k) for q, k in pairs)),
    ):
        torch.testing.assert_close(moment, mean / len(pairs))


@pytest.mark.parametrize("shape", [(5,), (5, 5)], ids=["diagonal", "full"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_loss_is_the_mean_of_the_squared_sum(shape, dtype):
    x, y = example()
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(6), dtype=dtype)
    real, imag = map_errors.shifted_sum(x, y, matrix)
    direct = (real.square() + imag.square()).sum(-1).mean()
    torch.testing.assert_close(matrix_loss(SecondMoments.of(x, y, paired=True), matrix), direct)


@pytest.mark.parametrize("ridge", [0.0, RIDGE])
@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_fit_attains_the_promised_loss(kind, paired, ridge):
    moments = SecondMoments.of(*example(), paired=paired)
    matrix = fit_matrix(moments, kind, ridge=ridge)
    promised = optimal_loss(moments, kind, ridge=ridge)
    assert matrix.dtype == (torch.complex128 if kind in COMPLEX else torch.float64)
    torch.testing.assert_close(
        matrix_loss(moments.with_ridge(ridge), matrix), promised, rtol=1e-10, atol=1e-10
    )


def admissible(matrix, kind, size, seed):
    """A neighbour of the matrix, within the set over which its rule is optimal."""
    noise = size * torch.randn(
        matrix.shape, generator=torch.Generator().manual_seed(seed), dtype=matrix.dtype
    )
    if kind == "complex-full":  # AᴴA stays
        return torch.linalg.matrix_exp(noise - noise.mH) @ matrix
    return matrix * noise.exp() if kind in DIAGONAL else matrix + noise @ matrix


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_no_admissible_neighbour_is_better(kind, paired):
    moments = SecondMoments.of(*example(), paired=paired)
    matrix = fit_matrix(moments, kind, ridge=0.0)
    least = matrix_loss(moments, matrix)
    for seed, size in enumerate([1e-4, 1e-3, 1e-2, 0.1, 1.0] * 20):
        assert matrix_loss(moments, admissible(matrix, kind, size, seed)) >= least - 1e-10


@pytest.mark.parametrize("kind", COMPLEX)
def test_complex_kinds_never_lose_to_the_real_kinds(kind):
    for seed in range(20):
        x, y = normal(9, 4, seed=seed) + 1, normal(9, 4, seed=seed + 100)
        moments = SecondMoments.of(x, y, paired=True)
        real = optimal_loss(moments, kind.replace("complex", "real"))
        assert optimal_loss(moments, kind) <= real + 1e-12


def test_real_full_solves_its_equation():
    moments = SecondMoments.of(*example())
    matrix = fit_matrix(moments, "real-full", ridge=0.0)
    mean = matrix.mT @ matrix
    torch.testing.assert_close(mean @ moments.queries @ mean, moments.keys, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(matrix, matrix.mT)
    same = moments._replace(keys=moments.queries)
    torch.testing.assert_close(fit_matrix(same, "real-full"), torch.eye(5, dtype=torch.float64))


@pytest.mark.parametrize("kind", KINDS[:3])
@pytest.mark.parametrize("n", [2, 60])
def test_ridge_raises_the_loss_by_no_more_than_it_says(kind, n):
    x, y = example()
    moments = SecondMoments.of(x[:n], y[:n])
    least = optimal_loss(moments, kind, ridge=1e-14)
    raised = matrix_loss(moments, fit_matrix(moments, kind)) - least
    sizes = math.sqrt(moments.queries.trace() * moments.keys.trace())
    assert -1e-5 <= raised <= (4 * math.sqrt(RIDGE) + 2 * RIDGE) * sizes


@pytest.mark.parametrize("kind", KINDS)
def test_rescaled_queries_and_keys_rescale_the_matrix(kind):
    x, y = example()
    plain = fit_matrix(SecondMoments.of(x, y, paired=True), kind)
    rescaled = fit_matrix(SecondMoments.of(1e3 * x, y / 1e3, paired=True), kind)
    squares = [as_matrix(m, kind) for m in (plain, 1e3 * rescaled)]
    torch.testing.assert_close(squares[0].mT @ squares[0], squares[1].mT @ squares[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("paired", [False, True])
def test_batches_equal_loops(kind, paired):
    x, y = normal(2, 3, 20, 4) + 1, normal(2, 3, 20, 4, seed=1) * SCALES[:4]
    moments = SecondMoments.of(x, y, paired=paired)
    matrices = fit_matrix(moments, kind)
    losses, promises = matrix_loss(moments, matrices), optimal_loss(moments, kind)
    assert matrices.shape == ((2, 3, 4) if kind in DIAGONAL else (2, 3, 4, 4))
    for i in range(2):
        for j in range(3):
            one = SecondMoments.of(x[i, j], y[i, j], paired=paired)
            alone, batched = as_matrix(fit_matrix(one, kind), kind), as_matrix(matrices[i, j], kind)
            torch.testing.assert_close(alone.mT @ alone, batched.mT @ batched)
            torch.testing.assert_close(matrix_loss(one, matrices[i, j]), losses[i, j])
            torch.testing.assert_close(optimal_loss(one, kind), promises[i, j])


def test_errors_say_what_was_received():
    x, y = example()
    moments = SecondMoments.of(x, y)
    for call in (fit_matrix, optimal_loss):
        with pytest.raises(ValueError, match="kind is 'full'; expected one of 'real-diagonal'"):
            call(moments, "full")
    with pytest.raises(ValueError, match=r"kind is 'real-full'; expected one of .* 'complex-diagonal'$"):
        matrix_from_centers(x, y, "real-full")
    with pytest.raises(ValueError, match=r"limit is 0\.5; expected at least 1"):
        matrix_from_centers(x, y, "real-diagonal", limit=0.5)
    with pytest.raises(ValueError, match="queries have last dimension 5, keys 4"):
        SecondMoments.of(x, y[:, :4])
    with pytest.raises(ValueError, match="3 queries do not pair with 4 keys"):
        SecondMoments.of(x[:3], y[:4], paired=True)
    with pytest.raises(ValueError, match=r"keys of shape \(0, 5\) are empty"):
        SecondMoments.of(x, y[:0])
    with pytest.raises(ValueError, match=r"queries .* not all of them are finite"):
        SecondMoments.of(x / 0, y)


@pytest.mark.parametrize("kind", COMPLEX)
def test_about_the_means_complex_kinds_have_no_imaginary_part(kind):
    """E xyᵀ is rounding about the means: no unit may depend on its sign."""
    x, y = normal(200, 4) * torch.tensor([3.0, 1, 1, 0.1]) + 5, normal(200, 4, seed=1) - 2
    moments = SecondMoments.of(x - x.mean(0), y - y.mean(0))
    matrix = fit_matrix(moments, kind)
    assert matrix.imag.eq(0).all()
    loss = optimal_loss(moments, kind.replace("complex", "real"))
    torch.testing.assert_close(matrix_loss(moments.with_ridge(), matrix), loss)
    phi = hrf.Exponential.fit(x, y, n_projections=8, matrix=kind, shift=True)
    assert phi.feature_dim == 16  # as wide as with a real matrix


def test_diagonal_fits_axes_that_differ():
    x, y = anisotropic()
    fitted = fit_matrix(SecondMoments.of(x, y), "real-diagonal")
    before, after = relative_mse(x, y, None), relative_mse(x, y, fitted)
    assert before.median() > 30 > 3 > after.median()
    assert before.mean() > 10 * after.mean()


def test_full_fits_axes_that_are_rotated():
    x, y = rotated()
    moments = SecondMoments.of(x, y)
    before, diagonal, full = (
        relative_mse(x, y, matrix)
        for matrix in (None, fit_matrix(moments, "real-diagonal"), fit_matrix(moments, "real-full"))
    )
    assert before.median() > 30 > 3 > full.median()
    assert before.mean() > 10 * full.mean()
    assert diagonal.median() > 5 * full.median()


def test_complex_full_fits_pairs_that_are_correlated():
    x, y = correlated()
    moments = SecondMoments.of(x, y, paired=True)
    real, complex_ = (relative_mse(x, y, fit_matrix(moments, kind)) for kind in KINDS[2:])
    assert relative_mse(x, y, None).median() > 30 > 4 > real.median() > 1 > 0.1 > complex_.median()
    assert real.mean() > 10 * complex_.mean()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("x", "y"),
    [
        (normal(1, 6), normal(1, 6, seed=1)),
        (normal(3, 6), normal(4, 6, seed=1)),
        (normal(1, 6).expand(20, 6), normal(20, 6, seed=1)),
        (normal(20, 6) * torch.tensor([1, 1, 0, 1, 1, 1]), normal(20, 6, seed=1)),
        (normal(20, 6), torch.ones(20, 6, dtype=torch.float64)),
        (torch.zeros(5, 6, dtype=torch.float64), normal(5, 6, seed=1)),
        (normal(5, 6), torch.zeros(5, 6, dtype=torch.float64)),
        (torch.zeros(5, 6, dtype=torch.float64), torch.zeros(5, 6, dtype=torch.float64)),
        (1e-9 * normal(5, 6), normal(5, 6, seed=1)),
        (1e-160 * normal(5, 6), normal(5, 6, seed=1)),
    ],
    ids=["one", "few", "copies", "zero column", "constant", "zero x", "zero y", "zeros", "small", "denormal"],
)
def test_degenerate_data_give_a_usable_map(x, y, kind):
    moments = SecondMoments.of(x, y)
    matrix = fit_matrix(moments, kind)
    full = as_matrix(matrix, kind)
    assert full.isfinite().all()
    assert torch.linalg.cond(full) <= math.sqrt(1 + 6 / RIDGE) * (1 + 1e-9)
    assert optimal_loss(moments, kind).isfinite()
    phi = hrf.Exponential(
        6, n_projections=4, matrix=matrix.to(torch.complex64 if kind in COMPLEX else torch.float32)
    )
    assert phi.estimate(x.float(), y.float()).isfinite().all()


# The paper's rule for a matrix from two centres.


def test_complex_rule_is_exact_at_the_centres():
    r, s = normal(2, 3, 7), normal(2, 4, 7, seed=1)
    matrices = matrix_from_centers(r, s, "complex-diagonal", limit=1e6)
    assert matrices.shape == (2, 3, 4, 7)
    z = matrices * r.unsqueeze(-2) + s.unsqueeze(-3) / matrices
    assert z.abs().max() < 1e-14
    mse = theory.exponential_log_mse(r[0, 0], s[0, 1], 1, matrices[0, 0, 1]).exp()
    assert mse < 1e-24


def test_rules_are_the_minima_at_one_pair():
    r, s = normal(1, 7), normal(1, 7, seed=1)
    for kind in DIAGONAL:
        rule = matrix_from_centers(r, s, kind, limit=1e6)[0, 0]
        moments = SecondMoments.of(r, s)
        torch.testing.assert_close(rule, fit_matrix(moments, kind, ridge=0.0))


def test_rules_by_sign_and_zero():
    r = torch.tensor([[4.0, 4.0, 0.0, 0.0, 1.0, 1e-200, 1.0]], dtype=torch.float64)
    s = torch.tensor([[1.0, -1.0, 0.0, -2.0, 0.0, 1.0, -1e-9]], dtype=torch.float64)
    expected = torch.tensor([0.5, 0.5, 1, 10, 0.1, 10, 0.1], dtype=torch.float64)
    real = matrix_from_centers(r, s, "real-diagonal", limit=10)
    torch.testing.assert_close(real[0, 0], expected)
    units = torch.tensor([1j, 1, 1, 1, 1, 1j, 1], dtype=torch.complex128)
    complex_ = matrix_from_centers(r, s, "complex-diagonal", limit=10)
    torch.testing.assert_close(complex_[0, 0], expected * units)


def test_moments_serve_spread_points_better_than_centres():
    r, s = normal(1, 20) / 5, normal(1, 20, seed=1) / 5
    x, y = r + 0.1 * normal(500, 20, seed=2), s + 0.1 * normal(500, 20, seed=3)
    for kind in DIAGONAL:
        rule, fitted = matrix_from_centers(r, s, kind)[0, 0], fit_matrix(SecondMoments.of(x, y), kind)
        errors = [relative_mse(x, y, matrix).mean() for matrix in (None, rule, fitted)]
        assert errors[0] > errors[1] > errors[2]
