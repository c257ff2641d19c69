"""Attention over ranks against `hrf.attention` over all tokens: errors of outputs and of gradients, case by case."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, distributed

import hrf
import hrf.distributed
from attention.data import inputs, padding, random
from features.registry import DIM, MAPS, Builder

LENGTH = 13


def shares(size: int, length: int = LENGTH) -> dict[str, list[int]]:
    """Lengths of the parts of all ranks: even, uneven, and with an empty part first and, if there are more, last."""
    even = [length // size + (rank < length % size) for rank in range(size)]
    uneven = [length - 2 * (size - 1), *[2] * (size - 1)]
    empty = [0, *uneven[1:-1], length - 2 * max(0, size - 2)] if size > 1 else [length]
    return {"even": even, "uneven": uneven, "empty": empty}


def part(sizes: list[int]) -> slice:
    rank = distributed.get_rank()
    return slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))


def error(received: Tensor, expected: Tensor) -> float:
    """Largest error."""
    assert received.shape == expected.shape
    assert received.isfinite().all()
    return float((received - expected).detach().abs().max()) if expected.numel() else 0.0


def largest(*tensors: Tensor) -> float:
    return max(float(t.detach().abs().max()) for t in tensors)


def compare(
    tokens: list[Tensor],
    phi: hrf.FeatureMap,
    sizes: list[int],
    key_sizes: list[int] | None = None,
    mask: Tensor | None = None,
    **options: Any,
) -> float:
    """Return the largest error of this rank's outputs and gradients, relative to the largest of all ranks."""
    rows, keys = part(sizes), part(key_sizes or sizes)
    whole = hrf.attention(*tokens, phi, key_padding_mask=mask, **options)
    own = [
        t[..., some, :].detach().requires_grad_() for t, some in zip(tokens, (rows, keys, keys), strict=True)
    ]
    own_mask = None if mask is None else mask[..., keys]
    received = hrf.distributed.attention(*own, phi, key_padding_mask=own_mask, **options)
    weights = random(*whole.shape, seed=9)
    grads = torch.autograd.grad((whole * weights).sum(), tokens)
    mine = torch.autograd.grad((received * weights[..., rows, :]).sum(), own)
    errors = [error(received, whole[..., rows, :]) / largest(whole)]
    for one, every, some in zip(mine, grads, (rows, keys, keys), strict=True):
        errors.append(error(one, every[..., some, :]) / largest(*grads))
    return max(errors)


FAMILIES = ["positive", "trigonometric", "favor#", "angular hybrid", "gaussian hybrid"]
FAMILIES += [f"clustered {base}" for base in ("paper", "shifted", "shrunk", "separable")]


def every_case(names: list[str], options: bool = True) -> dict[str, float]:
    """Errors of this rank by case: every kind of shares, causal or not in turn; with options, both."""
    size, found = distributed.get_world_size(), {}
    for i, name in enumerate(names):
        heads = (None, 4)[i % 2]
        phi = MAPS[name](Builder(heads, "orthogonal", 0)).double()
        for j, (share, sizes) in enumerate(shares(size).items()):
            for causal in (False, True) if options else (bool((i + j) % 2),):
                label = f"{name}, heads={heads}, causal={causal}, {share}"
                found[label] = compare(inputs(2, length=LENGTH), phi, sizes, is_causal=causal)
    return found | with_options(size) | learned_and_moving() if options else found


def learned_and_moving() -> dict[str, float]:
    """Gradients of ω, whose shares ranks add up, and moving centres, which stay where they are if causal."""
    size, found = distributed.get_world_size(), {}
    rows = part(shares(size)["uneven"])
    for name in ("trigonometric", "positive", "angular hybrid", "clustered shifted"):
        for causal in (False, True):
            phi = MAPS[name](Builder(4, "orthogonal", 0)).double()
            omega = next(phi.all_projections()).omega.requires_grad_()
            tokens = [t.detach() for t in inputs(2, length=LENGTH)]
            whole = hrf.attention(*tokens, phi, is_causal=causal).square().sum()
            (expected,) = torch.autograd.grad(whole, omega)
            out = hrf.distributed.attention(*(t[..., rows, :] for t in tokens), phi, is_causal=causal)
            (share,) = torch.autograd.grad(out.square().sum(), omega)
            distributed.all_reduce(share)
            found[f"{name}, causal={causal}, ω"] = error(share, expected) / largest(expected)
    moving = Builder(None, "orthogonal", 0).clustered("shifted", recenter=True).double()
    found["moving centres"] = compare(inputs(2, length=LENGTH), moving, shares(size)["even"], is_causal=True)
    return found


def packings(size: int) -> list[list[int]]:
    """Starts of sequences: one over all ranks, short ones with an empty one, a long one, borders between ranks only."""
    borders = [0, *accumulate(shares(size)["empty"])]
    return [[0, LENGTH], [0, 3, 3, 6, 7, 11, LENGTH], [0, 1, 12, LENGTH], borders]


def with_options(size: int) -> dict[str, float]:
    found, sizes = {}, shares(size)
    for name in ("trigonometric", "positive", "clustered shifted"):
        phi = MAPS[name](Builder(None, "orthogonal", 1)).double()
        for causal in (False, True):
            tokens, long, options = inputs(2, length=LENGTH), inputs(2, length=LENGTH), {"is_causal": causal}
            with torch.no_grad():
                long[0] *= 6
                long[1] *= 6
            grouped, one = inputs(2, key_heads=2, length=LENGTH), inputs(1, length=1)
            calls = {
                "padding": compare(tokens, phi, sizes["uneven"], mask=padding(2, LENGTH), **options),
                "grouped queries": compare(grouped, phi, sizes["even"], scale=0.7, **options),
                "long vectors": compare(long, phi, sizes["even"], **options),
                "one token": compare(one, phi, shares(size, 1)["even"], **options),
            }
            grouped, options["mask"] = inputs(1, key_heads=2, length=LENGTH), padding(1, LENGTH)
            for starts in packings(size):
                options["cu_seqlens"] = torch.tensor(starts)
                share = "uneven" if len(starts) > 4 else "empty"
                calls[f"packed {starts}, {share}"] = compare(grouped, phi, sizes[share], **options)
            found |= {f"{name}, causal={causal}, {call}": value for call, value in calls.items()}
        other = inputs(2, length=LENGTH, keys=17)
        found[f"{name}, other keys"] = compare(other, phi, sizes["even"], shares(size, 17)["uneven"])
    return found


def bytes_moved() -> dict[str, tuple[Any, Any, int]]:
    """Traffic of this rank at 1,024 and at 65,536 tokens, with the bytes of one state, by case."""
    found = {}
    for name, causal in (("positive", False), ("positive", True), ("trigonometric", False), ("packed", True)):
        phi = MAPS["positive" if name == "packed" else name](Builder(None, "orthogonal", 0))
        moved = []
        for length in (1024, 65536):
            rows = part(shares(distributed.get_world_size(), length)["even"])
            # A tensor of its own: gradients of an expanded one would be as long as the whole.
            tokens = [torch.zeros(1, 1, rows.stop - rows.start, DIM, requires_grad=True) for _ in range(3)]
            starts = torch.arange(0, length + 1, length // 4) if name == "packed" else None
            with hrf.distributed.traffic() as count, hrf.distributed.traffic() as same:
                out = hrf.distributed.attention(*tokens, phi.float(), is_causal=causal, cu_seqlens=starts)
                out.sum().backward()
            assert count == same
            moved.append(count)
        found[f"{name}, causal={causal}"] = *moved, 4 * phi.feature_dim * (DIM + 1)
    return found


def without_gradients_on_a_rank() -> dict[str, float]:
    """Gradients of the first rank, where the other has none to compute."""
    phi, rank = MAPS["positive"](Builder(None, "orthogonal", 0)).double(), distributed.get_rank()
    found = {}
    for causal in (False, True):
        tokens = inputs(1, length=4)
        own = [t[..., 2 * rank : 2 * rank + 2, :].detach().requires_grad_(rank == 0) for t in tokens]
        out = hrf.distributed.attention(*own, phi, is_causal=causal)
        out.sum().backward()
        whole = torch.autograd.grad(hrf.attention(*tokens, phi, is_causal=causal).sum(), tokens)
        if rank:
            assert all(t.grad is None for t in own)
        else:
            found |= {
                f"{i}, {causal}": error(t.grad, all_[..., :2, :]) / largest(*whole)
                for i, (t, all_) in enumerate(zip(own, whole, strict=True))
            }
    return found or {"nothing to compare": 0.0}
