"""Attention with maps by the core: outputs, states and gradients are those of the twin in PyTorch's operations."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
import torch

import hrf
from hrf import _core as core
from hrf import tuning
from hrf._attention import carry
from hrf._attention.call import runner
from hrf._attention.compiled_maps import CompiledMaps
from hrf._attention.denominator import Denominator
from hrf._attention.dispatch import engine_for
from hrf._attention.inputs import check

DIM, WIDTH, HEADS = 6, 5, 4
CHUNK = 64  # of affine_features.h
DTYPES = [torch.float32, torch.float64]
BOTH = pytest.mark.parametrize("is_causal", [False, True])

pytestmark = pytest.mark.skipif(core.instructions() is None, reason="there is no core")


def random(*shape, seed=3):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def matrix(heads):
    return torch.eye(DIM) + 0.2 * random(*(() if heads is None else (heads,)), DIM, DIM).float()


def exponential(heads, **options):
    shape = () if heads is None else (heads,)
    a, b = 0.3 * random(2, *shape, DIM).float()
    return hrf.Exponential(
        DIM, n_projections=7, matrix=matrix(heads), query_shift=a, key_shift=b, heads=heads, seed=0, **options
    )


def fitted(phi):
    return phi.fit(random(HEADS, 50, DIM, seed=1).float(), random(HEADS, 50, DIM, seed=2).float())


MAPS = {
    "positive": lambda heads: hrf.Positive(DIM, n_projections=7, heads=heads, seed=0),
    "matrix and shifts": exponential,
    "single": lambda heads: exponential(heads, antithetic=False),
    "optimal": lambda heads: fitted(hrf.OptimalPositive(DIM, n_projections=16, heads=heads, seed=0)),
    "dense": lambda heads: fitted(hrf.DenseExponential(DIM, n_projections=7, heads=heads, seed=0)),
    "asymmetric": lambda heads: fitted(
        hrf.AsymmetricExponential(DIM, n_projections=7, matrix=matrix(heads), heads=heads, seed=0)
    ),
    "trigonometric": lambda heads: hrf.Trigonometric(DIM, n_projections=64, heads=heads, seed=0),
}


@pytest.fixture
def twin(monkeypatch):
    """Call a function without the core."""

    def call(function, *args, **options):
        with monkeypatch.context() as patch:
            patch.setattr(CompiledMaps, "of", lambda *_: None)
            return function(*args, **options)

    return call


@pytest.fixture
def taken(monkeypatch):
    """Record whether the core served, per forward pass."""
    found = []

    def record(forward):
        def recorded(self, *args, **options):
            out = forward(self, *args, **options)
            found.append(out is not None)
            return out

        return recorded

    for name in ("causal", "bidirectional"):
        monkeypatch.setattr(CompiledMaps, name, record(getattr(CompiledMaps, name)))
    return found


def tokens(length, *, key_heads=HEADS, dtype=torch.float64, size=0.7, batch=2):
    q, k = size * random(2, batch, HEADS, length, DIM)
    return [u.to(dtype) for u in (q, k[:, :key_heads], random(batch, key_heads, length, WIDTH, seed=4))]


def padding(length):
    """Padding on the left, in between, and of a whole chunk."""
    ignore = torch.zeros(2, length, dtype=torch.bool)
    ignore[0, : length // 2 + CHUNK // 3] = ignore[1, 1:3] = True
    return ignore


def with_gradients(qkv, phi, *, is_causal=True, **options):
    """Return outputs and the gradients of query, key and value."""
    qkv = [u.detach().requires_grad_() for u in qkv]
    out = hrf.attention(*qkv, phi, is_causal=is_causal, **options)
    return [out.detach(), *torch.autograd.grad(out, qkv, random(*out.shape, seed=5).to(out.dtype))]


def assert_near(received, expected, qkv, bits=10):
    """Bits are for roundings of logarithms, exponents and sums, as often as squared norms and numbers of keys count."""
    assert [(u.shape, u.dtype) for u in received] == [(u.shape, u.dtype) for u in expected]
    pairs = [(a, b) for a, b in zip(received, expected, strict=True) if a.numel()]
    squares = [1.0, *(float(u.square().sum(-1).max()) for u in qkv[:2] if u.numel())]
    scale = max([1.0, *(float(b.abs().max()) for _, b in pairs)])
    for a, b in pairs:
        assert (a - b).abs().max() <= 2**bits * torch.finfo(qkv[0].dtype).eps * scale * sum(squares)


# Half of all calls: every combination of any four of these.
CALLS = [
    (heads, key_heads, dtype, padded, is_causal)
    for heads, key_heads, dtype, padded in product((None, HEADS), (2, HEADS), DTYPES, (False, True))
    for is_causal in [(heads is None) ^ (key_heads == 2) ^ (dtype == torch.float32) ^ padded]
]


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize(("heads", "key_heads", "dtype", "padded", "is_causal"), CALLS)
def test_outputs_and_gradients(name, heads, key_heads, dtype, padded, is_causal, twin, taken):
    phi, qkv = MAPS[name](heads).to(dtype), tokens(150, key_heads=key_heads, dtype=dtype)
    counts = hrf.Denominator(), hrf.Denominator()
    options = {"key_padding_mask": padding(150) if padded else None, "scale": 0.7, "is_causal": is_causal}
    expected = twin(with_gradients, qkv, phi, **options, denominator=counts[0])
    assert not taken
    assert_near(with_gradients(qkv, phi, **options, denominator=counts[1]), expected, qkv)
    assert taken == [True]
    assert [(c.rows, c.clamped) for c in counts[:1]] == [(c.rows, c.clamped) for c in counts[1:]]


@pytest.mark.parametrize("length", [0, 1, 15, 17, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 1000])
@pytest.mark.parametrize("name", ["positive", "trigonometric"])
@pytest.mark.parametrize("dtype", DTYPES)
@BOTH
def test_any_length(length, name, dtype, is_causal, twin, taken):
    phi, qkv, options = MAPS[name](None).to(dtype), tokens(length, dtype=dtype), {"is_causal": is_causal}
    assert_near(with_gradients(qkv, phi, **options), twin(with_gradients, qkv, phi, **options), qkv)
    assert taken == [True] * (length > 0)


@pytest.mark.parametrize("queries", [0, 1, 70, 400])
@pytest.mark.parametrize("keys", [1, 70, 400])
@pytest.mark.parametrize("part", [1, 64, 100, 1000])
def test_other_lengths_in_parts(queries, keys, part, twin, taken, monkeypatch):
    """Parts may have no tokens, and parts of other keys may be ignored as a whole."""
    monkeypatch.setattr(tuning, "TASK_TOKENS", part)
    monkeypatch.setattr(tuning, "TASKS_PER_THREAD", 100)
    phi, options = MAPS["matrix and shifts"](None).double(), {"is_causal": False}
    qkv = [tokens(queries)[0], *tokens(keys)[1:]]
    options["key_padding_mask"] = padding(keys) if keys > 1 else None
    assert_near(with_gradients(qkv, phi, **options), twin(with_gradients, qkv, phi, **options), qkv)
    assert taken == [True]


def test_one_head_in_parts(threads, twin, taken, monkeypatch):
    monkeypatch.setattr(tuning, "TASK_TOKENS", 70)
    phi, qkv = MAPS["positive"](None).double(), [random(1, 1, 500, DIM, seed=n) for n in range(3)]
    options = {"is_causal": False}
    assert_near(with_gradients(qkv, phi, **options), twin(with_gradients, qkv, phi, **options), qkv)
    assert taken == [True]


@pytest.mark.parametrize("dim", [1, 3, 16, 33])
@pytest.mark.parametrize("width", [1, 16, 33])
@BOTH
def test_any_width(dim, width, is_causal, twin, taken):
    phi = hrf.Exponential(dim, n_projections=19, key_shift=torch.ones(dim), seed=0).double()
    qkv, options = [random(1, 3, 70, n, seed=n) for n in (dim, dim, width)], {"is_causal": is_causal}
    assert_near(with_gradients(qkv, phi, **options), twin(with_gradients, qkv, phi, **options), qkv)
    assert taken == [True]


@pytest.mark.parametrize("key_heads", [2, HEADS])
@pytest.mark.parametrize(
    "laid_out",
    [
        lambda u: u.transpose(1, 2).contiguous().transpose(1, 2),
        lambda u: u.transpose(0, 2).contiguous().transpose(0, 2),
        lambda u: u.repeat_interleave(2, -1)[..., ::2],
    ],
)
@BOTH
def test_any_layout(key_heads, laid_out, is_causal, taken):
    phi, qkv = MAPS["positive"](None), tokens(100, key_heads=key_heads, dtype=torch.float32)
    other = [laid_out(u) for u in qkv]
    assert not any(u.is_contiguous() for u in other)
    received, expected = (with_gradients(u, phi, is_causal=is_causal) for u in (other, qkv))
    assert all(map(torch.equal, received, expected))
    assert taken == [True, True]


@pytest.mark.parametrize("name", MAPS)
@BOTH
def test_every_instruction_set(name, is_causal, instructions, twin, taken):
    phi, qkv, options = MAPS[name](HEADS).float(), tokens(150, dtype=torch.float32), {"is_causal": is_causal}
    assert_near(with_gradients(qkv, phi, **options), twin(with_gradients, qkv, phi, **options), qkv)
    assert taken == [True]


def test_any_number_of_threads(threads, twin, taken):
    phi, qkv = MAPS["matrix and shifts"](HEADS).double(), tokens(150, batch=3)
    assert_near(with_gradients(qkv, phi), twin(with_gradients, qkv, phi), qkv)
    assert taken == [True]


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", [0.0, 1.0, 10.0, 100.0])
@BOTH
def test_any_norm(name, dtype, norm, is_causal, twin, taken):
    """Keys grow and shrink over time, so that scales jump; denominators may be lost to underflow, not to overflow."""
    phi, qkv = MAPS[name](None).to(dtype), tokens(150, dtype=dtype, size=1)
    sizes = norm * (1 + torch.arange(150, dtype=dtype).mul(0.3).sin()).view(-1, 1) / 2
    qkv[0], qkv[1] = (sizes * u / u.norm(dim=-1, keepdim=True) for u in qkv[:2])
    received, expected = (
        run(qkv, phi, scale=1.0, is_causal=is_causal)
        for run in (with_gradients, lambda *a, **o: twin(with_gradients, *a, **o))
    )
    assert all(u.isfinite().all() for u in received)
    assert taken == [True]
    if norm <= 10 and name != "trigonometric":  # whose denominators cancel
        assert_near(received, expected, qkv)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("place", [1, CHUNK - 2, CHUNK, 100])
def test_later_tokens_change_nothing(name, place, taken):
    phi, qkv = MAPS[name](None), tokens(150, dtype=torch.float32)
    expected = hrf.attention(*qkv, phi, is_causal=True)
    for u, size in zip(qkv, (1, 30, 1e6), strict=True):
        u[..., place:, :] = size * random(*u[..., place:, :].shape, seed=8)
    received = hrf.attention(*qkv, phi, is_causal=True)
    assert torch.equal(received[..., :place, :], expected[..., :place, :])
    assert not torch.equal(received[..., place:, :], expected[..., place:, :])
    assert taken == [True, True]


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_states_and_their_gradients(name, dtype, twin, taken):
    """From a state, and to one: what the path returns, and the gradients of its tensors."""
    phi, qkv, ignore = MAPS[name](None).to(dtype), tokens(200, dtype=dtype), padding(200)
    ignore[0, :20] = False  # every state has keys
    engine, rule = engine_for(phi), Denominator()

    def run():
        parts = [
            check(*(u[..., some, :] for u in qkv), phi, key_padding_mask=ignore[:, some], paired=True)
            for some in (slice(0, 70), slice(70, 200))
        ]
        call, tensors = engine.causal.prepare(parts[0], phi, rule)
        found = runner(engine.causal, call, tensors)()
        state = carry.Carry.of_sums((found[1], found[2], call.moments[:, :, -1:], *found[3:]))
        call, tensors = engine.causal.prepare(parts[1], phi, rule, state)
        tensors = [None if u is None else u.detach().requires_grad_(i < 4) for i, u in enumerate(tensors)]
        found = runner(engine.causal, call, tensors)()
        wanted, top = [random(*u.shape, seed=6).to(u.dtype) for u in found[:2]], found[2]
        loss = (found[0] * wanted[0]).sum() + (found[1] * top.exp() * wanted[1]).sum()
        gradients = torch.autograd.grad(loss, tensors[:4])
        sums = found[1].detach() * top.exp(), gradients[3] * (-tensors[4]).exp()
        return [found[0].detach(), sums[0], *gradients[:3], sums[1], *found[3:]]

    expected = twin(run)
    assert not taken
    assert_near(run(), expected, qkv)
    assert taken == [True, True]


def test_pieces_are_the_whole(taken):
    phi, qkv = MAPS["positive"](HEADS).double(), tokens(200)
    state, ends = hrf.AttentionState(phi), [0, 3, 4, 80, 144, 200]
    pieces = [state.prefill(*(u[..., a:b, :] for u in qkv)) for a, b in pairwise(ends)]
    expected = hrf.attention(*qkv, phi, is_causal=True)
    assert_near([torch.cat(pieces, -2)], [expected], qkv)
    assert taken == [True] * 5


@pytest.mark.parametrize("rule", ["none", "clamp", "raise"])
@BOTH
def test_rules_and_rows_without_keys(rule, is_causal, twin, taken):
    phi, qkv, ignore = MAPS["positive"](None), tokens(100, dtype=torch.float32), padding(100)
    ignore[0] |= not is_causal
    options = {"key_padding_mask": ignore, "denominator": rule, "is_causal": is_causal}
    received = with_gradients(qkv, phi, **options)
    assert not received[0][0, :, : 50 + CHUNK // 3].any()
    assert_near(received, twin(with_gradients, qkv, phi, **options), qkv)
    assert taken == [True]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@BOTH
def test_half_precision(dtype, is_causal, twin, taken):
    phi, qkv, options = MAPS["positive"](None), tokens(100, dtype=dtype), {"is_causal": is_causal}
    received, expected = with_gradients(qkv, phi, **options), twin(with_gradients, qkv, phi, **options)
    assert taken == [True]
    assert_near(received, expected, [u.to(dtype) for u in qkv], bits=2)


@pytest.mark.parametrize("which", ["query", "key"])
@BOTH
def test_tokens_that_are_not_finite_are_refused(which, is_causal, taken):
    phi, qkv = MAPS["matrix and shifts"](None), tokens(100, dtype=torch.float32)
    qkv[which == "key"][0, 0, 70, 0] = torch.nan
    with pytest.raises(ValueError, match="1 value that is NaN or infinite"):
        hrf.attention(*qkv, phi, is_causal=is_causal)
    assert taken == [False]


@BOTH
def test_ignored_tokens_need_not_be_finite(is_causal, taken):
    phi, qkv, ignore = MAPS["positive"](None).double(), tokens(100), padding(100)
    options = {"key_padding_mask": ignore, "is_causal": is_causal}
    expected = with_gradients(qkv, phi, **options)
    for u in qkv[1:]:
        u.masked_fill_(ignore[:, None, :, None], torch.nan)
    assert all(map(torch.equal, with_gradients(qkv, phi, **options), expected))
    assert taken == [True, True]


@BOTH
def test_angles_out_of_range_and_learned_maps_are_left_to_the_twin(is_causal, twin, taken):
    phi, qkv = MAPS["trigonometric"](None), tokens(70, dtype=torch.float32, size=1)
    qkv[1][0, 0, 66] *= 1e4
    options = {"is_causal": is_causal}
    assert all(
        map(torch.equal, with_gradients(qkv, phi, **options), twin(with_gradients, qkv, phi, **options))
    )
    assert taken == [False]
    phi = MAPS["positive"](None)
    phi.projection.omega.requires_grad_()
    hrf.attention(*qkv, phi, **options).sum().backward()
    assert phi.projection.omega.grad.isfinite().all()
    assert taken == [False]
