"""Any norm, any map: outputs lie in the box of the values a row sees, and everything is finite."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Generator, Tensor
from torch.nn import functional as F

import hrf
from hrf._attention import reference
from properties.strategies import HALF, Call, calls, cases, either, gradients, seeds

WIDE = {
    "positive": hrf.Positive,
    "trigonometric": hrf.Trigonometric,
    "dense": hrf.DenseExponential,
    "angular": partial(hrf.AngularHybrid, n_coefficient_projections=8),
}

any_norm = st.sampled_from([0.0, 1.0, 3.0, 10.0, 30.0, 50.0, 100.0, 1e4])


def assert_in_the_box(call: Call, out: Tensor, v: Tensor) -> None:
    """A row without keys is 0; averages round once per key."""
    assert out.isfinite().all()
    if not call.keys:
        assert not out.any()
        return
    each = v.detach().double().repeat_interleave(call.groups, -3).unsqueeze(-3)
    hidden = ~call.visible().unsqueeze(-1)
    low, high = each.masked_fill(hidden, torch.inf).amin(-2), each.masked_fill(hidden, -torch.inf).amax(-2)
    blind = hidden.all(-2)
    low, high = low.masked_fill(blind, 0), high.masked_fill(blind, 0)
    eps = torch.finfo(torch.float32 if call.dtype in HALF else call.dtype).eps
    slack = (64 + 4 * call.keys) * eps + (torch.finfo(call.dtype).eps if call.dtype in HALF else 0)
    limit = slack * 2  # no value is longer than 2
    assert (out >= low - limit).all()
    assert (out <= high + limit).all()


def outputs_with_finite_gradients(attend: Callable[..., Tensor], call: Call, tensors: list[Tensor]) -> Tensor:
    """Attend; a gradient is finite, or too large for its dtype: that of the same numbers in float32 is finite."""
    wide = [t.detach().to(torch.promote_types(t.dtype, torch.float32)).requires_grad_() for t in tensors]
    with call.surroundings():
        out = attend(*tensors)
        found, expected = gradients(out, tensors), gradients(attend(*wide), wide)
    for gradient, larger in zip(found, expected, strict=True):
        assert larger.isfinite().all()
        # Outputs and their gradients are rounded on the way, so that a number near the limit may pass it.
        assert (gradient.isfinite() | (larger.abs() > 0.9 * torch.finfo(gradient.dtype).max)).all()
    return out


# Key heads that two query heads share: gradients of either overflow float16, their sum does not.
SHARED_KEYS = Call(
    name="indicator",
    kind="iid",
    map_has_heads=True,
    batch=(2,),
    key_heads=2,
    groups=2,
    length=38,
    keys=67,
    width=1,
    is_causal=False,
    padding=0.9,
    cuts=None,
    dtype=torch.float16,
    norm=1e4,
    small_blocks=False,
    compiled=False,
    seed=0,
)


@given(calls(norms=any_norm), st.sampled_from([hrf.attention, reference.attention]))
@example(SHARED_KEYS, hrf.attention)
@cases(8)
def test_outputs_are_in_the_box_and_gradients_finite(call, attend):
    phi, tensors = call.feature_map(), call.tensors()
    out = outputs_with_finite_gradients(lambda *t: attend(*t, phi, **call.options()), call, tensors)
    assert_in_the_box(call, out, tensors[2])


@given(calls(norms=any_norm, causal=st.just(True), packed=False), st.lists(st.integers(0, 150), max_size=3))
@cases(4)
def test_decoding_stays_in_the_box(call, cuts):
    phi, tensors, ignored = call.feature_map(), call.tensors(), call.ignored()
    bounds = [0, *sorted(min(cut, call.length) for cut in cuts), call.length]

    def decode(*tensors: Tensor) -> Tensor:
        state, pieces = hrf.AttentionState(phi, scale=1.0), []
        for start, stop in itertools.pairwise(bounds):
            padding = None if ignored is None else ignored[..., start:stop]
            pieces.append(state.prefill(*(t[..., start:stop, :] for t in tensors), key_padding_mask=padding))
        return torch.cat(pieces, -2)

    out = outputs_with_finite_gradients(decode, call, tensors)
    assert_in_the_box(call, out, tensors[2])


@given(
    st.sampled_from(sorted(WIDE)),
    st.sampled_from([8, 64]),
    st.sampled_from([16, 128]),
    st.sampled_from([1, 2, 64]),
    st.sampled_from([3.0, 10.0, 30.0, 50.0, 100.0]),
    either,
    seeds,
)
@cases(1)
def test_values_of_one_come_back_from_wide_maps(name, dim, width, length, norm, is_causal, seed):
    """In many dimensions denominators underflow gradually, where few dimensions go from normal to zero at once."""
    generator = Generator().manual_seed(seed)
    phi = WIDE[name](dim, n_projections=width, generator=generator)
    q, k = (
        (norm * F.normalize(torch.randn(1, 4, length, dim, generator=generator), dim=-1)).requires_grad_()
        for _ in range(2)
    )
    if name == "dense":
        phi = phi.fit(q.detach().flatten(0, 2), k.detach().flatten(0, 2))
    out = hrf.attention(q, k, torch.ones(1, 4, length, 1), phi, scale=1.0, is_causal=is_causal)
    torch.testing.assert_close(out, torch.ones_like(out), rtol=0, atol=64 * (1 + length) * 2**-23)
    for gradient in gradients(out * torch.rand(out.shape, generator=generator), [q, k]):
        assert gradient.isfinite().all()
