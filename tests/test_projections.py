from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from scipy.linalg import hadamard
from torch import Generator

import hrf
from hrf import projections
from hrf.projections import KINDS, Projections, _times_hadamard, draw


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


every_kind = pytest.mark.parametrize("kind", KINDS)
gaussian_kinds = pytest.mark.parametrize("kind", [k for k in KINDS if k != "hadamard"])


@every_kind
@pytest.mark.parametrize(("n", "dim"), [(1, 1), (3, 1), (1, 5), (5, 5), (13, 5), (64, 3)])
def test_any_number_of_rows_in_any_dimension(kind, n, dim):
    omega = draw(kind, n, dim, generator=seeded())
    assert omega.shape == (n, dim)
    assert omega.dtype == torch.float32
    assert omega.isfinite().all()


@every_kind
def test_seed_decides_and_precision_only_rounds(kind):
    first = draw(kind, 7, 4, generator=seeded(3), dtype=torch.float64)
    assert torch.equal(first, draw(kind, 7, 4, generator=seeded(3), dtype=torch.float64))
    assert torch.equal(first.float(), draw(kind, 7, 4, generator=seeded(3), dtype=torch.float32))
    assert not torch.equal(first, draw(kind, 7, 4, generator=seeded(4), dtype=torch.float64))


@every_kind
def test_heads_are_independent_draws(kind):
    omega = draw(kind, 6, 4, heads=2, generator=seeded())
    assert omega.shape == (2, 6, 4)
    assert not torch.allclose(omega[0], omega[1])


@pytest.mark.stat
@gaussian_kinds
@pytest.mark.parametrize(("n", "square"), [(2, 1), (2, 1024), (5, 1024)])
def test_every_entry_of_every_row_is_standard_normal(kind, n, square, monkeypatch):
    monkeypatch.setattr(projections, "_SQUARE", square)
    omega = draw(kind, n, 3, heads=4000, generator=seeded(), dtype=torch.float64)
    for row in range(n):
        for column in range(3):
            # One test in 15 falls below 1e-4 by chance less than once in 600 runs; the seed is fixed.
            assert stats.kstest(omega[:, row, column].numpy(), "norm").pvalue > 1e-4


@pytest.mark.stat
@gaussian_kinds
def test_projection_of_any_direction_is_standard_normal(kind):
    omega = draw(kind, 4, 3, heads=4000, generator=seeded(1), dtype=torch.float64)
    direction = torch.tensor([1.0, 2.0, -2.0], dtype=torch.float64) / 3
    assert stats.kstest((omega[:, 3] @ direction).numpy(), "norm").pvalue > 1e-4


@pytest.mark.parametrize("kind", ["orthogonal", "hadamard"])
def test_rows_of_a_block_are_orthogonal(kind):
    omega = draw(kind, 12, 8, generator=seeded(), dtype=torch.float64)
    unit = omega / omega.norm(dim=-1, keepdim=True)
    gram = unit @ unit.mT
    torch.testing.assert_close(gram[:8, :8], torch.eye(8, dtype=torch.float64), atol=1e-12, rtol=0)
    assert gram[:8, 8:].abs().max() > 0.1  # another block, another rotation


@pytest.mark.parametrize("square", [1, 1024])
@pytest.mark.parametrize("n", [1, 3, 4, 5])
def test_simplex_rows_point_to_the_corners(n, square, monkeypatch):
    monkeypatch.setattr(projections, "_SQUARE", square)
    omega = draw("simplex", n, 5, generator=seeded(), dtype=torch.float64)
    unit = omega / omega.norm(dim=-1, keepdim=True)
    expected = torch.full((n, n), -1 / 4, dtype=torch.float64).fill_diagonal_(1)
    torch.testing.assert_close(unit @ unit.mT, expected, atol=1e-12, rtol=0)


def test_hadamard_rows_are_products_of_hadamard_and_sign_matrices():
    size = 8
    h = torch.from_numpy(hadamard(size)).double() / math.sqrt(size)
    assert torch.equal(_times_hadamard(torch.eye(size, dtype=torch.float64)), h)
    signs = torch.randn(3, 1, 1, 1, size, generator=seeded(), dtype=torch.float64).sign().view(3, size)
    product = torch.linalg.multi_dot([h * sign for sign in signs])
    omega = draw("hadamard", 3, size, generator=seeded(), dtype=torch.float64)
    unit = omega / omega.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(unit, product[:3], atol=1e-12, rtol=0)


@pytest.mark.parametrize("kind", ["iid", "orthogonal", "hadamard", "simplex"])
def test_few_rows_of_many_columns_take_the_memory_of_the_rows(kind):
    """A square matrix of these columns would take 80 GB."""
    omega = draw(kind, 4, 100_000, generator=seeded(), dtype=torch.float64)
    lengths = omega.norm(dim=-1)
    gram = omega @ omega.mT / (lengths[:, None] * lengths)
    assert lengths.div(math.sqrt(100_000)).sub(1).abs().max() < 0.02
    # Zero-padded Hadamard rows lose columns: products of what is left are near 0, not 0.
    limit = 0.02 if kind in ("iid", "hadamard") else 2e-5
    assert (gram - torch.eye(4)).abs().max() < limit


@pytest.mark.parametrize(("kind", "most"), [("halton", 2048), ("sobol", 21201)])
def test_sequences_of_too_many_dimensions_get_a_sentence(kind, most):
    with pytest.raises(ValueError, match=f"dim is 100000; expected at most {most} for {kind} projections"):
        draw(kind, 4, 100_000)


@pytest.mark.stat
@pytest.mark.parametrize("kind", ["orthogonal", "simplex", "hadamard"])
def test_lengths_are_chi(kind):
    omega = draw(kind, 4, 4, heads=2000, generator=seeded(2), dtype=torch.float64)
    lengths = omega.norm(dim=-1)
    assert stats.kstest(lengths[:, 1].numpy(), stats.chi(4).cdf).pvalue > 1e-4
    # Lengths within a block are independent: their correlation is within 5 standard errors of 0.
    assert abs(torch.corrcoef(lengths[:, :2].mT)[0, 1]) < 5 / math.sqrt(2000)


@pytest.mark.stat
def test_padded_hadamard_rows_have_unit_second_moments():
    """Rows of 8 entries are cut to 5: their lengths are drawn for 8 entries, before the cut."""
    draws, dim = 20_000, 5
    omega = draw("hadamard", 8, dim, heads=draws, generator=seeded(3), dtype=torch.float64)
    products = omega.unsqueeze(-1) * omega.unsqueeze(-2)  # ωωᵀ: (draws, 8, d, d)
    error = (products.mean(0) - torch.eye(dim, dtype=torch.float64)).abs()
    assert (error <= 5 * products.std(0) / math.sqrt(draws)).all()
    squares = omega.square().sum(-1)
    assert ((squares.mean(0) - dim).abs() <= 5 * squares.std(0) / math.sqrt(draws)).all()


@pytest.mark.stat
def test_haar_blocks_need_the_sign_fix():
    """Raw QR gives 1.81 where e is true (d = 4): the mean tells the two apart at once."""
    x = torch.full((1, 1, 4), 0.5, dtype=torch.float64)
    phi = hrf.Exponential(4, n_projections=4, antithetic=False, heads=20_000, generator=seeded()).double()
    estimates = phi.estimate(x, x)
    assert abs(estimates.mean() - math.e) <= 5 * estimates.std() / math.sqrt(20_000)


@pytest.mark.slow
@pytest.mark.stat
@gaussian_kinds
def test_estimates_are_unbiased(kind):
    draws = 10_000
    x = torch.tensor([[[0.3, -0.5, 0.2, 0.4]]], dtype=torch.float64)
    y = torch.tensor([[[0.1, 0.4, -0.3, 0.5]]], dtype=torch.float64)
    for base in (hrf.Positive, hrf.Trigonometric):
        phi = base(4, n_projections=8, projection=kind, heads=draws, generator=seeded(5)).double()
        assert phi.unbiased
        estimates = phi.estimate(x, y).flatten()
        error = abs(estimates.mean() - hrf.kernels.softmax(x, y).squeeze())
        assert error <= 5 * estimates.std() / math.sqrt(draws)


@pytest.mark.stat
def test_hadamard_is_biased_in_few_dimensions_and_says_so():
    """Signs of a small hypercube are far from Gaussian; in 64 dimensions the bias is too small to see."""
    draws = 4000
    errors = {}
    for dim in (2, 64):
        x = torch.zeros(1, 1, dim, dtype=torch.float64)
        x[..., 0] = 1
        phi = hrf.Positive(
            dim, n_projections=dim, projection="hadamard", heads=draws, generator=seeded()
        ).double()
        assert not phi.unbiased
        estimates = phi.estimate(x, x).flatten()
        errors[dim] = float((estimates.mean() - math.e) / (estimates.std() / math.sqrt(draws)))
    assert abs(errors[2]) > 5
    assert abs(errors[64]) < 5


@pytest.mark.slow
@pytest.mark.stat
@pytest.mark.parametrize("kind", ["orthogonal", "simplex", "sobol", "halton"])
def test_coupled_rows_beat_independent_ones(kind):
    """With single ω: rows that point apart (simplex) help only as long as −ω is not used as well."""
    x = torch.tensor([[[0.4, -0.2, 0.3]]], dtype=torch.float64)
    variance = {}
    for k in ("iid", kind):
        phi = hrf.Exponential(
            3, n_projections=12, antithetic=False, projection=k, heads=10_000, generator=seeded(7)
        )
        variance[k] = phi.double().estimate(x, x).var()
    assert variance[kind] < 0.95 * variance["iid"]


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (("iid", 0, 4), ValueError, "n_projections is 0; expected at least 1"),
        (("iid", 4, -1), ValueError, "dim is -1; expected at least 1"),
        (("iid", 2.5, 4), TypeError, "n_projections is 2.5 of type float"),
        (("iid", True, 4), TypeError, "n_projections is True of type bool"),
        (("gaussian", 4, 4), ValueError, "'gaussian'; expected one of iid, orthogonal"),
    ],
)
def test_bad_arguments_are_refused_in_words(arguments, error, says):
    with pytest.raises(error, match=says):
        draw(*arguments)
    with pytest.raises(error, match=says):
        Projections(*arguments)


def test_module_redraws_in_place_and_keeps_its_precision():
    projections = Projections("orthogonal", 4, 3, generator=seeded()).double()
    buffer = projections.omega
    projections.redraw_(seeded(1))
    assert projections.omega is buffer
    assert torch.equal(buffer, draw("orthogonal", 4, 3, generator=seeded(1), dtype=torch.float64))
    assert repr(projections) == "Projections(kind='orthogonal', n_projections=4, dim=3)"


def test_shared_projections_have_to_fit():
    omega = Projections("iid", 4, 3)
    assert hrf.Positive(3, n_projections=4, projection=omega).projection is omega
    with pytest.raises(ValueError, match=r"\(4, 3, None\); expected \(8, 3, None\)"):
        hrf.Positive(3, n_projections=8, projection=omega)
