"""Decoding beside Transformers' cache: the sums over its keys are kept, so that a step maps the new tokens only.

Attention gets all keys of the cache at every step, and to map them anew takes time that grows with their number. The
state after the last key is therefore attached to the tensor of keys that the cache holds (`attend_and_keep`), and lives
as long as that. Before the next call of the module a hook looks the tensor up in the cache (`watch`), where it is
replaced or written to right after, and the call takes the state over, to be written in place. Beam search reorders
caches: their states are reordered with them. Keys that were copied, cropped, selected or changed are other tensors or
other versions: they have no state, and are mapped anew.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.cache_utils import CacheLayerMixin

from hrf._attention import AttentionState
from hrf.features.base import FeatureMap
from hrf.integrations.transformers.masks import AttentionCall

__all__ = ["Kept", "attend_and_keep", "found", "watch"]

_ATTRIBUTE = "hrf_state"  # of a tensor of keys

_last = threading.local()  # the module whose call has begun, its layer of the cache, and the state of that


@dataclass
class Kept:
    """The state after the keys of a tensor, until a call takes it over.

    Attributes:
        state: the state itself; ``None`` once it is taken.
        feature_map: the map of the module.
        length: number of keys.
        ignore: which of them were ignored, ``(B, length)``, or ``None``.
        scale: factor of the logits.
        version: count of in-place operations on the tensor so far; −1 where PyTorch does not count them.
    """

    state: AttentionState | None
    feature_map: FeatureMap
    length: int
    ignore: Tensor | None
    scale: float
    version: int

    def __deepcopy__(self, memo: dict[int, Any]) -> Kept:
        """Leave the state to the original: a copy of a tensor counts in-place operations anew."""
        return replace(self, state=None)

    def reordered(self, index: Tensor, keys: Tensor) -> Kept:
        """Return the state for the batch elements ``index``, which ``keys`` holds."""
        assert self.state is not None
        ignore = None if self.ignore is None else self.ignore.index_select(0, index)
        return replace(self, state=self.state.reorder(index), ignore=ignore, version=_version(keys))

    def precedes(self, call: AttentionCall, feature_map: FeatureMap) -> bool:
        """Return whether the queries of a call belong to the keys that follow."""
        if self.feature_map is not feature_map or self.scale != call.scale:
            return False
        if self.length + call.query.shape[2] != call.key.shape[2]:
            return False
        before = None if call.ignore is None else call.ignore[:, : self.length]
        if before is None or self.ignore is None:
            return (before is None or not bool(before.any())) and self.ignore is None
        return torch.equal(before, self.ignore)

    def taken(self) -> AttentionState | None:
        """Hand the state over."""
        state, self.state = self.state, None
        return state


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
    layer = layers[index] if index is not None and index < len(layers) else None
    _last.module, _last.layer, _last.kept = module, layer, _kept(getattr(layer, "keys", None))


def _kept(keys: Tensor | None) -> Kept | None:
    """Return the state of a tensor of keys, if it has one and has not changed since."""
    kept: Kept | None = getattr(keys, _ATTRIBUTE, None)
    return None if kept is None or kept.state is None or kept.version != _version(keys) else kept


def found(module: nn.Module, keys: Tensor) -> tuple[Kept | None, bool]:
    """Look at the cache of a module in its present call, once.

    Args:
        module: the module.
        keys: the tensor of keys as the cache returned it.

    Returns:
        The state of the keys that were there before the call, or ``None``; and whether the cache holds ``keys`` itself,
        so that a state that is attached to it will be found.
    """
    if getattr(_last, "module", None) is not module:
        return None, False
    kept, held = _last.kept, getattr(_last.layer, "keys", None) is keys
    _last.module = _last.layer = _last.kept = None
    return kept, held


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
    state = None if kept is None else kept.taken()
    query, key, value, ignore = call[:4]
    if state is not None:
        key, value = (u[:, :, width - length :] for u in (key, value))
        ignore = None if ignore is None else ignore[:, width - length :]
    else:
        state = AttentionState(feature_map.with_fixed_centres(), scale=call.scale)
        # Queries for the keys before the first query; their outputs are dropped.
        query = F.pad(query, (0, 0, width - length, 0))
    output = state.prefill(query, key, value, key_padding_mask=ignore)
    setattr(keys, _ATTRIBUTE, Kept(state, feature_map, width, call.ignore, call.scale, _version(keys)))
    return output[:, :, -length:] if output.shape[2] != length else output


def _reorder_states() -> None:
    """Let caches that are reordered, for beam search, reorder the states of their keys."""
    original = CacheLayerMixin.reorder_cache

    @wraps(original)
    def reordered(self: CacheLayerMixin, beam_idx: Tensor) -> None:
        kept = _kept(self.keys)
        original(self, beam_idx)  # type: ignore[arg-type]
        if kept is not None and self.keys is not None:
            setattr(self.keys, _ATTRIBUTE, kept.reordered(beam_idx.to(self.keys.device), self.keys))

    CacheLayerMixin.reorder_cache = reordered  # type: ignore[method-assign]


_reorder_states()
