"""Layers, meshes and redraws over ranks."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import hrf
import hrf.distributed
from attention.data import random
from ranked.cases import error, part, shares
from ranked.processes import texts

LENGTH, WIDTH = 11, 16


def layer(seed: int = 0, **options: Any) -> hrf.nn.MultiheadAttention:
    torch.manual_seed(0)
    return hrf.nn.MultiheadAttention(WIDTH, 4, batch_first=True, seed=seed, dtype=torch.float64, **options)


def in_training(causal: bool, ddp: bool, mesh: bool = False) -> dict[str, float]:
    """Errors of outputs and of gradients of parameters against one layer with all tokens."""
    size = distributed.get_world_size()
    group: Any = distributed.init_device_mesh("cpu", (size,)) if mesh else distributed.group.WORLD
    # With DistributedDataParallel each rank may draw its own map: that of the first is sent to all.
    ranked = layer(distributed.get_rank() if ddp else 0, sequence_group=group)
    model: Any = DistributedDataParallel(ranked) if ddp else copy.deepcopy(ranked)
    x, weights = random(2, LENGTH, WIDTH), random(2, LENGTH, WIDTH, seed=1)
    rows = part(shares(size, LENGTH)["uneven"])
    mask = random(2, LENGTH, seed=2) > 0.7
    own = x[:, rows]
    out, _ = model(own, own, own, key_padding_mask=mask[:, rows], is_causal=causal)
    # DistributedDataParallel divides sums of gradients by the number of ranks.
    ((out * weights[:, rows]).sum() * (size if ddp else 1)).backward()
    single = layer()
    whole, _ = single(x, x, x, key_padding_mask=mask, is_causal=causal)
    (whole * weights).sum().backward()
    found = {"outputs": error(out, whole[:, rows])}
    for (name, mine), theirs in zip(model.named_parameters(), single.parameters(), strict=True):
        total = mine.grad if ddp else summed(mine.grad)
        found[name] = error(total, theirs.grad)
    return found


def fully_sharded() -> dict[str, float]:
    """Errors of an encoder layer with parameters sharded over ranks (FSDP2), and a batch item per rank."""
    size, rank = distributed.get_world_size(), distributed.get_rank()
    torch.manual_seed(0)
    single = hrf.nn.TransformerEncoderLayer(
        WIDTH, 4, 24, dropout=0.0, batch_first=True, feature_map="angular", seed=0, dtype=torch.float64
    )
    sharded = copy.deepcopy(single)
    fully_shard(sharded, mesh=distributed.init_device_mesh("cpu", (size,)))
    x, weights = random(size, LENGTH, WIDTH), random(size, LENGTH, WIDTH, seed=1)
    own = slice(rank, rank + 1)
    out, whole = sharded(x[own]), single(x)
    (out * weights[own]).sum().mul(size).backward()  # gradients are averaged over ranks
    (whole * weights).sum().backward()
    found = {"outputs": error(out, whole[own])}
    for (name, mine), theirs in zip(sharded.named_parameters(), single.parameters(), strict=True):
        found[name] = error(mine.grad.full_tensor(), theirs.grad)
    return found


def summed(tensor: Tensor) -> Tensor:
    distributed.all_reduce(tensor)
    return tensor


def every_layer() -> dict[str, float]:
    found = {}
    for causal in (False, True):
        for ddp in (False, True):
            for name, value in in_training(causal, ddp, mesh=causal).items():
                found[f"causal={causal}, ddp={ddp}: {name}"] = value
    return found


def redraws() -> list[list[float]]:
    """ω after a redraw with the own seed of each rank, one from the global generator, and one inside a layer."""
    rank, phi = distributed.get_rank(), hrf.Positive(4, n_projections=2, seed=0)
    found = [phi.projection.omega.flatten().tolist()]
    hrf.distributed.redraw_(phi, seed=5 + rank)
    found.append(phi.projection.omega.flatten().tolist())
    torch.manual_seed(rank)
    hrf.distributed.redraw_(phi)
    found.append(phi.projection.omega.flatten().tolist())
    trained = layer(sequence_group=distributed.group.WORLD, redraw_every=1)
    x = random(1, 2, WIDTH)
    for _ in range(2):
        torch.manual_seed(rank)
        trained(x, x, x)
    found.append(next(trained.feature_map.all_projections()).omega.flatten().tolist())
    return found


def refusals() -> dict[str, str]:
    """What layers and groups refuse."""
    x, mask = random(1, 2, WIDTH), torch.ones(2, 2, dtype=torch.bool).triu(1)
    ranked = layer(sequence_group=distributed.group.WORLD)
    size = distributed.get_world_size()
    first = distributed.new_group([0])
    tokens = [random(1, 1, 3, 4) for _ in range(3)]
    phi = hrf.Positive(4, n_projections=2, seed=0).double()
    calls = {
        "weights": lambda: ranked(x, x, x, need_weights=True),
        "mask": lambda: ranked(x, x, x, attn_mask=mask),
        "summaries": lambda: layer(
            sequence_group=distributed.group.WORLD, attention=hrf.SummarisedAttention()
        ),
        "two axes": lambda: hrf.distributed.attention(
            *tokens,
            phi,
            group=distributed.init_device_mesh("cpu", (size, 1), mesh_dim_names=("data", "sequence")),
        ),
        "a number": lambda: hrf.distributed.attention(*tokens, phi, group=2),
        "not in the group": lambda: (
            hrf.distributed.attention(*tokens, phi, group=first) if distributed.get_rank() else None
        ),
    }
    return texts(calls)
