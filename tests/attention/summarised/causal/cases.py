"""Random tokens with padding."""

from __future__ import annotations

import torch
from torch import Tensor

from hrf._attention.summarised.causal.levels import Tokens


def random_tokens(
    n: int,
    length: int,
    groups: int,
    dim: int,
    width: int,
    *,
    padded: float = 0.1,
    size: float = 1.0,
    seed: int = 0,
) -> Tokens:
    """Tokens of random queries, keys and values in float64, of which a share is padding."""
    g = torch.Generator().manual_seed(seed)
    x, y, v = (
        torch.randn(n, length, *shape, generator=g, dtype=torch.float64)
        for shape in ((groups, dim), (dim,), (width,))
    )
    queries, keys = (torch.rand(n, length, generator=g) >= padded for _ in range(2))
    x, y, v = x * size, y * size, v.masked_fill(~keys[..., None], 0)
    return Tokens(
        x.masked_fill(~queries[..., None, None], 0), y.masked_fill(~keys[..., None], 0), v, queries, keys
    )


def exact(tokens: Tokens) -> Tensor:
    """Exact causal attention, ``(N, L, groups, d_v)``; zeros for padding and where no key is seen."""
    length = tokens.x.shape[1]
    seen = tokens.keys[:, None] & torch.ones(length, length, dtype=torch.bool).tril()  # (N, L, L)
    logits = torch.einsum("nlgd,nsd->nlgs", tokens.x, tokens.y).masked_fill(~seen[:, :, None], -torch.inf)
    weights = logits.softmax(-1).nan_to_num()
    return torch.einsum("nlgs,nsd->nlgd", weights, tokens.v) * tokens.queries[..., None, None]


def to_inputs(tokens: Tokens, batch: int) -> tuple[list[Tensor], dict[str, object]]:
    """Query, key and value ``(batch, heads, L, ·)`` that share the padding of each batch item, and keywords."""
    x, y, v = (u.unflatten(0, (batch, -1)) for u in tokens[:3])
    queries, keys = (~u.unflatten(0, (batch, -1))[:, 0] for u in tokens[3:])
    query = x.movedim(3, 2).flatten(1, 2)
    return [query, y, v], {"key_padding_mask": keys, "query_padding_mask": queries, "scale": 1.0}
