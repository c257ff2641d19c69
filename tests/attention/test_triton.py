"""Triton's kernels against the float64 reference: in Triton's interpreter, or on the device of HRF_TEST_DEVICE.

A batch is some random cases of one seed. Blocks are as small as the kernels admit, so that tiny inputs have several.
"""

from __future__ import annotations

import os
from dataclasses import replace
from importlib import import_module
from random import Random
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import hrf
from hrf._attention import map_kernels, reference
from hrf._attention.carry import CompiledSteps

pytest.importorskip(
    "triton", reason="Triton is not installed: pip install triton, or a PyTorch for accelerators"
)
DEVICE = os.environ.get("HRF_TEST_DEVICE", "cpu")
interpreter = import_module("triton.runtime.interpreter")
maps = import_module("hrf._attention.triton.maps")
TritonMaps = maps.TritonMaps

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SMALL = 16  # tokens and projections per block
CASES, BATCHES = 8, 64  # 512 cases of every kernel and pass
BOTH = pytest.mark.parametrize("is_causal", [False, True])


called = set()
first_call = interpreter.InterpretedFunction.__call__


def call_inside(function, *args, **options):
    """Call a function inside a kernel, but patch Triton's language once: at each call it takes five times as long."""
    if function not in called:
        called.add(function)
        return first_call(function, *args, **options)
    return function.rewrite()(*args, **options)


@pytest.fixture(autouse=True)
def taken(monkeypatch):
    """Let kernels serve the device with small blocks, and record the passes that they served."""
    found = []

    def recorded(name, run):
        def method(self, *args, **options):
            found.append(name)
            return run(self, *args, **options)

        return method

    if DEVICE == "cpu":
        monkeypatch.setattr(interpreter.InterpretedFunction, "__call__", call_inside)
        builder = interpreter.interpreter_builder
        monkeypatch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
        monkeypatch.setattr(map_kernels, "ON_CPU", True)
        monkeypatch.setattr(CompiledSteps, "of", lambda *_: None)
        monkeypatch.setattr(maps, "PROGRAMS", 2)
        monkeypatch.setattr(maps, "PIECE", 10)
        chosen = maps.blocks_for
        small = dict.fromkeys(("T", "M", "few", "pulled"), SMALL)

        def blocks_for(dim, width, **kinds):
            return chosen(dim, width, **kinds)._replace(**small, SPAN=1 + dim % 2)

        monkeypatch.setattr(maps, "blocks_for", blocks_for)
    for name in ("bidirectional", "bidirectional_backward", "causal", "causal_backward", "step"):
        monkeypatch.setattr(TritonMaps, name, recorded(name, getattr(TritonMaps, name)))
    return found


def make_map(kind: str, dim: int, m: int, heads: int | None, random: Random) -> hrf.FeatureMap:
    seed, sizes = random.randrange(1 << 30), {"n_projections": m, "heads": heads}
    lead = () if heads is None else (heads,)
    draw = torch.Generator().manual_seed(seed)
    noise = lambda *shape: torch.randn(*lead, *shape, generator=draw)  # noqa: E731
    matrix = torch.eye(dim) + 0.2 * noise(dim, dim) / dim**0.5
    if kind in ("positive", "trigonometric"):
        return getattr(hrf, kind.title())(dim, **sizes, seed=seed)
    if kind in ("pairs", "single"):
        shifts = {"query_shift": 0.3 * noise(dim), "key_shift": 0.3 * noise(dim)}
        return hrf.Exponential(dim, **sizes, matrix=matrix, **shifts, antithetic=kind == "pairs", seed=seed)
    phi = {
        "FAVOR++": lambda: hrf.OptimalPositive(dim, **sizes, seed=seed),
        "FAVOR#": lambda: hrf.DenseExponential(dim, **sizes, seed=seed),
        "asymmetric": lambda: hrf.AsymmetricExponential(dim, **sizes, matrix=matrix, seed=seed),
    }[kind]()
    return phi.fit(noise(40, dim) / 2, noise(40, dim) / 2)


KINDS = ("positive", "trigonometric", "pairs", "single", "FAVOR++", "FAVOR#", "asymmetric")
LAYOUTS = (
    lambda u: u,
    lambda u: u.transpose(1, 2).contiguous().transpose(1, 2),
    lambda u: u.repeat_interleave(2, -1)[..., ::2],
    lambda u: torch.cat([u, u], 2)[:, :, : u.shape[2]],
)


class Case(NamedTuple):
    """A random call."""

    phi: hrf.FeatureMap
    tokens: list[Tensor]
    options: dict[str, object]
    norm: float


def tokens_of(random: Random, shapes: list[tuple[int, ...]], norm: float, dtype: torch.dtype) -> list[Tensor]:
    """Draw query, key and value; queries and keys have norms of up to ``norm``, some layout and a dtype."""
    draw = torch.Generator().manual_seed(random.randrange(1 << 30))
    found = [torch.randn(*shape, generator=draw, dtype=torch.float64) for shape in shapes]
    for i in (0, 1):
        sizes = norm * torch.rand(*shapes[i][:-1], 1, generator=draw, dtype=torch.float64)
        found[i] *= sizes / found[i].norm(dim=-1, keepdim=True).clamp(min=1e-9)
    layout = random.choice(LAYOUTS)
    return [layout(u.to(dtype)) for u in found]


def random_case(random: Random, *, is_causal: bool, shortest: int = 1, longest: int = 36) -> Case:
    """Draw a call; most have one row, and one or two blocks of tokens and of projections."""
    kind, norm, dim = (
        random.choice(KINDS),
        random.choice([0.0, 0.5, 1.0, 2.0]),
        random.choice([*range(1, 17), 17, 18]),
    )
    groups, key_heads, batch = (
        random.choice([1, 1, 1, 2, 3]),
        random.choice([1, 1, 1, 1, 2]),
        random.choice([1, 1, 1, 1, 2]),
    )
    length, keys = (random.randint(17, 36) if random.random() < 0.3 else random.randint(1, 16) for _ in "qk")
    length = min(max(length, shortest), longest, (36 if batch * key_heads == 1 else 20) // groups)
    heads, keys = groups * key_heads, length if is_causal else keys
    least = dim if kind in ("FAVOR++", "FAVOR#", "asymmetric") else 1
    m = random.randint(least, max(least, 16)) if random.random() < 0.8 else random.randint(17, 20)
    phi = make_map(kind, dim, m, random.choice([None, heads]), random)
    width = random.choice([random.randint(1, 16), random.randint(17, 20)])
    shapes = [(batch, heads, length, dim), (batch, key_heads, keys, dim), (batch, key_heads, keys, width)]
    tokens = tokens_of(random, shapes, norm, random.choice(DTYPES))
    options: dict[str, object] = {"scale": random.choice([1.0, 0.5]), "is_causal": is_causal}
    if random.random() < 0.4:
        options["key_padding_mask"] = (
            torch.rand(batch, keys, generator=torch.Generator().manual_seed(keys)) > 0.6
        )
    return Case(phi, tokens, options, norm)


def run(attend, phi, tokens, options) -> list[Tensor]:
    """Return outputs and gradients of tokens, on the CPU; `hrf.attention` runs on the device."""
    device = DEVICE if attend is hrf.attention else "cpu"
    options = {
        k: v.to(device) if isinstance(v, Tensor) and v.dtype == torch.bool else v for k, v in options.items()
    }
    phi, tokens = phi.to(device), [u.detach().to(device).requires_grad_() for u in tokens]
    out = attend(*tokens, phi, **options)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    weight = weight.bfloat16().to(out)  # the same for all dtypes
    if not out.requires_grad:  # the reference of keys that are all ignored
        return [out, *map(torch.zeros_like, tokens)]
    found = [out.detach(), *torch.autograd.grad(out, tokens, weight, materialize_grads=True)]
    return [u.cpu() for u in found]


def assert_near(received: list[Tensor], expected: list[Tensor], case: Case) -> None:
    """Float32 through sums, exponents and squares, 2^10 roundings; then one rounding to the dtype of the tokens."""
    largest = max(float(u.abs().max()) for u in expected)
    squares = 1 + 2 * case.norm**2
    for a, b in zip(received, expected, strict=True):
        assert a.isfinite().all()
        limits = torch.finfo(a.dtype)
        # Products of bfloat16 tokens are in TF32 on a GPU, but not in the interpreter.
        in_tf32 = DEVICE != "cpu" and a.dtype == torch.bfloat16
        rounding = limits.eps if in_tf32 else 2**10 * torch.finfo(torch.float32).eps
        bound = rounding * squares * max(1.0, largest)
        bound += limits.eps * b.abs() + limits.tiny
        worst = ((a.cpu().double() - b).abs() / bound).max()
        assert worst <= 1, (float(worst), case)


def check(case: Case, taken: list[str]) -> None:
    name = "causal" if case.options["is_causal"] else "bidirectional"
    expected = run(reference.attention, case.phi.double(), [u.double() for u in case.tokens], case.options)
    received = run(hrf.attention, case.phi.float(), case.tokens, case.options)
    assert taken == [name, f"{name}_backward"]
    taken.clear()
    assert_near(received, expected, case)


def batches(quick: int) -> pytest.MarkDecorator:
    """Parametrize a test by seeds, all but a few of them slow."""
    seeds = [pytest.param(n, marks=[pytest.mark.slow] * (n >= quick)) for n in range(BATCHES)]
    return pytest.mark.parametrize("seed", seeds)


@BOTH
@batches(2)
def test_random_cases(seed, is_causal, taken):
    random = Random(2 * seed + is_causal)
    for _ in range(CASES):
        check(random_case(random, is_causal=is_causal), taken)


@BOTH
@pytest.mark.parametrize(
    ("kind", "dim"), [("positive", 5), ("positive", 6), ("trigonometric", 5), ("single", 6)]
)
def test_scales_that_grow_over_several_blocks(kind, dim, is_causal, taken):
    """Sums fade when a later key or projection has a larger exponent: two blocks of projections, four of tokens."""
    random = Random(3)
    tokens = tokens_of(random, [(1, 2, 52, dim), (1, 1, 52, dim), (1, 1, 52, 5)], 1.0, torch.float32)
    for u, largest in zip(tokens, (1.5, 3.0), strict=False):
        u *= torch.linspace(0.2, largest, 52)[:, None] / u.norm(dim=-1, keepdim=True)
    options = {"is_causal": is_causal, "scale": 1.0}
    check(Case(make_map(kind, dim, 20, None, random), tokens, options, 3.0), taken)


def decode(case: Case, start: int) -> Tensor:
    """Attend to a prompt, then token by token."""
    length, mask = case.tokens[0].shape[2], case.options.get("key_padding_mask")
    state, pieces = hrf.AttentionState(case.phi.float().to(DEVICE), scale=case.options["scale"]), []
    for some in (slice(0, start), *(slice(i, i + 1) for i in range(start, length))):
        ignore = None if mask is None else mask[:, some].to(DEVICE)
        parts = [u[..., some, :].to(DEVICE) for u in case.tokens]
        pieces.append(state.prefill(*parts, key_padding_mask=ignore).cpu())
    return torch.cat(pieces, 2)


@batches(2)
def test_random_steps(seed, taken):
    random = Random(seed)
    for _ in range(CASES):
        case = random_case(random, is_causal=True, shortest=2, longest=9)
        length = case.tokens[0].shape[2]
        start = random.randint(max(1, length - 3), length - 1)
        exact = [u.double() for u in case.tokens]
        expected = reference.attention(*exact, case.phi.double(), **case.options)
        received = decode(case, start)
        assert taken == ["causal"] + ["step"] * (length - start)
        taken.clear()
        assert_near([received], [expected], case)


@pytest.mark.parametrize("kind", ["positive", "trigonometric"])
def test_many_queries_per_key(kind, taken):
    """More than a program of decoding takes: 40 heads share a key."""
    random = Random(0)
    tokens = tokens_of(random, [(1, 40, 3, 5), (1, 1, 3, 5), (1, 1, 3, 4)], 1.0, torch.float32)
    case = Case(make_map(kind, 5, 20, None, random), tokens, {"scale": 1.0, "is_causal": True}, 1.0)
    expected = reference.attention(*(u.double() for u in tokens), case.phi.double(), **case.options)
    assert_near([decode(case, 1)], [expected], case)
    assert taken == ["causal", "step", "step"]


@BOTH
@pytest.mark.parametrize("norm", [4.0, 10.0, 30.0, 100.0])
@pytest.mark.parametrize("kind", KINDS)
def test_any_norm_is_finite(norm, kind, is_causal, taken):
    """Beyond some norm float32 loses denominators to underflow; outputs stay averages of values."""
    random = Random(int(norm) + is_causal)
    phi = make_map(kind, 5, 20, None, random)
    tokens = tokens_of(random, [(1, 1, 35, 5)] * 3, norm, torch.float32)
    found = run(hrf.attention, phi.float(), tokens, {"is_causal": is_causal, "scale": 1.0})
    assert taken
    assert all(u.isfinite().all() for u in found)
    assert found[0].min() >= tokens[2].min() - 1e-5
    assert found[0].max() <= tokens[2].max() + 1e-5


@pytest.mark.parametrize("norm", [4.0, 100.0])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_of_any_norm_are_finite(norm, kind, taken):
    """The last token of all has the largest norm: the state has to fade."""
    random = Random(int(norm))
    tokens = tokens_of(random, [(1, 1, 4, 5)] * 3, norm, torch.float32)
    tokens[0][:, :, :3] *= 1e-2
    tokens[1][:, :, :3] *= 1e-2
    phi = make_map(kind, 5, 20, None, random)
    found = decode(Case(phi, tokens, {"scale": 1.0, "is_causal": True}, norm), 1)
    assert taken == ["causal", "step", "step", "step"]
    assert found.isfinite().all()
    assert found.min() >= tokens[2].min() - 1e-5
    assert found.max() <= tokens[2].max() + 1e-5


@BOTH
def test_denominators_have_their_log_scales(is_causal, monkeypatch):
    """The rule for small denominators reads both."""
    random, found = Random(1), []
    q, k, v = tokens_of(random, [(1, 2, 36, 5)] * 3, 2.0, torch.float32)
    phi, name = make_map("positive", 5, 20, None, random), "causal" if is_causal else "bidirectional"
    run_pass = getattr(TritonMaps, name)

    def kept(self, *args, **options):
        found.append(run_pass(self, *args, **options))
        return found[-1]

    monkeypatch.setattr(TritonMaps, name, kept)
    tokens = [u.to(DEVICE) for u in (q, k, v)]
    hrf.attention(*tokens, phi.float().to(DEVICE), is_causal=is_causal, scale=1.0)
    outputs, kernel = found[0][0], phi.double().cpu().estimate(q.double(), k.double())[0]
    expected = (kernel.tril() if is_causal else kernel).sum(-1, keepdim=True).log()
    received = outputs.used.cpu().double().log() + outputs.log_scale.cpu()
    assert (received - expected).abs().max() < 2**10 * torch.finfo(torch.float32).eps


@BOTH
def test_small_denominators_of_any_scale(is_causal, taken):
    """Which denominators are too small depends on their log scales: as PyTorch's operations say in float64."""
    random = Random(1)
    tokens = tokens_of(random, [(1, 2, 36, 5)] * 3, 4.0, torch.float32)
    phi, found = make_map("trigonometric", 5, 4, None, random), []
    for own, dtype in ((phi.float(), torch.float32), (phi.double(), torch.float64)):
        rule = hrf.Denominator()
        q, k, v = (u.to(DEVICE, dtype) for u in tokens)
        hrf.attention(q, k, v, own.to(DEVICE, dtype), is_causal=is_causal, denominator=rule)
        found.append(rule.clamped)
    assert taken
    assert found[0] == found[1]
    assert 0 < found[1] < 72


@BOTH
def test_packed_sequences(is_causal, taken):
    random, starts = Random(0), torch.tensor([0, 3, 3, 25, 40])
    phi = make_map("pairs", 5, 20, None, random)
    tokens = tokens_of(random, [(1, 2, 40, 5)] * 3, 1.0, torch.float32)
    options = {"is_causal": is_causal, "cu_seqlens": starts}
    expected = run(reference.attention, phi.double(), [u.double() for u in tokens], options)
    received = run(hrf.attention, phi.float(), tokens, options)
    assert taken
    assert_near(received, expected, Case(phi, tokens, options, 1.0))


def test_later_tokens_change_nothing():
    phi = make_map("positive", 5, 20, None, Random(0)).to(DEVICE)
    q, k, v = torch.randn(3, 1, 1, 40, 5, device=DEVICE)
    expected = hrf.attention(q, k, v, phi, is_causal=True)
    for u, size in ((q, 1), (k, 30), (v, 1e6)):
        u[..., 20:, :] *= size
    received = hrf.attention(q, k, v, phi, is_causal=True)
    assert torch.equal(received[..., :20, :], expected[..., :20, :])
    assert not torch.equal(received[..., 20:, :], expected[..., 20:, :])


@BOTH
def test_ignored_keys_need_not_be_finite(is_causal):
    phi, (q, k, v) = make_map("positive", 5, 20, None, Random(0)), torch.randn(3, 2, 1, 40, 5)
    ignore = torch.zeros(2, 40, dtype=torch.bool)
    ignore[0, :17] = ignore[1, 20] = True
    options = {"is_causal": is_causal, "key_padding_mask": ignore}
    expected = run(hrf.attention, phi, [q, k, v], options)
    nans = [u.masked_fill(ignore[:, None, :, None], torch.nan) for u in (k, v)]
    assert all(map(torch.equal, run(hrf.attention, phi, [q, *nans], options), expected))


@pytest.mark.parametrize(
    ("phi", "tokens"),
    [
        (hrf.AngularHybrid(4, n_projections=4, n_coefficient_projections=2), torch.randn(3, 1, 1, 9, 4)),
        (hrf.Exponential(4, n_projections=4, matrix=1 + 0.5j * torch.ones(4)), torch.randn(3, 1, 1, 9, 4)),
        (hrf.Positive(4, n_projections=4), torch.randn(3, 1, 1, 9, 4, dtype=torch.float64)),
        (hrf.Positive(300, n_projections=4), torch.randn(3, 1, 1, 9, 300) / 20),
        (hrf.Positive(4, n_projections=4), torch.randn(3, 1, 1, 0, 4)),
    ],
)
@BOTH
@pytest.mark.filterwarnings("ignore:.*norms")
def test_other_calls_take_the_operations_of_pytorch(phi, tokens, is_causal, taken):
    hrf.attention(*tokens, phi, is_causal=is_causal)
    assert not taken


def test_learned_maps_take_the_operations_of_pytorch(taken):
    phi = hrf.Positive(4, n_projections=4)
    phi.projection.omega.requires_grad_()
    hrf.attention(*torch.randn(3, 1, 1, 9, 4), phi).sum().backward()
    assert phi.projection.omega.grad.isfinite().all()
    assert not taken


def test_tokens_of_a_cpu_never_take_the_kernels(monkeypatch, taken):
    monkeypatch.setattr(map_kernels, "ON_CPU", False)
    hrf.attention(*torch.randn(3, 1, 1, 9, 4), hrf.Positive(4, n_projections=4), is_causal=True)
    assert not taken
