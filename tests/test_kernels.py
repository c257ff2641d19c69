from __future__ import annotations

import pytest
import torch

from hrf import kernels

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
