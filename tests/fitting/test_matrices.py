"""Fitted matrices attain the loss that their closed forms promise."""

from __future__ import annotations

import math

import pytest
import torch

import hrf
from fitting.data import (
    COMPLEX,
    DIAGONAL,
    SCALES,
    as_matrix,
    example,
    normal,
)
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


@pytest.mark.parametrize("kind", KINDS)
def test_leading_axes_broadcast_to_all_pairs(kind):
    x, y = normal(2, 20, 4) + 1, normal(3, 20, 4, seed=1)
    moments = SecondMoments.of(x.unsqueeze(1), y.unsqueeze(0))
    matrices = fit_matrix(moments, kind)
    torch.testing.assert_close(
        matrix_loss(moments.with_ridge(), matrices), optimal_loss(moments, kind), rtol=1e-9, atol=1e-9
    )
    alone = fit_matrix(SecondMoments.of(x[1], y[2]), kind)
    square, other = as_matrix(matrices[1, 2], kind), as_matrix(alone, kind)
    torch.testing.assert_close(square.mT @ square, other.mT @ other)


def test_heads_of_single_precision_fit_in_double():
    x, y = normal(2, 50, 4).float(), normal(2, 50, 4, seed=1).float()
    matrix = fit_matrix(SecondMoments.of(x, y), "complex-full")
    assert matrix.dtype == torch.complex128
    phi = hrf.Exponential(4, n_projections=8, matrix=matrix.to(torch.complex64), heads=2)
    assert phi.estimate(x, y).shape == (2, 50, 50)


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
