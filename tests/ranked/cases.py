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
    own = [t[..., some, :].detach().requires_grad_() for t, some in zip(tokens, (rows, keys, keys), strict=True)]
    own_mask = None if mask is None else mask[..., keys]
    received = hrf.distributed.attention(*own, phi, key_padding_mask=own_mask, **options)
    weights = random(*whole.shape, seed=9)
    grads = torch.autograd.grad((whole * weights).sum(), tokens)
    mine = torch.autograd.grad((received * weights[..., rows, :]).sum(), own)
    errors = [error(received, whole[..., rows, :]) / largest(whole)]
    for one, every, some in zip(mine, grads, (rows, keys, keys), strict=True):
        errors.append(error(one, every[..., some, :]) / largest(*grads))
    return max(errors)


FAMILIES = [
    "positive",
    "trigonometric",
    "favor#",
    "angular hybrid",
    "gaussian hybrid",
    "clustered paper",
    "clustered shifted",
    "clustered shrunk",
    "clustered separable",
]


def every_case(names: list[str]) -> dict[str, float]:
    """Errors of this rank by case."""
    size, found = distributed.get_world_size(), {}
    for name in names:
        for heads in (None, 4):
            phi = MAPS[name](Builder(heads, "orthogonal", 0)).double()
            for causal in (False, True):
                for share, sizes in shares(size).items():
                    label = f"{name}, heads={heads}, causal={causal}, {share}"
                    found[label] = compare(inputs(2, length=LENGTH), phi, sizes, is_causal=causal)
    found |= with_options(size)
    return found


def packings(size: int) -> dict[str, list[int]]:
    """Starts of sequences: one over all ranks, many short ones with an empty one, and borders between ranks only."""
    borders = [0, *accumulate(shares(size)["empty"])]
    return {"one": [0, LENGTH], "short": [0, 3, 3, 6, 7, 11, LENGTH], "long": [0, 1, 12, LENGTH], "fitting": borders}


def with_options(size: int) -> dict[str, float]:
    found = {}
    for name in ("trigonometric", "positive", "clustered shifted"):
        phi = MAPS[name](Builder(None, "orthogonal", 1)).double()
        sizes = shares(size)
        for causal in (False, True):
            label = f"{name}, causal={causal}"
            mask = padding(2, LENGTH)
            found[f"{label}, padding"] = compare(
                inputs(2, length=LENGTH), phi, sizes["uneven"], mask=mask, is_causal=causal
            )
            found[f"{label}, grouped queries"] = compare(
                inputs(2, key_heads=2, length=LENGTH), phi, sizes["even"], is_causal=causal, scale=0.7
            )
            long = inputs(2, length=LENGTH)
            with torch.no_grad():
                long[0] *= 6
                long[1] *= 6
            found[f"{label}, long vectors"] = compare(long, phi, sizes["even"], is_causal=causal)
            found[f"{label}, one token"] = compare(
                inputs(1, length=1), phi, shares(size, 1)["even"], is_causal=causal
            )
            for packing, starts in packings(size).items():
                found[f"{label}, packed {packing}"] = compare(
                    inputs(1, key_heads=2, length=LENGTH),
                    phi,
                    sizes["uneven" if packing == "short" else "empty"],
                    mask=padding(1, LENGTH),
                    is_causal=causal,
                    cu_seqlens=torch.tensor(starts),
                )
        found[f"{name}, other keys"] = compare(
            inputs(2, length=LENGTH, keys=17), phi, sizes["even"], shares(size, 17)["uneven"]
        )
    return found
