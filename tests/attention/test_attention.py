"""Attention in linear time is the quadratic twin: outputs, gradients, counts, and decoding, for every map."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from torch import nn

import hrf
from attention.data import assert_equals_reference, assert_same, inputs, padding
from features.registry import DIM, MAPS, PARTLY_EXACT, build
from hrf import tuning
from hrf._attention import reference
from properties.strategies import SMALL_BLOCKS

every_map = pytest.mark.parametrize("name", MAPS | PARTLY_EXACT)
both_ways = pytest.mark.parametrize("is_causal", [False, True], ids=["bidirectional", "causal"])
one_or_each = pytest.mark.parametrize("heads", [None, 4], ids=["one map", "map per head"])
# One map per engine: positive, dense, angular, clustered, clustered by pair, exact pairs.
ENGINES = ["positive", "trigonometric", "angular hybrid", "clustered shifted", "clustered paper"]
every_engine = pytest.mark.parametrize("name", [*ENGINES, "partly exact with default"])


@pytest.fixture(autouse=True)
def small_blocks():
    """Several blocks, chunks, parts of the rows and spans of a row, the last not full."""
    with patch.multiple(tuning, **SMALL_BLOCKS):
        yield


IGNORED = padding(3, 9)
IGNORED[2] = True  # nothing to see at all
BOUNDS = torch.tensor([0, 3, 3, 5, 11, 12], dtype=torch.int32)  # sequences of lengths 3, 0, 2, 6 and 1
# Heads of the map, shapes of the inputs and options: every pair of kinds of call at least once.
CALLS = {
    "one map": (None, (2,), {}, {}),
    "causal, map per head": (4, (2,), {}, {"is_causal": True}),
    "cross": (None, (), {"length": 3, "keys": 11}, {}),
    "grouped, map per head": (4, (2,), {"key_heads": 2}, {}),
    "grouped, padded": (None, (3,), {"key_heads": 2}, {"key_padding_mask": IGNORED}),
    "causal, grouped, padded": (
        None, (3,), {"key_heads": 2}, {"is_causal": True, "key_padding_mask": IGNORED},
    ),
    "packed": (None, (1,), {"key_heads": 2, "length": 12}, {"cu_seqlens": BOUNDS}),
    "packed, causal, grouped, padded": (
        None,
        (1,),
        {"key_heads": 2, "length": 12},
        {"is_causal": True, "cu_seqlens": BOUNDS, "key_padding_mask": padding(1, 12)},
    ),
}  # fmt: skip


@every_map
@pytest.mark.parametrize("call", CALLS)
def test_equals_reference(name, call):
    heads, batch, shapes, options = CALLS[call]
    assert_equals_reference(*inputs(*batch, **shapes), build(name, heads=heads), **options)


@both_ways
def test_scale_and_batch_axes(is_causal):
    q, k, v = inputs(2, 3, heads=2)
    phi = build("positive")
    assert_equals_reference(q, k, v, phi, is_causal=is_causal, scale=1.7)
    alone = hrf.attention(q[1, 2], k[1, 2], v[1, 2], phi, is_causal=is_causal)
    torch.testing.assert_close(hrf.attention(q, k, v, phi, is_causal=is_causal)[1, 2], alone)


@pytest.mark.parametrize("name", ["trigonometric", "partly exact moments"])
@both_ways
def test_where_denominators_are_clamped(name, is_causal):
    q, k, v = inputs(2)
    assert_equals_reference(q, k, v, build(name), is_causal=is_causal, scale=9.0)
    rule = hrf.Denominator()
    hrf.attention(q, k, v, build(name), is_causal=is_causal, scale=9.0, denominator=rule)
    assert 0 < rule.clamped < rule.rows


@every_map
def test_a_later_or_ignored_key_changes_nothing(name):
    q, k, v = (t.detach() for t in inputs(2))
    phi, ignore, position = build(name), padding(2, 9), 5
    before = hrf.attention(q, k, v, phi, is_causal=True)
    changed = [t.clone() for t in (k, v)]
    for t in changed:
        t[..., position:, :] *= 30
    after = hrf.attention(q, *changed, phi, is_causal=True)
    # Exponents may be shifted otherwise: rounding is all that differs.
    torch.testing.assert_close(after[..., :position, :], before[..., :position, :], rtol=1e-12, atol=1e-13)
    assert not torch.equal(after[..., position:, :], before[..., position:, :])
    garbage = [t.masked_fill(ignore[:, None, :, None], torch.nan) for t in (k, v)]
    for is_causal in (False, True):
        options = {"is_causal": is_causal, "key_padding_mask": ignore}
        assert torch.equal(hrf.attention(q, *garbage, phi, **options), hrf.attention(q, k, v, phi, **options))


@every_map
def test_order_of_keys_does_not_matter(name):
    q, k, v = (t.detach() for t in inputs(2))
    phi, order = build(name), torch.randperm(9, generator=torch.Generator().manual_seed(0))
    expected = hrf.attention(q, k, v, phi)
    received = hrf.attention(q, k[..., order, :], v[..., order, :], phi)
    assert (received - expected).abs().max() <= 1e-8 * expected.abs().max()


@every_engine
@both_ways
def test_empty_sequences_batches_and_values(name, is_causal):
    phi, (q, k, v) = build(name), inputs(2)
    assert not hrf.attention(q[..., :0, :], k[..., :0, :], v[..., :0, :], phi, is_causal=is_causal).numel()
    assert hrf.attention(q, k, v.detach()[..., :0], phi, is_causal=is_causal).shape == (2, 4, 9, 0)
    if not is_causal:
        out = hrf.attention(q, k[..., :0, :], v[..., :0, :], phi)
        assert (out == 0).all()
    empty = [t[:0].detach().requires_grad_() for t in (q, k, v)]
    hrf.attention(*empty, phi, is_causal=is_causal).sum().backward()
    assert empty[0].grad.shape == (0, 4, 9, DIM)


class Learned(hrf.FeatureMap):
    """Positive features of Ax with a learned A."""

    nonnegative = True

    def __init__(self) -> None:
        super().__init__()
        self.inner = build("positive")
        self.weight = nn.Parameter(torch.eye(DIM, dtype=torch.float64) * 0.8)
        self.dim, self.heads, self.feature_dim = DIM, None, self.inner.feature_dim

    def scaled(self, x, side):
        return self.inner.scaled(x @ self.weight, side)


@both_ways
def test_learnable_parameters_of_a_map_get_gradients(is_causal):
    q, k, v = inputs(2, key_heads=2)
    phi = Learned()
    received = hrf.attention(q, k, v, phi, is_causal=is_causal)
    expected = reference.attention(q, k, v, phi, is_causal=is_causal)
    assert_same(received, expected, [q, k, v, phi.weight])


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("angular hybrid", ["bases.0.projection.omega"]),
        ("angular hybrid independent", ["bases.0.projection.omega", "bases.1.projection.omega"]),
        ("clustered paper", ["feature_map.projection.omega"]),
        ("clustered shrunk", ["query_centers", "key_centers", "shrinkage", "feature_map.projection.omega"]),
    ],
)
@one_or_each
def test_learned_parts_of_structured_maps_get_gradients(name, parts, heads):
    q, k, v = inputs(2)
    phi = build(name, heads=heads)
    learned = [phi.get_buffer(part).requires_grad_() for part in parts]
    received, expected = (attend(q, k, v, phi) for attend in (hrf.attention, reference.attention))
    assert_same(received, expected, [q, k, v, *learned])


def test_gradients_of_some_inputs_only():
    q, k, v = inputs(2)
    phi = build("angular hybrid")
    expected = torch.autograd.grad(hrf.attention(q, k, v, phi).sum(), [k, v])
    alone = torch.autograd.grad(hrf.attention(q.detach(), k, v, phi).sum(), [k, v])
    torch.testing.assert_close(alone, expected)


def _clustered(**arguments) -> hrf.ClusteredHybrid:
    q, k, _ = (t.detach() for t in inputs(heads=1, length=60))
    return hrf.ClusteredHybrid.fit(q[0], k[0], n_clusters=(3, 3), n_projections=8, **arguments).double()


@pytest.mark.parametrize("arguments", [{"exact_share": 0.3}, {"recenter": True}], ids=["exact", "recenter"])
def test_maps_without_features_are_served_and_maps_of_them_refused(arguments):
    phi = _clustered(**arguments)
    wrapped = hrf.GaussianKernel(phi)
    assert not phi.factorised
    assert not wrapped.factorised
    assert_equals_reference(*inputs(2, key_heads=2), phi)
    assert_equals_reference(*inputs(2, length=5, keys=9), phi, key_padding_mask=padding(2, 9))
    for is_causal in (False, True):
        with pytest.raises(NotImplementedError, match="GaussianKernel is made of maps without"):
            hrf.attention(*inputs(2), wrapped, is_causal=is_causal)
    with pytest.raises(NotImplementedError, match="GaussianKernel is made of maps without"):
        hrf.AttentionState(wrapped)


@pytest.mark.parametrize("exact_share", [0.0, 0.3])
def test_centres_stay_where_they_are_in_causal_attention(exact_share):
    phi = _clustered(recenter=True, exact_share=exact_share)
    q, k, v = inputs(2)
    fixed = hrf.attention(q, k, v, phi, is_causal=True)
    assert phi.recenter
    phi.recenter = False
    assert torch.equal(fixed, hrf.attention(q, k, v, phi, is_causal=True))


# Attention inside a larger program: compiler, redraws, autocast, transforms.


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler's own, where it hands over
@pytest.mark.parametrize(
    ("name", "is_causal", "backend"), [("positive", True, "aot_eager"), ("angular hybrid", False, "eager")]
)
def test_compiled_code_gives_the_same(name, is_causal, backend):
    q, k, v = inputs(2)
    phi = build(name)

    def attend(q, k, v):
        return hrf.attention(2 * q, k, v, phi, is_causal=is_causal) + 1

    assert_same(torch.compile(attend, backend=backend)(q, k, v), attend(q, k, v), [q, k, v])
    torch.compiler.reset()


@pytest.mark.slow
@both_ways
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
def test_whole_graphs_for_replays(is_causal):
    """What is recorded to be replayed without Python: one graph, with attention in it, and no break."""
    q, k, v = inputs(2)
    phi = build("positive")

    def attend(q, k, v):
        return hrf.attention(2 * q, k, v, phi, is_causal=is_causal) + 1

    compiled = torch.compile(attend, fullgraph=True, mode="reduce-overhead")
    torch.testing.assert_close(compiled(q, k, v), attend(q, k, v))
    torch.compiler.reset()


@every_engine
@both_ways
def test_a_redraw_before_the_backward_pass_does_no_harm(name, is_causal):
    """Where it computes the features again, with another ω the gradients would be wrong: it refuses."""
    phi, (q, k, v) = build(name), inputs()
    outputs = [hrf.attention(q, k, v, phi, is_causal=is_causal) for _ in range(2)]
    (expected,) = torch.autograd.grad(outputs[0].sum(), q)
    phi.redraw_()
    try:
        (received,) = torch.autograd.grad(outputs[1].sum(), q)
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)  # noqa: PT017
    else:
        assert torch.equal(received, expected)


@both_ways
@pytest.mark.parametrize("name", ["trigonometric", "angular hybrid"])
def test_a_step_of_an_optimiser_before_the_backward_pass_is_refused(name, is_causal):
    phi, (q, k, v) = build(name), inputs()
    omega = next(phi.all_projections())
    omega.omega.requires_grad_()
    out = hrf.attention(q, k, v, phi, is_causal=is_causal)
    with torch.no_grad():
        omega.omega.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@every_engine
@both_ways
def test_autocast_reaches_neither_pass(name, is_causal):
    phi = build(name).float()
    tensors = [t.detach().float().requires_grad_() for t in inputs(2)]
    outputs = [hrf.attention(*tensors, phi, is_causal=is_causal) for _ in range(2)]
    expected = torch.autograd.grad(outputs[0].sum(), tensors)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(hrf.attention(*tensors, phi, is_causal=is_causal), outputs[0])
        received = torch.autograd.grad(outputs[1], tensors, torch.ones_like(outputs[1]))
    for mine, theirs in zip(received, expected, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("name", ["positive", "angular hybrid", "clustered shifted"])
def test_inside_a_transform_results_are_right_or_refused(name):
    """Attention on constants while torch.func differentiates something else."""
    (q, k, v), phi, received = (t.detach() for t in inputs(2)), build(name), []
    expected = hrf.attention(q, k, v, phi)
    try:
        torch.func.grad(lambda x: received.append(hrf.attention(q, k, v, phi)) or x.sum())(torch.ones(2))
    except (NotImplementedError, RuntimeError):
        return
    torch.testing.assert_close(received[0], expected)


# Decoding: any way to cut a sequence gives the outputs of the whole.


def _cut(tensors, start, stop):
    return [t[..., start:stop, :] for t in tensors]


@every_map
def test_prefill_and_steps_are_causal_attention(name):
    qkv = inputs(2, key_heads=2)
    phi = build(name)
    state = hrf.AttentionState(phi)
    outputs = [state.prefill(*_cut(qkv, 0, 5))]
    before = {k: t.shape for k, t in state.tensors().items()}
    for i in range(5, 9):
        outputs.append(state.step(*(t[..., i, :] for t in qkv)).unsqueeze(-2))
    grown = {k for k, t in state.tensors().items() if t.shape != before[k]}
    assert grown == ({"key", "value", "label"} if name in PARTLY_EXACT else set())
    assert_same(torch.cat(outputs, -2), hrf.attention(*qkv, phi, is_causal=True), qkv)


@every_engine
def test_steps_without_gradients_are_causal_attention_and_count_alike(name):
    phi, whole, pieces = build(name), hrf.Denominator(), hrf.Denominator()
    qkv = [3 * t.detach() for t in inputs(2, length=10)]
    expected = hrf.attention(*qkv, phi, is_causal=True, scale=1.0, denominator=whole)
    state = hrf.AttentionState(phi, scale=1.0, denominator=pieces)
    received = [state.prefill(*_cut(qkv, 0, 6))]
    received += [state.step(*(t[..., i, :] for t in qkv)).unsqueeze(-2) for i in range(6, 10)]
    torch.testing.assert_close(torch.cat(received, -2), expected)
    assert (whole.clamped, whole.clipped) == (pieces.clamped, pieces.clipped)


@every_engine
@pytest.mark.parametrize("cut", [0, 1, 4, 6, 9])
def test_split_anywhere_and_resume(name, cut):
    qkv = inputs(2)
    phi, ignore = build(name, heads=4), padding(2, 9)
    counts = hrf.Denominator(), hrf.Denominator()
    state = hrf.AttentionState(phi, scale=0.9, denominator=counts[0])
    first = state.prefill(*_cut(qkv, 0, cut), key_padding_mask=ignore[:, :cut])
    resumed = hrf.AttentionState(phi, scale=0.9, denominator=counts[0]).load(state.tensors())
    second = resumed.prefill(*_cut(qkv, cut, 9), key_padding_mask=ignore[:, cut:])
    options = {"is_causal": True, "key_padding_mask": ignore, "scale": 0.9}
    whole = hrf.attention(*qkv, phi, denominator=counts[1], **options)
    assert_same(torch.cat([first, second], -2), whole, qkv)
    assert (counts[0].clamped, counts[0].clipped) == (counts[1].clamped, counts[1].clipped)


@pytest.mark.parametrize("name", ["trigonometric", "partly exact with default"])
def test_a_state_can_be_saved_moved_detached_and_reordered(name, tmp_path):
    qkv = inputs(3)
    phi = build(name)
    state = hrf.AttentionState(phi)
    state.prefill(*_cut(qkv, 0, 6))
    rest = [t.detach() for t in _cut(qkv, 6, 9)]
    state = state.detach()
    assert not any(t.requires_grad for t in state.tensors().values())

    torch.save(state.tensors(), tmp_path / "state.pt")
    loaded = hrf.AttentionState(phi).load(torch.load(tmp_path / "state.pt", weights_only=True))
    half = state.to(torch.float32)
    assert {t.dtype for k, t in half.tensors().items() if k != "label"} == {torch.float32}
    order = torch.tensor([2, 0, 0])
    beams = state.reorder(order)

    expected = hrf.attention(*qkv, phi, is_causal=True).detach()[..., 6:, :]
    torch.testing.assert_close(loaded.prefill(*rest), expected)
    torch.testing.assert_close(beams.prefill(*(t[order] for t in rest)), expected[order])
    # Rounding of the state to float32, times what the sums cancel: at most some tens here.
    torch.testing.assert_close(half.prefill(*rest), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["positive", "partly exact separable"])
def test_a_state_owns_its_tensors_and_keeps_autocast_out(name):
    phi, qkv = build(name).float(), [t.detach().float() for t in inputs(2)]
    states = [hrf.AttentionState(phi) for _ in range(2)]
    expected = [states[0].prefill(*_cut(qkv, *piece)) for piece in ((0, 6), (6, 9))]
    prompt = [t.clone() for t in _cut(qkv, 0, 6)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        received = [states[1].prefill(*prompt)]
        for t in prompt:
            t.zero_()
        received.append(states[1].prefill(*_cut(qkv, 6, 9)))
    assert torch.equal(torch.cat(received, -2), torch.cat(expected, -2))


def test_tokens_and_tensors_that_do_not_fit_the_state_are_refused():
    state = hrf.AttentionState(build("positive"))
    state.prefill(*inputs(2))
    with pytest.raises(ValueError, match=r"value width \(3, 4, 3\), the state has \(2, 4, 3\)"):
        state.prefill(*inputs(3))
    with pytest.raises(ValueError, match="expected state, scale, moments, total, low and high, or none"):
        state.load({"state": torch.zeros(1)})
    with pytest.raises(ValueError, match="low, high, key, value and label, or none"):
        hrf.AttentionState(build("partly exact separable")).load(state.tensors())
    with pytest.raises(TypeError, match=r"^feature_map is 'positive'; expected a FeatureMap"):
        hrf.AttentionState("positive")
