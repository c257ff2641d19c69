"""Balanced trees: vectors of each head in equal parts, near each other in a metric.

At every node the vectors are cut at the median of their top principal direction, so all parts have the same size up to
one. Part p of P of n vectors is ``order[p·n // P : (p + 1)·n // P]``: nested for powers of two.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Parts", "balanced_parts", "root_of_metric"]

POWER_ITERATIONS = 6
JITTER = 1e-5  # of the trace, added to a metric so that it has a root


class Parts(NamedTuple):
    """Equal parts of the vectors of N heads, padded to the same width.

    Part p of head n holds the tokens ``tokens[n, p][filled[n, p]]``.

    Attributes:
        tokens: token at each place, ``(N, P, width)``; a place without token holds some token of the head.
        filled: whether a place holds a token, ``(N, P, width)``; the filled places of a part come first.
    """

    tokens: Tensor
    filled: Tensor

    def take(self, u: Tensor) -> Tensor:
        """Gather rows of ``u (N, L, d)`` into parts: ``(N, P, width, d)``, zeros at places without token."""
        flat = self.tokens.flatten(1)[..., None].expand(-1, -1, u.shape[-1])
        return u.gather(1, flat).unflatten(1, self.tokens.shape[1:]) * self.filled[..., None]

    def put(self, parts: Tensor, length: int) -> Tensor:
        """Bring ``(N, P, width, d)`` back to the order of the tokens ``(N, length, d)``; zeros for padding."""
        heads = torch.arange(len(parts), device=parts.device)[:, None, None].expand_as(self.tokens)
        out = parts.new_zeros(len(parts), length, parts.shape[-1])
        return out.index_put((heads[self.filled], self.tokens[self.filled]), parts[self.filled])


def root_of_metric(metric: Tensor) -> Tensor:
    """Return R with R Rᵀ = metric, up to a jitter: ``|u R|²`` is uᵀ metric u; ``(N, d, d)``."""
    size = metric.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    eye = torch.eye(metric.shape[-1], dtype=metric.dtype, device=metric.device)
    return torch.linalg.cholesky(metric + (JITTER * size + torch.finfo(metric.dtype).tiny) * eye)


@torch.no_grad()
def balanced_parts(u: Tensor, real: Tensor, n_parts: int) -> Parts:
    """Cut the real rows of ``u (N, L, d)``, ``real (N, L)``, into ``n_parts`` parts, a power of two."""
    count = real.sum(-1)
    # Real rows first, in their order.
    index = (~real).to(torch.uint8).argsort(dim=-1, stable=True)[:, None]
    index = index[..., : int(count.max())]
    filled = torch.arange(index.shape[-1], device=u.device) < count[:, None, None]
    parts = Parts(index, filled)
    nodes = 1
    while nodes < n_parts:
        parts = _halved(u, parts, count, nodes)
        nodes *= 2
    return parts


def _halved(u: Tensor, parts: Parts, count: Tensor, nodes: int) -> Parts:
    """Cut every part in two."""
    by_projection = _projections(parts.take(u), parts.filled).argsort(dim=-1, stable=True)
    index = parts.tokens.gather(-1, by_projection)
    bounds = torch.arange(2 * nodes + 1, device=u.device) * count[:, None] // (2 * nodes)  # (N, 2·nodes + 1)
    sizes = bounds.diff()
    left = sizes[:, ::2]
    first = torch.stack([torch.zeros_like(left), left], -1).flatten(1)  # 0, left, 0, left, …
    width = -(-parts.tokens.shape[-1] // 2)
    place = torch.arange(width, device=u.device)
    filled = place < sizes[..., None]
    source = (first[..., None] + place).where(filled, 0)
    index = index.repeat_interleave(2, 1).gather(-1, source)
    return Parts(index, filled)


def _projections(rows: Tensor, filled: Tensor) -> Tensor:
    """Project each part on its top principal direction: ``(N, P, width, d) -> (N, P, width)``, ∞ without token."""
    some = filled[..., None]
    centred = (rows - rows.sum(-2, keepdim=True) / some.sum(-2, keepdim=True).clamp(min=1)) * some
    farthest = centred.square().sum(-1).argmax(-1)[..., None, None].expand(-1, -1, 1, rows.shape[-1])
    direction = centred.gather(-2, farthest).mT  # (N, P, d, 1)
    for _ in range(POWER_ITERATIONS):
        direction = centred.mT @ (centred @ direction)
        direction = direction / direction.norm(dim=-2, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
    return (centred @ direction)[..., 0].masked_fill(~filled, torch.inf)
