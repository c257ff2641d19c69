"""Triton's kernels against the float64 reference: in Triton's interpreter, or on the device of HRF_TEST_DEVICE.

A batch is some random cases of one seed. Blocks are as small as the kernels admit, so that tiny inputs have several.
"""

from __future__ import annotations

import os
from random import Random
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import hrf
from hrf._attention import map_kernels, reference
from hrf._attention.denominator import Denominator

pytest.importorskip("triton", reason="Triton is not installed: pip install triton, or a PyTorch for accelerators")
DEVICE = os.environ.get("HRF_TEST_DEVICE", "cpu")
maps = pytest.importorskip("hrf._attention.triton.maps")
Blocks, TritonMaps = maps.Blocks, maps.TritonMaps

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SMALL = 16  # tokens and projections per block
CASES, BATCHES = 8, 64
FINITE = (10.0, 30.0, 100.0)  # norms at which float32 loses denominators, and outputs have to be finite


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
        monkeypatch.setattr(map_kernels, "ON_CPU", True)
        monkeypatch.setattr(maps, "PROGRAMS", 8)
        small = lambda d, v: Blocks(SMALL, SMALL, *(max(16, 1 << (n - 1).bit_length()) for n in (d, v)), 4, 1)  # noqa: E731
        monkeypatch.setattr(maps, "blocks_for", small)
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


def random_case(random: Random, *, is_causal: bool, norms: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0)) -> Case:
    kind, norm, dim = random.choice(KINDS), random.choice(norms), random.randint(1, 20)
    groups, key_heads, batch = random.choice([1, 1, 2, 3]), random.randint(1, 2), random.randint(1, 2)
    heads, length = groups * key_heads, random.randint(1, 36)
    keys = length if is_causal else random.randint(1, 36)
    least = dim if kind in ("FAVOR++", "FAVOR#", "asymmetric") else 1
    phi = make_map(kind, dim, random.randint(least, least + 20), random.choice([None, heads]), random)
    shapes = [(batch, heads, length, dim), (batch, key_heads, keys, dim), (batch, key_heads, keys)]
    shapes[2] += (random.randint(1, 20),)
    tokens = tokens_of(random, shapes, norm, random.choice(DTYPES))
    options: dict[str, object] = {"scale": random.choice([1.0, 0.5]), "is_causal": is_causal}
    if random.random() < 0.4:
        options["key_padding_mask"] = torch.rand(batch, keys, generator=torch.Generator().manual_seed(keys)) > 0.6
    return Case(phi, tokens, options, norm)


def run(attend, phi, tokens, options) -> list[Tensor]:
    """Return outputs and gradients of tokens."""
    tokens = [u.detach().requires_grad_() for u in tokens]
    out = attend(*tokens, phi, **options)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    weight = weight.bfloat16().to(out)  # the same for all dtypes
    if not out.requires_grad:  # the reference of keys that are all ignored
        return [out, *map(torch.zeros_like, tokens)]
    return [out.detach(), *torch.autograd.grad(out, tokens, weight, materialize_grads=True)]


def moved(case: Case) -> Case:
    options = {k: v.to(DEVICE) if isinstance(v, Tensor) else v for k, v in case.options.items()}
    return case._replace(phi=case.phi.to(DEVICE), tokens=[u.to(DEVICE) for u in case.tokens], options=options)


def assert_near(received: list[Tensor], expected: list[Tensor], case: Case) -> None:
    """Float32 through sums, exponents and squares, 2^10 roundings; then one rounding to the dtype of the tokens."""
    largest = max(float(u.abs().max()) for u in expected)
    squares = 1 + 2 * case.norm**2
    for a, b in zip(received, expected, strict=True):
        assert a.isfinite().all()
        limits = torch.finfo(a.dtype)
        bound = 2**10 * torch.finfo(torch.float32).eps * squares * max(1.0, largest)
        bound += limits.eps * b.abs() + limits.tiny
        worst = ((a.cpu().double() - b).abs() / bound).max()
        assert worst <= 1, (float(worst), case)


def check(case: Case, taken: list[str]) -> None:
    name = "causal" if case.options["is_causal"] else "bidirectional"
    expected = run(
        reference.attention, case.phi.double(), [u.double() for u in case.tokens], case.options
    )
    on_device = moved(case._replace(phi=case.phi.float()))
    received = run(hrf.attention, on_device.phi, on_device.tokens, on_device.options)
    assert taken == [name, f"{name}_backward"]
    taken.clear()
    assert_near(received, expected, case)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=[pytest.mark.slow] * (n >= 6)) for n in range(BATCHES)]
)
def test_random_cases(seed, is_causal, taken):
    random = Random(2 * seed + is_causal)
    for _ in range(CASES):
        check(random_case(random, is_causal=is_causal), taken)
