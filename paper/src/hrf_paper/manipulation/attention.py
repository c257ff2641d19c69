"""Attention methods by name, all with queries and keys of length one (paper, appendix on robotics).

A name's numbers are the paper's: m and n of the angular hybrid, features of all others. A positive or trigonometric map
with m features has m/2 rows ω, each of which gives two features.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import Generator, Tensor, nn
from torch.nn import functional as F

import hrf
from hrf.advice.errors import map_flops

__all__ = ["DIVIDED", "METHODS", "PlainAttention", "attention_flops", "attention_layer"]

Plain = Literal["exact", "uniform"]
Maker = Callable[..., hrf.FeatureMap]


def _at_the_hybrids_flops(dim: int, *, heads: int, generator: Generator | None = None) -> hrf.Positive:
    """Return the largest positive map whose attention costs no more FLOPs than that of the angular hybrid (8,8)."""
    most = map_flops(_angular(dim), dim)
    rows = 1
    while map_flops(hrf.Positive(dim, n_projections=rows + 1), dim) <= most:
        rows += 1
    return hrf.Positive(dim, n_projections=rows, heads=heads, generator=generator)


_angular = partial(hrf.AngularHybrid, n_projections=8, n_coefficient_projections=8)
# Methods by name. "blind" sees no image, so that its attention is idle.
METHODS: dict[str, Plain | Maker] = {
    "exact": "exact",
    "FAVOR+ 256": partial(hrf.Positive, n_projections=128),
    "FAVOR+ equal FLOPs": _at_the_hybrids_flops,
    "HRF-A (8,8)": _angular,
    "Trig 256": partial(hrf.Trigonometric, n_projections=128),
    "uniform": "uniform",
    "blind": "uniform",
}
# Regular features whose sums are divided as they are, without a rule for small or negative denominators.
DIVIDED: dict[str, Maker] = {
    f"{name} {features}, divided as is": partial(kind, n_projections=features // 2)
    for name, kind, sizes in (("FAVOR+", hrf.Positive, (8, 32)), ("Trig", hrf.Trigonometric, (8, 32, 256)))
    for features in sizes
}


class PlainAttention(nn.MultiheadAttention):
    """Self-attention with queries and keys of length one, and weights as a function gives them.

    Args:
        width: width of the tokens.
        heads: number of heads.
        mix: takes queries, keys and values ``(B, H, L, d)`` to outputs.
    """

    def __init__(self, width: int, heads: int, mix: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__(width, heads, batch_first=True)
        self._mix = mix

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        """Attend within tokens ``(B, L, width)``, given three times as PyTorch's layer is."""
        assert self.in_proj_weight is not None
        projected = F.linear(query, self.in_proj_weight, self.in_proj_bias)
        q, k, v = projected.unflatten(-1, (3, self.num_heads, -1)).movedim(-2, 1).unbind(-2)
        mixed = self._mix(F.normalize(q, dim=-1), F.normalize(k, dim=-1), v)
        return self.out_proj(mixed.transpose(1, 2).flatten(2)), None


def attention_layer(method: str, width: int, heads: int, generator: Generator) -> nn.MultiheadAttention:
    """Return the self-attention of a method, a key of `METHODS` or `DIVIDED`; maps are drawn by the generator."""
    if method in DIVIDED:
        drawn = DIVIDED[method](width // heads, heads=heads, generator=generator)
        return PlainAttention(width, heads, _Divided(drawn))
    if method not in METHODS:
        raise ValueError(f"there is no method {method!r}; expected one of {', '.join((*METHODS, *DIVIDED))}")
    chosen = METHODS[method]
    if isinstance(chosen, str):
        return PlainAttention(width, heads, _exact if chosen == "exact" else _uniform)
    return hrf.nn.MultiheadAttention(
        width, heads, batch_first=True, feature_map=chosen, normalize=True, generator=generator
    )


def attention_flops(method: str, tokens: int, width: int, heads: int) -> float:
    """Count the FLOPs of a layer's attention for one image, projections of tokens aside."""
    dim = width // heads
    chosen = DIVIDED.get(method) or METHODS[method]
    if isinstance(chosen, str):
        per_token = 4.0 * tokens * dim if chosen == "exact" else 1.0 * dim
    else:
        per_token = map_flops(chosen(dim, heads=heads), dim)
    return heads * tokens * per_token


def _exact(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, scale=1.0)


def _uniform(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return value.mean(-2, keepdim=True).expand_as(value)


class _Divided(nn.Module):
    """Attention with a map, whose numerators are divided by denominators of any size and sign."""

    def __init__(self, feature_map: hrf.FeatureMap) -> None:
        super().__init__()
        self.feature_map = feature_map

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return hrf.attention(query, key, value, self.feature_map, scale=1.0, denominator="none")
