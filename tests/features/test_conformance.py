"""The numbers of every map: estimates, means, errors, gradients and ranges."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import Tensor

import hrf
from features.direct import direct_estimate
from features.registry import BIASED, IID_ONLY, MAPS, X, Y, build

every_map = pytest.mark.parametrize("name", MAPS)
EPS = torch.finfo(torch.float64).eps
DRAWS = 20_000
# Sign bits and nearest centres are piecewise constant, with a jump at x = 0.
JUMPS_AT_ZERO = {
    name
    for name in MAPS
    if "angular" in name or "indicator" in name or name in ("nested", "three bases", "shared omega")
}


@functools.lru_cache(maxsize=4)
def _draws(name: str, kind: str) -> tuple[hrf.FeatureMap, Tensor]:
    """A map and its estimates over independent draws, one per head: (DRAWS, L, S)."""
    phi = build(name, heads=DRAWS, kind=kind, seed=1)
    return phi, phi.estimate(X.unsqueeze(0), Y.unsqueeze(0))


def _kernel(phi: hrf.FeatureMap) -> Tensor:
    return (hrf.kernels.softmax if phi.kernel == "softmax" else hrf.kernels.gaussian)(X, Y)


@every_map
def test_feature_form_equals_estimate_to_rounding(name):
    phi = build(name)
    q, k = phi.queries(X), phi.keys(Y)
    assert q.shape == (len(X), phi.feature_dim)
    assert k.shape == (len(Y), phi.feature_dim)
    # A dot product of D terms errs by at most D·eps·Σ|qᵢkᵢ|; each term carries a few roundings of its own.
    bound = (phi.feature_dim + 50) * EPS * (q.abs() @ k.abs().mT)
    assert ((q @ k.mT - phi.estimate(X, Y)).abs() <= bound).all()


@every_map
def test_scaled_features_are_the_features(name):
    phi = build(name)
    for plain, scaled in ((phi.queries(X), phi.scaled_queries(X)), (phi.keys(Y), phi.scaled_keys(Y))):
        assert scaled.log_scale.shape == (*plain.shape[:-1], 1)
        torch.testing.assert_close(scaled.unscaled(), plain, rtol=1e-13, atol=1e-15)


@every_map
def test_estimate_equals_the_definition(name):
    phi = build(name)
    expected = direct_estimate(phi, X, Y)
    assert ((phi.estimate(X, Y) - expected).abs() <= 1e-10 * expected.abs()).all()


@pytest.mark.stat
@every_map
@pytest.mark.parametrize("kind", ["iid", "orthogonal"])
def test_unbiased_within_five_standard_errors(name, kind):
    phi, estimates = _draws(name, kind)
    assert phi.unbiased == (name not in BIASED)
    if name in BIASED:
        return
    error = (estimates.mean(0) - _kernel(phi)).abs()
    # Points of zero variance leave rounding only.
    assert (error <= 5 * estimates.std(0) / math.sqrt(DRAWS) + 1e-13).all()


@pytest.mark.stat
@every_map
@pytest.mark.parametrize("kind", ["iid", "orthogonal"])
def test_empirical_mse_equals_the_closed_form(name, kind):
    phi, estimates = _draws(name, kind)
    single = build(name, kind=kind)
    if kind == "orthogonal" and name in IID_ONLY:
        with pytest.raises(NotImplementedError, match=type(phi).__name__):
            single.mse(X, Y)
        return
    squares = (estimates - _kernel(phi)).square()
    error = (squares.mean(0) - single.mse(X, Y)).abs()
    assert (error <= 5 * squares.std(0) / math.sqrt(DRAWS) + 1e-13).all()


@every_map
def test_mse_and_relative_error_agree(name):
    phi = build(name, kind="iid")
    assert phi.mse(X, Y).dtype == torch.float64
    torch.testing.assert_close(phi.log_mse(X, Y).exp(), phi.mse(X, Y))
    torch.testing.assert_close(phi.relative_error(X, Y), phi.mse(X, Y).sqrt() / _kernel(phi))


@every_map
def test_closed_form_of_heads_is_that_of_each_head(name):
    kind = "iid" if name in IID_ONLY else "orthogonal"
    single, many = build(name, kind=kind), build(name, heads=3, kind=kind)
    torch.testing.assert_close(many.mse(X.unsqueeze(0), Y.unsqueeze(0)), single.mse(X, Y).expand(3, -1, -1))


@every_map
def test_gradients(name):
    phi = build(name)
    zero_or_not = slice(1 if name in JUMPS_AT_ZERO else 0, 3)
    x, y = X[zero_or_not].clone().requires_grad_(), Y[:2].clone().requires_grad_()
    assert torch.autograd.gradcheck(phi.estimate, (x, y))
    # Wide outputs are checked along random directions.
    check = functools.partial(torch.autograd.gradcheck, fast_mode=True)
    assert check(lambda u: (phi.queries(u), phi.keys(u)), (x,))
    assert check(lambda u: phi.scaled_queries(u).unscaled(), (x,))
    assert torch.autograd.gradgradcheck(phi.queries, (x,), fast_mode=True)


@every_map
def test_autocast_keeps_the_precision(name):
    phi, x, y = build(name).float(), X.float(), Y.float()
    plain = phi.queries(x), phi.scaled_keys(y).values, phi.estimate(x, y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = phi.queries(x), phi.scaled_keys(y).values, phi.estimate(x, y)
    for expected, received in zip(plain, inside, strict=True):
        assert torch.equal(expected, received)


@every_map
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
def test_transforms_of_torch_func(name):
    phi = build(name)
    x = Y.clone()  # signs of the zero vector jump
    torch.testing.assert_close(torch.func.vmap(phi.queries)(x.unsqueeze(1)).squeeze(1), phi.queries(x))
    _, tangent = torch.func.jvp(phi.queries, (x,), (torch.ones_like(x),))
    step = 1e-6
    difference = (phi.queries(x + step) - phi.queries(x - step)) / (2 * step)
    scale = difference.abs().max()
    assert (tangent - difference).abs().max() <= 1e-7 * scale  # third derivative · step², rounding / step


@every_map
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_finite_for_norms_from_0_to_100(name, dtype):
    phi = build(name).float()
    directions = torch.nn.functional.normalize(torch.cat([Y, -Y, Y.flip(-1)]).float(), dim=-1)
    for norm in (0.0, 1e-4, 1.0, 10.0, 100.0):
        u = (norm * directions).to(dtype)
        for features in (phi.scaled_queries(u), phi.scaled_keys(u)):
            assert features.values.dtype == features.log_scale.dtype == torch.float32
            assert features.values.isfinite().all()
            assert features.log_scale.isfinite().all()
            assert features.values.abs().amax(-1).gt(1e-6).all()  # nothing has vanished
        estimate = phi.estimate(u, u.flip(0))
        assert not estimate.isnan().any()
        assert estimate.isfinite().all() or norm > 5  # exp(xᵀy) itself leaves float32 beyond that


@every_map
def test_log_mse_is_a_number_for_norms_from_0_to_100(name):
    directions = torch.nn.functional.normalize(torch.cat([Y, -Y, Y.flip(-1)]), dim=-1)
    for kind in ("iid",) if name in IID_ONLY else ("iid", "orthogonal"):
        phi = build(name, kind=kind)
        for norm in (0.0, 1e-4, 1.0, 10.0, 100.0):
            log_mse = phi.log_mse(norm * directions, norm * directions)
            assert not log_mse.isnan().any()
            assert not log_mse.isposinf().any()  # −inf is where the estimate is exact
