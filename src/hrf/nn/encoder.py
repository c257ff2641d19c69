"""A Transformer encoder layer with attention in linear time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from hrf._attention import SummarisedAttention
from hrf.features.base import FeatureMap
from hrf.nn.maps import Maker, MapName
from hrf.nn.multihead import MultiheadAttention

__all__ = ["TransformerEncoderLayer"]


class TransformerEncoderLayer(nn.TransformerEncoderLayer):
    """`torch.nn.TransformerEncoderLayer` with `hrf.nn.MultiheadAttention`; loads the ``state_dict`` of PyTorch's layer.

    Pass it to `torch.nn.TransformerEncoder` with ``enable_nested_tensor=False`` (PyTorch warns otherwise: nested
    tensors belong to its own fast path). The encoder copies one layer: call ``redraw_`` on the maps for independent ω.

    Args:
        d_model: as in `torch.nn.TransformerEncoderLayer`, like all arguments up to ``dtype``.
        nhead: see there.
        dim_feedforward: see there.
        dropout: see there; in attention it drops keys, as in `hrf.nn.MultiheadAttention`.
        activation: see there.
        layer_norm_eps: see there.
        batch_first: see there.
        norm_first: see there.
        bias: see there.
        device: see there.
        dtype: see there.
        attention: as in `hrf.nn.MultiheadAttention`, like all arguments that follow.
        feature_map: see there.
        normalize: see there.
        redraw_every: see there.
        generator: see there.
        seed: see there.

    >>> import torch, hrf
    >>> layer = hrf.nn.TransformerEncoderLayer(64, 4, batch_first=True, feature_map="positive")
    >>> encoder = torch.nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
    >>> encoder(torch.randn(2, 100, 64)).shape
    torch.Size([2, 100, 64])
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Literal["relu", "gelu"] | Callable[[Tensor], Tensor] = F.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        attention: SummarisedAttention | None = None,
        feature_map: MapName | Maker | FeatureMap = "positive",
        normalize: bool = False,
        redraw_every: int | None = None,
        generator: Generator | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            d_model,
            nhead,
            dim_feedforward,
            dropout,
            activation,
            layer_norm_eps,
            batch_first,
            norm_first,
            bias,
            device,
            dtype,
        )
        self.self_attn = MultiheadAttention.from_torch(
            self.self_attn,
            attention=attention,
            feature_map=feature_map,
            normalize=normalize,
            redraw_every=redraw_every,
            generator=generator,
            seed=seed,
        )
