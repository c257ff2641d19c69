"""Kernels, and ω matrices of all kinds."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from scipy.linalg import hadamard
from torch import Generator

import hrf
from hrf import kernels, projections
from hrf.projections import KINDS, Projections, _sylvester, _times_hadamard, draw

G = torch.Generator().manual_seed(0)

X = torch.randn(2, 3, 4, generator=G, dtype=torch.float64)

Y = torch.randn(5, 4, generator=G, dtype=torch.float64)


def test_kernels_of_all_pairs_are_their_definitions():
    dot = torch.einsum("bid,jd->bij", X, Y)
    square = (X.unsqueeze(-2) - Y).square().sum(-1)
    torch.testing.assert_close(kernels.log_softmax_kernel(X, Y), dot)
    torch.testing.assert_close(kernels.softmax(X, Y), dot.exp())
    torch.testing.assert_close(kernels.squared_distance(X, Y), square)
    torch.testing.assert_close(kernels.log_gaussian_kernel(X, Y), -square / 2)
    torch.testing.assert_close(kernels.gaussian(X, Y), (-square / 2).exp())


def test_distances_of_close_vectors_keep_their_digits():
    """The expanded square ‖x‖² + ‖y‖² − 2xᵀy has no digits left at this distance from the origin."""
    step = torch.tensor([2.0**-30, 0.0, 0.0, 0.0], dtype=torch.float64)
    far = 1000 + torch.arange(4, dtype=torch.float64)[None]
    assert kernels.squared_distance(far, far + step).item() == 2.0**-60
    assert kernels.squared_distance(X, X).diagonal(dim1=-2, dim2=-1).eq(0).all()
    assert kernels.gaussian(X, X).diagonal(dim1=-2, dim2=-1).eq(1).all()


@pytest.mark.parametrize("kernel", [kernels.softmax, kernels.gaussian])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_and_returned_in_single(kernel, dtype):
    x, y = X.to(dtype), Y.to(dtype)
    assert kernel(x, y).dtype == torch.float32
    assert torch.equal(kernel(x, y), kernel(x.float(), y.float()))
    assert kernel(x, y.double()).dtype == torch.float64


@pytest.mark.parametrize("kernel", [kernels.softmax, kernels.gaussian])
def test_kernels_have_first_and_second_derivatives(kernel):
    x, y = X[:, :2].clone().requires_grad_(), Y[:2].clone().requires_grad_()
    assert torch.autograd.gradcheck(kernel, (x, y))
    assert torch.autograd.gradgradcheck(kernel, (x, y))


def test_derivatives_exist_where_two_vectors_are_equal():
    x = Y[:1].clone().requires_grad_()
    value = kernels.log_gaussian_kernel(x, Y[:1]).squeeze()
    (slope,) = torch.autograd.grad(value, x, create_graph=True)
    assert not slope.any()
    curvature = torch.autograd.functional.hessian(
        lambda u: kernels.log_gaussian_kernel(u, Y[:1]).sum(), Y[:1]
    )
    torch.testing.assert_close(curvature.squeeze(), -torch.eye(4, dtype=torch.float64))


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


every_kind = pytest.mark.parametrize("kind", KINDS)

gaussian_kinds = pytest.mark.parametrize("kind", [k for k in KINDS if k != "hadamard"])


@every_kind
def test_any_number_of_rows_in_any_dimension(kind):
    for n, dim in ((1, 1), (3, 1), (1, 5), (5, 5), (13, 5), (64, 3)):
        omega = draw(kind, n, dim, heads=2, generator=seeded())
        assert omega.shape == (2, n, dim)
        assert omega.dtype == torch.float32
        assert omega.isfinite().all()
        assert not torch.allclose(omega[0], omega[1])


@every_kind
def test_seed_decides_and_precision_only_rounds(kind):
    first = draw(kind, 7, 4, generator=seeded(3), dtype=torch.float64)
    assert torch.equal(first, draw(kind, 7, 4, generator=seeded(3), dtype=torch.float64))
    assert torch.equal(first.float(), draw(kind, 7, 4, generator=seeded(3), dtype=torch.float32))
    assert not torch.equal(first, draw(kind, 7, 4, generator=seeded(4), dtype=torch.float64))


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


@pytest.mark.stat
@gaussian_kinds
def test_estimates_are_unbiased(kind):
    draws = 3_000
    x = torch.tensor([[[0.3, -0.5, 0.2, 0.4]]], dtype=torch.float64)
    y = torch.tensor([[[0.1, 0.4, -0.3, 0.5]]], dtype=torch.float64)
    omega = Projections(kind, 8, 4, heads=draws, generator=seeded(5))
    for base in (hrf.Positive, hrf.Trigonometric):
        phi = base(4, n_projections=8, projection=omega, heads=draws).double()
        assert phi.unbiased
        estimates = phi.estimate(x, y).flatten()
        error = abs(estimates.mean() - hrf.kernels.softmax(x, y).squeeze())
        assert error <= 5 * estimates.std() / math.sqrt(draws)


@pytest.mark.stat
def test_hadamard_is_biased_in_few_dimensions_and_says_so():
    """Signs of a small hypercube are far from Gaussian; in 64 dimensions the bias is too small to see."""
    draws, errors = 4000, {}
    for dim in (2, 64):
        x = torch.eye(dim, dtype=torch.float64)[:1].unsqueeze(0)
        common = {"projection": "hadamard", "heads": draws, "generator": seeded()}
        phi = hrf.Positive(dim, n_projections=dim, **common).double()
        assert not phi.unbiased
        estimates = phi.estimate(x, x).flatten()
        errors[dim] = float((estimates.mean() - math.e) / (estimates.std() / math.sqrt(draws)))
    assert abs(errors[2]) > 5 > abs(errors[64])


@pytest.mark.stat
def test_coupled_rows_beat_independent_ones():
    """With single ω: rows that point apart (simplex) help only as long as −ω is not used as well."""
    x, variance = torch.tensor([[[0.4, -0.2, 0.3]]], dtype=torch.float64), {}
    for kind in ("iid", "orthogonal", "simplex", "sobol", "halton"):
        omega = Projections(kind, 12, 3, heads=4_000, generator=seeded(7))
        phi = hrf.Exponential(3, n_projections=12, antithetic=False, projection=omega, heads=4_000)
        variance[kind] = phi.double().estimate(x, x).var()
    assert all(found < 0.95 * variance["iid"] for kind, found in variance.items() if kind != "iid")


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


# Products with rows of `hadamard` by their factors.


@pytest.mark.parametrize(("dim", "n"), [(512, 700), (600, 100), (1024, 1024)])
def test_factors_give_the_products(dim, n, tmp_path):
    omega = Projections("hadamard", n, dim, seed=0, dtype=torch.float64)
    x = torch.randn(7, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(omega.project(x), x @ omega.omega.mT)
    out = torch.empty(7, n, dtype=torch.float64)
    assert omega.project(x, out) is out
    assert torch.equal(omega.omega, draw("hadamard", n, dim, seed=0, dtype=torch.float64))
    omega.redraw_(seed=5)
    torch.testing.assert_close(omega.project(x), x @ omega.omega.mT)
    phi = hrf.Trigonometric(dim, n_projections=n, projection=omega)
    phi.save(tmp_path / "map.safetensors")
    assert torch.equal(hrf.load(tmp_path / "map.safetensors").queries(x), phi.queries(x))
    assert not phi.fitted_tensors()


def test_states_without_factors_are_read():
    """Files of before hold ω alone."""
    omega = Projections("hadamard", 20, 512, seed=0)
    state = {"omega": draw("hadamard", 20, 512, seed=1)}
    omega.load_state_dict(state)
    x = torch.randn(3, 512)
    assert torch.equal(omega.project(x), x @ state["omega"].mT)


def test_trained_rows_have_no_factors(tmp_path):
    """Factors are those of the draw: products go by ω once it is trained, in this process and from files."""
    phi = hrf.Trigonometric(512, n_projections=16, projection="hadamard", seed=0)
    x, omega = torch.randn(3, 512, generator=seeded(0)) / 30, phi.projection.omega.requires_grad_()
    phi.queries(x).sum().backward()
    with torch.no_grad():
        omega -= omega.grad / omega.grad.norm()
    expected = phi.queries(x).detach()
    phi.save(tmp_path / "map.safetensors")
    torch.testing.assert_close(hrf.load(tmp_path / "map.safetensors").queries(x), expected)
    omega.requires_grad_(False)
    torch.testing.assert_close(phi.queries(x), expected)


def test_factors_made_in_inference_mode_serve_gradients():
    _sylvester.cache_clear()
    omega, x = Projections("hadamard", 16, 512, seed=0), torch.randn(3, 512)
    with torch.inference_mode():
        omega.project(x)
    omega.project(x.requires_grad_()).sum().backward()
    assert x.grad.isfinite().all()
