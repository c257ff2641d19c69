"""Every map against its definition, and as a module: numbers, errors, gradients, ranges, heads, files and inputs."""

from __future__ import annotations

import copy
import functools
import math

import pytest
import torch
from torch import Tensor

import hrf
from features.direct import direct_estimate
from features.registry import BIASED, DIM, IID_ONLY, MAPS, X, Y, build
from hrf.features.base import FeatureMap, of_heads

every_map = pytest.mark.parametrize("name", MAPS)

EPS = torch.finfo(torch.float64).eps

DRAWS = 20_000
NORMS = (0.0, 1e-4, 1.0, 10.0, 100.0)
# One map per class and kind of matrix; tracing takes a second each.
COMPILED = [
    "exponential shifted complex",
    "favor# asymmetric",
    "nested",
    "three bases",
    "clustered moments",
    "clustered shrunk",
    "clustered with default",
    "gaussian kernel of angular",
    "centred positive",
]

# Sign bits and nearest centres are piecewise constant, with a jump at x = 0.
JUMPS_AT_ZERO = {
    name
    for name in MAPS
    if "angular" in name or "indicator" in name or name in ("nested", "three bases", "shared omega")
}


def _kernel(phi: hrf.FeatureMap) -> Tensor:
    return (hrf.kernels.softmax if phi.kernel == "softmax" else hrf.kernels.gaussian)(X, Y)


@every_map
def test_feature_form_equals_estimate_to_rounding(name):
    phi = build(name)
    q, k = phi.queries(X), phi.keys(Y)
    assert q.shape == (len(X), phi.feature_dim)
    # A dot product of D terms errs by at most D·eps·Σ|qᵢkᵢ|; each term carries a few roundings of its own.
    bound = (phi.feature_dim + 50) * EPS * (q.abs() @ k.abs().mT)
    assert ((q @ k.mT - phi.estimate(X, Y)).abs() <= bound).all()
    for plain, scaled in ((q, phi.scaled_queries(X)), (k, phi.scaled_keys(Y))):
        torch.testing.assert_close(scaled.unscaled(), plain, rtol=1e-13, atol=1e-15)


@every_map
def test_estimate_equals_the_definition(name):
    phi = build(name)
    expected = direct_estimate(phi, X, Y)
    assert ((phi.estimate(X, Y) - expected).abs() <= 1e-10 * expected.abs()).all()


@pytest.mark.stat
@every_map
@pytest.mark.parametrize("kind", ["iid", "orthogonal"])
def test_mean_and_mse_are_the_kernel_and_the_closed_form_within_five_standard_errors(name, kind):
    phi, single = build(name, heads=DRAWS, kind=kind, seed=1), build(name, kind=kind)
    estimates = phi.estimate(X.unsqueeze(0), Y.unsqueeze(0))
    kernel = _kernel(phi)
    assert phi.unbiased == (name not in BIASED)
    if phi.unbiased:
        # Points of zero variance leave rounding only.
        error = (estimates.mean(0) - kernel).abs()
        assert (error <= 5 * estimates.std(0) / math.sqrt(DRAWS) + 1e-13).all()
    if kind == "orthogonal" and name in IID_ONLY:
        with pytest.raises(NotImplementedError, match=type(phi).__name__):
            single.mse(X, Y)
        return
    squares = (estimates - kernel).square()
    error = (squares.mean(0) - single.mse(X, Y)).abs()
    assert (error <= 5 * squares.std(0) / math.sqrt(DRAWS) + 1e-13).all()


@every_map
def test_forms_of_the_error_agree_with_each_other_and_head_by_head(name):
    phi, many = build(name, kind="iid"), build(name, heads=3, kind="iid")
    mse = phi.mse(X, Y)
    assert mse.dtype == torch.float64
    torch.testing.assert_close(phi.log_mse(X, Y).exp(), mse)
    torch.testing.assert_close(phi.relative_error(X, Y), mse.sqrt() / _kernel(phi))
    torch.testing.assert_close(many.mse(X.unsqueeze(0), Y.unsqueeze(0)), mse.expand(3, -1, -1))


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
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own
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
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_finite_for_norms_from_0_to_100(name, dtype):
    phi = build(name).float()
    directions = torch.nn.functional.normalize(torch.cat([Y, -Y, Y.flip(-1)]).float(), dim=-1)
    for norm in NORMS:
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
    phi = build(name, kind="iid" if name in IID_ONLY else "orthogonal")
    for norm in NORMS:
        log_mse = phi.log_mse(norm * directions, norm * directions)
        assert not log_mse.isnan().any()
        assert not log_mse.isposinf().any()  # −inf is where the estimate is exact


# Maps as modules.


@every_map
def test_heads_are_maps_of_their_own(name):
    many, single = build(name, heads=3, seed=5), build(name)
    x = X.expand(2, 3, *X.shape) * torch.tensor([1.0, 0.5, -1.0], dtype=torch.float64)[:, None, None]
    together = many.queries(x), many.keys(x), many.estimate(x, x)
    for head in range(3):
        state = {k: v.unflatten(0, (3, -1))[head] for k, v in many.state_dict().items()}
        single.load_state_dict({k: v.view(single.state_dict()[k].shape) for k, v in state.items()})
        alone = single.queries(x[:, head]), single.keys(x[:, head]), single.estimate(x[:, head], x[:, head])
        for of_all, own in zip(together, alone, strict=True):
            torch.testing.assert_close(of_all[:, head], own)
    with pytest.raises(ValueError, match="2 heads, the map has 3"):
        many.queries(x[:, :2])


@every_map
def test_streamed_features_equal_whole_ones(name, monkeypatch):
    phi = build(name)
    x = torch.randn(2, 7, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole = phi.queries(x), phi.keys(x)
    monkeypatch.setattr(type(phi), "_block", 3 * phi.feature_dim)
    for streamed, expected in zip((phi.queries(x), phi.keys(x)), whole, strict=True):
        torch.testing.assert_close(streamed, expected, rtol=1e-13, atol=1e-15)


@every_map
def test_save_and_load(name, tmp_path):
    phi = build(name, seed=3)
    phi.save(tmp_path / "map.safetensors")
    state = torch.get_rng_state()
    copied = hrf.load(tmp_path / "map.safetensors")
    assert torch.equal(torch.get_rng_state(), state)
    assert type(copied) is type(phi)
    assert repr(copied) == repr(phi)
    assert torch.equal(copied.queries(X), phi.queries(X))
    assert torch.equal(copied.keys(Y), phi.keys(Y))
    copied.redraw_(torch.Generator().manual_seed(9))
    phi.redraw_(torch.Generator().manual_seed(9))
    assert torch.equal(copied.estimate(X, Y), phi.estimate(X, Y))  # shared projections are still shared


@every_map
def test_seeds_redraws_copies_and_state_dicts(name):
    phi = build(name)
    before, twin, state = phi.queries(X), copy.deepcopy(phi), copy.deepcopy(phi.state_dict())
    assert torch.equal(build(name).queries(X), before)
    phi.redraw_(torch.Generator().manual_seed(8))
    assert torch.equal(phi.queries(X), before) == (name == "clustered separable")  # nothing is random there
    assert torch.equal(twin.queries(X), before)
    phi.load_state_dict(state)
    assert torch.equal(phi.queries(X), before)


@every_map
def test_dtype_follows_inputs_and_map(name):
    phi = build(name)
    assert phi.queries(X.float()).dtype == torch.float64
    phi.to(torch.float32)
    assert phi.queries(X.float()).dtype == torch.float32
    assert phi.queries(X.half()).dtype == torch.float32
    assert phi.queries(X).dtype == torch.float64
    torch.testing.assert_close(phi.queries(X.float()).double(), phi.queries(X), rtol=1e-4, atol=1e-5)
    phi.to(torch.bfloat16)
    assert phi.queries(X.bfloat16()).dtype == torch.float32


@every_map
def test_empty_and_single_sequences(name):
    phi = build(name)
    assert phi.queries(X[:0]).shape == (0, phi.feature_dim)
    assert phi.scaled_keys(X[:0]).values.shape == (0, phi.feature_dim)
    assert phi.estimate(X[:0], Y).shape == (0, len(Y))
    assert build(name, kind="iid").mse(X, Y[:0]).shape == (len(X), 0)
    torch.testing.assert_close(phi.queries(X[1:2]), phi.queries(X)[1:2])


@pytest.mark.parametrize("name", COMPILED)
def test_compiles_in_one_graph(name):
    phi = build(name)
    for side in (phi.queries, phi.keys):
        compiled = torch.compile(side, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(X), side(X), rtol=1e-12, atol=1e-14)
    torch.compiler.reset()


BAD_INPUTS = {
    "last dimension 3, the map was built for dim=4": (ValueError, X[:, :3]),
    r"shape \(4,\); expected a shape \(..., L, 4\)": (ValueError, X[0]),
    "torch.int64; expected a real floating-point": (TypeError, X.long()),
    "torch.complex64; expected a real floating-point": (TypeError, X.to(torch.complex64)),
    "list; expected a real floating-point": (TypeError, X.tolist()),
    "4 values that are NaN": (ValueError, X.index_fill(0, torch.tensor([1]), torch.nan)),
    "4 values that are NaN or inf": (ValueError, X.index_fill(0, torch.tensor([1]), torch.inf)),
}


@every_map
def test_bad_input_is_refused_in_words(name):
    phi = build(name)
    for says, (error, given) in BAD_INPUTS.items():
        for call in (phi.queries, phi.scaled_keys, lambda u: phi.estimate(u, Y), lambda u: phi.log_mse(X, u)):
            with pytest.raises(error, match=says):
                call(given)


# A map restricted to part of its heads is a map.


SOME = slice(1, 3)


def _uneven(name: str) -> FeatureMap:
    """A map whose heads differ in everything."""
    phi = build(name, heads=4)
    for buffer in phi.buffers():
        if buffer.is_floating_point():
            factors = 1 + 0.1 * torch.arange(len(buffer), dtype=buffer.dtype) / len(buffer)
            buffer.mul_(factors.view(-1, *[1] * (buffer.ndim - 1)))
    return phi


@every_map
def test_part_of_the_heads_is_a_map_whose_buffers_are_views(name):
    phi = _uneven(name)
    x, y = (u.expand(4, -1, -1) for u in (X, Y))
    for chosen in (SOME, torch.tensor([2, 0, 2])):
        part = of_heads(phi, chosen)
        assert part.heads == len(x[chosen])
        assert torch.equal(part.estimate(x[chosen], y[chosen]), phi.estimate(x, y)[chosen])
    for mine, whole in zip(of_heads(phi, SOME).buffers(), phi.buffers(), strict=True):
        assert mine.data_ptr() == whole[len(whole) // 4 :].data_ptr()


def test_shared_projections_stay_shared():
    part = of_heads(build("angular hybrid", heads=4), SOME)
    assert part.bases[0].projection is part.bases[1].projection


def test_parameters_get_their_gradients():
    phi = build("positive", heads=4)
    omega = phi.projection.omega
    del phi.projection.omega
    phi.projection.omega = torch.nn.Parameter(omega)
    of_heads(phi, SOME).estimate(X[None], Y[None]).sum().backward()
    touched = phi.projection.omega.grad.flatten(1).any(1)
    assert touched.tolist() == [False, True, True, False]


def test_a_map_without_heads_or_for_all_of_them_is_its_own():
    for phi in (build("positive"), build("positive", heads=4)):
        assert of_heads(phi, slice(0, 4)) is phi
