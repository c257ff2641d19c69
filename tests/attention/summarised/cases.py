"""Random heads with padding."""

from __future__ import annotations

import torch
from torch import Tensor

from hrf._attention.summarised.plan import Heads


def random_heads(
    n: int, queries: int, keys: int, dim: int, width: int, *, padded: float = 0.2, seed: int = 0
) -> Heads:
    """Heads of random queries, keys and values in float64, of which a share is padding."""
    g = torch.Generator().manual_seed(seed)
    x, y, v = (
        torch.randn(n, *shape, generator=g, dtype=torch.float64)
        for shape in ((queries, dim), (keys, dim), (keys, width))
    )
    masks = [torch.rand(n, length, generator=g) >= padded for length in (queries, keys)]
    return Heads(x, y, v, *masks)


def exact(heads: Heads) -> Tensor:
    """Exact attention; zeros for padding."""
    logits = (heads.x @ heads.y.mT).masked_fill(~heads.keys[:, None], -torch.inf)
    return (logits.softmax(-1) @ heads.v) * heads.queries[..., None]


def to_inputs(heads: Heads, batch: int) -> tuple[list[Tensor], dict[str, object]]:
    """Query, key and value ``(batch, heads, ·, ·)`` that share the padding of each batch item, and keywords."""
    tensors = [u.unflatten(0, (batch, -1)) for u in heads[:3]]
    queries, keys = (~u.unflatten(0, (batch, -1))[:, 0] for u in heads[3:])
    return tensors, {"key_padding_mask": keys, "query_padding_mask": queries, "scale": 1.0}
