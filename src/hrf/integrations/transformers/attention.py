"""Attention functions for Hugging Face models, and the maps they use.

Each attention module keeps its maps in a dictionary ``hrf_maps``. They are no part of ``state_dict``: a seed determines
maps that are made, and fitted maps have files of their own. Maps move to the device of the queries.
"""

from __future__ import annotations

import itertools
from typing import Any

from torch import Generator, Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from hrf._attention import Denominator, SummarisedAttention, attention
from hrf.features.base import FeatureMap
from hrf.integrations.transformers.interface import FITTED, SUMMARISED, add, check_name, refuse
from hrf.integrations.transformers.masks import AttentionCall
from hrf.nn.maps import Maker, feature_map_for, maker_of
from hrf.nn.values import drop_keys, unit_values

__all__ = ["attend", "fitted_maps", "register", "switch", "use_maps"]

_registrations = itertools.count()


def register(name: str = "hrf", feature_map: str | Maker = "positive", *, seed: int = 0) -> None:
    """Register ``attn_implementation=name`` with Transformers: linear attention with maps that need no data.

    Works for encoders, decoders and cross-attention, with grouped queries, padding, causal masks and generation with a
    cache. Masks and arguments that linear attention cannot honour raise an error. Dropout drops keys, as in
    `hrf.nn.MultiheadAttention`; ``output_attentions=True`` returns estimated weights, in quadratic time, if the model
    passes it to its layers (Llama does, GPT-2 does not). Models with attention of their own refuse the name when they
    are built; `check` says more.

    Args:
        name: name of the implementation; not a name of Transformers' own, such as ``"sdpa"``.
        feature_map: as in `hrf.nn.MultiheadAttention`, except that it cannot be a map itself. Each layer makes its
            own map at its first call, with one head per query head.
        seed: seed of ω; layer i draws with ``seed + i``, so that a model has the same maps whenever it is loaded.

    >>> import transformers, hrf.integrations.transformers
    >>> hrf.integrations.transformers.register("hrf", "positive")
    >>> config = transformers.ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    >>> model = transformers.AutoModel.from_config(config, attn_implementation="hrf")
    """
    check_name(name)
    maker = maker_of(feature_map) if isinstance(feature_map, str) else feature_map
    add(name, _Made(maker, seed))


class _Attention:
    """Attention function that Transformers calls in a layer; subclasses provide the map."""

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        is_causal: bool | None = None,
        **others: Any,
    ) -> tuple[Tensor, Tensor | None]:
        call = AttentionCall.of(module, query, key, value, attention_mask, scaling, is_causal, others)
        phi, weights = self.map_of(module, call), None
        if others.get("output_attentions"):
            weights = attend(call._replace(value=unit_values(call.key)), phi)
        if dropout:
            call = call._replace(value=drop_keys(call.value, dropout))
        output = attend(call, phi)
        if output.device.type == "cpu" and not bool(output.isfinite().all()):
            raise ValueError(
                f"the attention of {type(module).__name__} is not finite: {type(phi).__name__} is far too noisy for "
                "its queries and keys; expected a map fitted to them (see convert), or positive features"
            )
        return output.transpose(1, 2), weights

    def map_of(self, module: nn.Module, call: AttentionCall) -> FeatureMap | SummarisedAttention:
        raise NotImplementedError


class _Made(_Attention):
    """Attention with maps from a maker, one per module."""

    def __init__(self, maker: Maker, seed: int) -> None:
        self.maker, self.seed = maker, seed
        self.key = f"{next(_registrations)}"  # a name may be registered twice, with different maps

    def map_of(self, module: nn.Module, call: AttentionCall) -> FeatureMap:
        maps = _maps(module)
        if self.key not in maps:
            generator = Generator().manual_seed(self.seed + (getattr(module, "layer_idx", None) or 0))
            _, heads, _, dim = call.query.shape
            maps[self.key] = feature_map_for(self.maker, dim, heads, generator)
        return maps[self.key]


class _Fitted(_Attention):
    """Attention with maps from `convert` or `load_maps`."""

    def map_of(self, module: nn.Module, call: AttentionCall) -> FeatureMap:
        if FITTED not in _maps(module):
            raise ValueError(
                f"this {type(module).__name__} has no fitted map; expected one from convert or load_maps"
            )
        phi, (_, heads, _, dim) = _maps(module)[FITTED], call.query.shape
        if phi.dim != dim or phi.heads not in (None, heads):
            raise ValueError(
                f"the map of this {type(module).__name__} is for {phi.heads} heads of {phi.dim} dimensions, the model "
                f"has {heads} heads of {dim}; expected maps fitted to this model"
            )
        return phi


class _Summarised(_Attention):
    """Attention by summaries, which needs no map; causal layers are refused."""

    def map_of(self, module: nn.Module, call: AttentionCall) -> SummarisedAttention:
        return SummarisedAttention()


def _maps(module: nn.Module) -> dict[str, FeatureMap]:
    maps: dict[str, FeatureMap] = module.__dict__.setdefault("hrf_maps", {})
    return maps


add(FITTED, _Fitted())
add(SUMMARISED, _Summarised())


def attend(
    call: AttentionCall,
    feature_map: FeatureMap | SummarisedAttention,
    denominator: str | Denominator = "clamp",
) -> Tensor:
    """Run `hrf.attention` for a call: ``(B, H, L, d_v)``. A cache may hold more keys than there are causal queries."""
    if isinstance(feature_map, SummarisedAttention):
        # Outputs of padding are read by nobody.
        return attention(
            call.query,
            call.key,
            call.value,
            feature_map,
            is_causal=call.is_causal and call.query.shape[2] > 1,
            key_padding_mask=call.ignore,
            query_padding_mask=call.ignore if call.is_self else None,
            scale=call.scale,
        )
    feature_map.to(call.query.device)
    query, length, cached = call.query, call.query.shape[2], call.key.shape[2] - call.query.shape[2]
    if call.is_causal:
        # A single query attends to all keys so far and is no causal call, but centres must stay for it, too.
        feature_map = feature_map.with_fixed_centres()
    paired = call.is_causal and length > 1
    if paired and cached:
        # Queries for the keys in the cache; their outputs are dropped.
        query = F.pad(query, (0, 0, cached, 0))
    output = attention(
        query,
        call.key,
        call.value,
        feature_map,
        is_causal=paired,
        key_padding_mask=call.ignore,
        scale=call.scale,
        denominator=denominator,
    )
    return output[:, :, -length:]


def switch(model: PreTrainedModel, name: str) -> None:
    """Let a model use an implementation of attention; refuse a model that cannot."""
    refuse(model)
    model.set_attn_implementation(name)
    if model.config._attn_implementation != name:
        raise ValueError(
            f"{type(model).__name__} does not take its attention from transformers.AttentionInterface"
        )


def use_maps(model: PreTrainedModel, maps: dict[str, FeatureMap]) -> None:
    """Let the attention modules of these names use these maps."""
    switch(model, FITTED)
    for name, feature_map in maps.items():
        _maps(model.get_submodule(name))[FITTED] = feature_map


def fitted_maps(model: PreTrainedModel) -> dict[str, FeatureMap]:
    """Return the fitted maps of a model by the names of its modules."""
    maps = {name: module.__dict__.get("hrf_maps", {}) for name, module in model.named_modules()}
    return {name: own[FITTED] for name, own in maps.items() if FITTED in own}
