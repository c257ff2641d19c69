"""Self-attention of a conformer, whose way to weigh values can be exchanged at any time: weights stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hrf
from hrf_paper.speech.dropout import ByteDropout

__all__ = ["Method", "Plain", "SelfAttention"]

Plain = Literal["exact", "uniform", "none"]
Method = Plain | hrf.FeatureMap | hrf.SummarisedAttention
Observer = Callable[[Tensor, Tensor, Tensor], None]


class SelfAttention(nn.Module):
    """Multi-head self-attention with a layer norm before it.

    Args:
        width: width of the tokens.
        heads: number of heads.
        dropout: probability to drop an output.
        rotary: whether to rotate queries and keys by their position (Su et al., 2021).
        length: length to which queries and keys are brought, as a map sees them; ``None`` leaves them. Signed
            estimators need short vectors.

    Attributes:
        method: ``"exact"`` softmax attention, ``"uniform"`` weights, ``"none"`` (the output is zero), a feature map
            or a `hrf.SummarisedAttention`, exchanged by `use`. A map is not a part of the module: neither
            ``state_dict`` nor ``parameters`` see it.
        causal: whether a frame sees itself and frames before it only.
        observer: called with queries and keys as a map sees them, ``(B, H, L, d)``, and the padding ``(B, L)``.
    """

    def __init__(
        self, width: int, heads: int, dropout: float, *, rotary: bool = False, length: float | None = None
    ) -> None:
        super().__init__()
        if width % (2 * heads):
            raise ValueError(f"width is {width} for {heads} heads; expected a multiple of {2 * heads}")
        self.heads, self.rotary, self.length = heads, rotary, length
        self.causal = False
        self.observer: Observer | None = None
        self.norm = nn.LayerNorm(width)
        self.inputs = nn.Linear(width, 3 * width)
        self.outputs = nn.Linear(width, width)
        self.dropout = ByteDropout(dropout)
        self._method: list[Method] = ["exact"]  # in a list, so that a map does not become a submodule

    @property
    def method(self) -> Method:
        """The way to weigh values."""
        return self._method[0]

    def use(self, method: Method) -> None:
        """Weigh values by another method from now on."""
        if isinstance(method, str) and method not in get_args(Plain):
            expected = ", ".join(map(repr, get_args(Plain)))
            raise ValueError(
                f"the method is {method!r}; expected {expected}, a feature map or summarised attention"
            )
        self._method[0] = method

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """Attend from all frames ``(B, L, width)`` to all but the padding ``(B, L)``."""
        if self.method == "none":
            return torch.zeros_like(x)
        query, key, value = self._projected(x)
        if self.observer is not None:
            self.observer(query, key, padding)
        return self._merged(self._mixed(query, key, value, padding))

    def attend_next(self, x: Tensor, state: hrf.AttentionState) -> Tensor:
        """Attend from the next frames ``(B, L, width)`` to themselves and to all frames that the state has seen."""
        return self._merged(state.prefill(*self._projected(x)))

    def _merged(self, mixed: Tensor) -> Tensor:
        """Return the output of all heads together."""
        return cast(Tensor, self.dropout(self.outputs(mixed.transpose(1, 2).flatten(2))))

    def _projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values ``(B, H, L, d)``; queries and keys at the scale of a map."""
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.inputs(self.norm(x)).chunk(3, -1)
        )
        if self.rotary:
            query, key = _rotated(query), _rotated(key)
        if self.length is not None:
            return self.length * F.normalize(query, dim=-1), self.length * F.normalize(key, dim=-1), value
        root = query.shape[-1] ** -0.25
        return query * root, key * root, value

    def _mixed(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor) -> Tensor:
        method = self.method
        if method == "exact":
            visible = ~padding[:, None, None, :]
            if self.causal:
                length = query.shape[-2]
                earlier = torch.ones(length, length, dtype=torch.bool, device=query.device)
                visible = visible & earlier.tril()
            return F.scaled_dot_product_attention(query, key, value, attn_mask=visible, scale=1.0)
        if isinstance(method, str):
            return _mean(value, padding, self.causal)
        return hrf.attention(
            query,
            key,
            value,
            method,
            is_causal=self.causal,
            key_padding_mask=padding,
            query_padding_mask=padding if isinstance(method, hrf.SummarisedAttention) else None,
            scale=1.0,
        )


def _mean(value: Tensor, padding: Tensor, causal: bool) -> Tensor:
    """Return the mean of the values that a frame sees; zeros without any."""
    keep = (~padding).to(value.dtype)[:, None, :, None]
    total, count = value * keep, keep
    if causal:
        return total.cumsum(2) / count.cumsum(2).clamp(min=1)
    return (total.sum(2, keepdim=True) / count.sum(2, keepdim=True).clamp(min=1)).expand_as(value)


def _rotated(x: Tensor) -> Tensor:
    """Rotate pairs of coordinates by angles that grow with the position."""
    half = x.shape[-1] // 2
    speed = 10_000.0 ** -(torch.arange(half, device=x.device) / half)
    angle = torch.arange(x.shape[-2], device=x.device)[:, None] * speed
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, first * sin + second * cos), -1)
