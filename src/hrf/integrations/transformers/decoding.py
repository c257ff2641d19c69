"""Decoding beside Transformers' cache: the sums over its keys are kept, so that a step maps the new tokens only.

Attention gets all keys of the cache at every step, and to map them anew takes time that grows with their number. The
state after the last key is therefore attached to the tensor of keys that the cache holds (`keep`), and lives as long as
that. Before the next call of the module a hook looks the tensor up in the cache (`watch`), where it is replaced or
written to right after. Keys that were cropped, reordered, selected or changed are other tensors or other versions: they
have no state, and are mapped anew.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hrf._attention import AttentionState
from hrf.features.base import FeatureMap
from hrf.integrations.transformers.masks import AttentionCall

__all__ = ["Kept", "attend_and_keep", "found", "watch"]

_ATTRIBUTE = "hrf_state"  # of a tensor of keys

_last = threading.local()  # the module whose call has begun, and what its cache held


class Kept(NamedTuple):
    """The state after the keys of a tensor; never written to.

    Attributes:
        tensors: the state itself (`AttentionState.tensors`).
        feature_map: the map of the module.
        length: number of keys.
        ignore: which of them were ignored, ``(B, length)``, or ``None``.
        scale: factor of the logits.
        version: count of in-place operations on the tensor so far; −1 where PyTorch does not count them.
    """

    tensors: dict[str, Tensor]
    feature_map: FeatureMap
    length: int
    ignore: Tensor | None
    scale: float
    version: int

    def __deepcopy__(self, memo: dict[int, Any]) -> Kept:
        return self  # copies of a cache continue from the same state

    def precedes(self, call: AttentionCall, feature_map: FeatureMap) -> bool:
        """Return whether the queries of a call belong to the keys that follow."""
        if (self.feature_map, self.scale) != (feature_map, call.scale):
            return False
        if self.length + call.query.shape[2] != call.key.shape[2]:
            return False
        before = None if call.ignore is None else call.ignore[:, : self.length]
        if before is None or self.ignore is None:
            return (before is None or not bool(before.any())) and self.ignore is None
        return torch.equal(before, self.ignore)


def watch(module: nn.Module) -> None:
    """Let a module look at its cache before each call from the next one on."""
    if "hrf_watched" not in module.__dict__:
        module.__dict__["hrf_watched"] = True
        module.register_forward_pre_hook(_look, with_kwargs=True)


def _look(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
    if torch.compiler.is_compiling():
        return
    cache, index = kwargs.get("past_key_values"), getattr(module, "layer_idx", None)
    layers = getattr(getattr(cache, "self_attention_cache", cache), "layers", ())
    keys = getattr(layers[index], "keys", None) if index is not None and index < len(layers) else None
    kept = getattr(keys, _ATTRIBUTE, None)
    _last.module, _last.kept = module, kept if kept and kept.version == _version(keys) else None


def found(module: nn.Module) -> Kept | None:
    """Return the state of the keys that were in the cache of the module before the present call, once."""
    kept = getattr(_last, "kept", None) if getattr(_last, "module", None) is module else None
    _last.module = _last.kept = None
    return kept


def _version(tensor: Tensor | None) -> int:
    return -1 if tensor is None or tensor.is_inference() else tensor._version


def attend_and_keep(call: AttentionCall, feature_map: FeatureMap, kept: Kept | None, keys: Tensor) -> Tensor:
    """Run causal attention from ``kept``, or from the first key, and attach the new state to ``keys``.

    Args:
        call: a causal call, without gradients.
        feature_map: the map of the module.
        kept: state that `precedes` the call, or ``None``.
        keys: the tensor of keys as the cache returned it.
    """
    length, width = call.query.shape[2], call.key.shape[2]
    state = AttentionState(feature_map.with_fixed_centres(), scale=call.scale)
    query, new = call.query, slice(None)
    if kept is not None:
        state.load(kept.tensors)
        new = slice(width - length, None)
    else:
        # Queries for the keys before the first query; their outputs are dropped.
        query = F.pad(query, (0, 0, width - length, 0))
    ignore = None if call.ignore is None else call.ignore[:, new]
    output = state.prefill(query, call.key[:, :, new], call.value[:, :, new], key_padding_mask=ignore)
    after = Kept(state.tensors(), feature_map, width, call.ignore, call.scale, _version(keys))
    setattr(keys, _ATTRIBUTE, after)
    return output[:, :, -length:]
