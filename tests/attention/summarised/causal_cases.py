"""Random causal rows, exact causal attention, and a plain evaluation of a plan that autograd can follow."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Generator, Tensor

from hrf import _core as core
from hrf._attention.summarised.blocks import BASE, EVERY, Choices, KeyBlock, exact_tiles, read_block
from hrf._attention.summarised.recursion import CausalRows

needs_core = pytest.mark.skipif(not core.serves(torch.zeros(1)), reason="needs the compiled core")


@dataclass(frozen=True)
class Case:
    """Sizes of a call; tensors come from the seed. Keys without query, if any, are ``prefix`` many per item."""

    lengths: tuple[int, ...]  # of the keys of each item
    dim: int = 16
    width: int = 16
    key_heads: int = 1
    groups: int = 1
    prefix: int = 0
    left: bool = True  # padding on the left; else on the right
    tolerance: float = 1.0
    rotary: bool = False
    size: float = 0.7
    dtype: torch.dtype = torch.float64
    base: int = 64
    seed: int = 0

    def choices(self) -> Choices:
        angles = 1.5 ** -torch.arange(self.dim // 2, dtype=torch.double) / 50 if self.rotary else None
        return Choices(self.dim**-0.25, self.tolerance, angles, self.base)

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value near eight topics."""
        g, n = Generator().manual_seed(self.seed), max(self.lengths)
        heads, batch = self.key_heads * self.groups, len(self.lengths)
        topics = 1.2 * torch.randn(8, self.dim, generator=g, dtype=torch.double)

        def near(*shape: int) -> Tensor:
            noise = torch.randn(*shape, self.dim, generator=g, dtype=torch.double)
            return self.size * (topics[torch.randint(8, shape, generator=g)] + noise)

        q, k = near(batch, heads, n - self.prefix), near(batch, self.key_heads, n)
        v = torch.randn(batch, self.key_heads, n, self.width, generator=g, dtype=torch.double)
        return q.to(self.dtype), k.to(self.dtype), v.to(self.dtype)

    def rows(self) -> CausalRows:
        return rows_of(*self.tensors(), torch.tensor(self.lengths), left=self.left)

    def rounding(self) -> float:
        """Bound the error of an output: relative, of weights whose logits are sums of d products, times values."""
        q, k, v = self.tensors()
        longest = float(q.norm(dim=-1).max() * k.norm(dim=-1).max()) / self.dim**0.5
        terms = self.dim + max(self.lengths) ** 0.5
        return float(torch.finfo(self.dtype).eps * terms * (1 + longest) * v.abs().max())


def rows_of(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None = None, *, left: bool = True
) -> CausalRows:
    """Return rows of items of these lengths, with padding on the left or on the right."""
    most, prefix = k.shape[2], k.shape[2] - q.shape[2]
    keys = torch.full((len(k),), most) if lengths is None else lengths
    first_key = most - keys if left else torch.zeros_like(keys)
    queries = (keys - prefix).clamp(min=0) if not left else keys.clamp(max=q.shape[2])
    first_query = q.shape[2] - queries if left else torch.zeros_like(keys)
    return CausalRows(q, k, v, first_query, queries, first_key, keys)


def resumed(rows: CausalRows, masses: Tensor, cut: int) -> CausalRows:
    """Return rows of the queries from ``cut`` on, with the earlier ones; ``masses`` are those of all queries."""
    n = rows.x.shape[2]
    known = [u.new_zeros(*u.shape[:2], n // EVERY + 1, *u.shape[3:]) for u in (rows.x, masses)]
    for b, first in enumerate(rows.first_query.tolist()):
        for new, u in zip(known, (rows.x, masses), strict=True):
            own = u[b, :, first:cut:EVERY]
            new[b, :, : own.shape[1]] = own
    queries = rows.queries.clamp(max=n - cut)
    return rows._replace(
        x=rows.x[:, :, cut:],
        first_query=n - cut - queries,
        queries=queries,
        earlier=known[0],
        earlier_masses=known[1],
    )


def exact(rows: CausalRows, root: float) -> tuple[Tensor, Tensor]:
    """Exact attention of all queries in float64, and log₂ of their masses; zeros for padding."""
    out = rows.x.new_zeros(*rows.x.shape[:3], rows.v.shape[-1], dtype=torch.double)
    masses = out[..., 0].clone()
    for b in range(len(rows.x)):
        x, y, v, prefix = rows._replace(x=rows.x.double(), y=rows.y.double(), v=rows.v.double()).item(b, root)
        seen = torch.arange(y.shape[1]) <= torch.arange(prefix, y.shape[1])[:, None]
        logits = (x @ y.mT).masked_fill(~seen, -torch.inf)
        own = slice(int(rows.first_query[b]), int(rows.first_query[b]) + x.shape[1])
        out[b, :, own], masses[b, :, own] = logits.softmax(-1) @ v, logits.logsumexp(-1) / math.log(2)
    return out, masses


def evaluate(rows: CausalRows, choices: Choices, plans: list[list[KeyBlock]]) -> tuple[Tensor, Tensor]:
    """Compute what plans say, by one sum of weights per query: outputs, and log₂ of masses."""
    outs, masses = [], []
    for b, blocks in enumerate(plans):
        x, y, v, prefix = rows.item(b, choices.root)
        heads, count = x.shape[:2]
        parts: list[tuple[slice, Tensor, Tensor]] = []
        for own, keys, seen in exact_tiles(y.shape[1], prefix, rows.unknown(b), choices.base):
            logits = (x[:, own] @ y[:, keys].mT).masked_fill(~seen, -torch.inf)
            top = logits.detach().amax(-1, keepdim=True)
            weights = (logits - top).exp()
            sums = torch.cat([weights @ v[:, keys], weights.sum(-1, keepdim=True)], -1)
            parts.append((own, sums, top))
        for block in blocks:
            place = block.place
            own, of_keys = (
                slice(place.first - prefix, place.last - prefix),
                slice(place.first_key, place.end),
            )
            statistics = "mean", "width", "query_width", "metric"
            same = block._replace(**{name: getattr(block, name).to(x.dtype) for name in statistics})
            parts.append((own, *read_block(x[:, own], y[:, of_keys], v[:, of_keys], same)))
        scale = x.new_full((heads, count, 1), -torch.inf)
        for own, _, top in parts:
            scale[:, own] = torch.maximum(scale[:, own], top.detach())
        total = x.new_zeros(heads, count, v.shape[-1] + 1)
        for own, sums, top in parts:
            total = total.index_add(1, torch.arange(count)[own], sums * (top - scale[:, own]).exp())
        first, room = int(rows.first_query[b]), rows.x.shape[2]
        padding = (0, 0, first, room - first - count)
        outs.append(torch.nn.functional.pad(total[..., :-1] / total[..., -1:], padding))
        log2 = (scale + total[..., -1:].log()) / math.log(2)
        masses.append(torch.nn.functional.pad(log2, padding)[..., 0])
    return torch.stack(outs), torch.stack(masses)


def wide(rows: CausalRows) -> CausalRows:
    """Return rows in float64."""
    return CausalRows(*(u.double() if u is not None and u.is_floating_point() else u for u in rows))


def random_case(seed: int) -> Case:
    """Draw a case: sizes, padding, prefixes, tolerances and dtypes of all kinds."""
    g = Generator().manual_seed(seed)

    def pick(*options):
        return options[int(torch.randint(len(options), (), generator=g))]

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=g))

    longest = number(1, 420)
    lengths = (longest,) if pick(True, False) else (longest, number(0, longest + 1))
    return Case(
        lengths=lengths,
        dim=pick(3, 8, 16, 24, 33, 80),
        width=pick(1, 5, 16, 20),
        key_heads=pick(1, 2),
        groups=pick(1, 2, 3),
        prefix=pick(0, 0, number(0, longest)),
        left=pick(True, False),
        tolerance=pick(0.0, 0.3, 1.0, 4.0, math.inf),
        rotary=pick(True, False),
        size=pick(0.2, 0.7, 1.5),
        dtype=pick(torch.float32, torch.float64),
        seed=seed,
    )


__all__ = [
    "BASE",
    "Case",
    "evaluate",
    "exact",
    "needs_core",
    "random_case",
    "resumed",
    "rows_of",
    "wide",
]
