"""Decoding beside Transformers' cache: the sums over its keys are kept, so that a step maps the new tokens only.

Attention gets all keys of the cache at every step, and mapping them anew takes time that grows with their number. The
state after the last key is therefore attached to the layer of the cache that returned the keys (`attend_and_keep`). The
next call takes the state over, to be written in place, if its first keys and values are the ones that the state has
summed up: if the layer still holds the same tensors, and PyTorch has counted no operation on them since (`_Mark`).
Under ``torch.inference_mode`` nothing is counted, so hashes of their bits decide. A cache may be cropped, copied or
written to; keys without a state are mapped anew. Beam search reorders caches, and their states with them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, wraps
from typing import Any, NamedTuple
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from transformers.cache_utils import Cache, CacheLayerMixin

from hrf import _core as core
from hrf._attention import AttentionState
from hrf.features.base import FeatureMap
from hrf.integrations.transformers.interface import AttentionCall

__all__ = ["attend_and_keep", "hashes", "layer_of"]

# Hashes of keys and values, to tell whether a cache still holds the ones that a state has summed up.
#
# PyTorch counts the in-place operations on a tensor, but not under ``torch.inference_mode``. So the bits are read
# there: a hash is the sum of the vectors of a head, taken as integers, with a random weight per token. A change of
# one token always shows, and a change of several tokens is missed about once in 2³¹ times.


_TOKENS = 1024  # tokens of all heads at a time, so that their copies stay in the processor's cache


def hashes(vectors: Tensor, before: int) -> Tensor:
    """Sum the words of vectors over the first ``before`` tokens, and over all, modulo 2⁶⁴.

    Args:
        vectors: keys or values ``(B, H, S, d)``, of any floating-point dtype.
        before: number of tokens of the first sum, S at most.

    Returns:
        Integers ``(2, B, H, n)``, with n words per vector.
    """
    vectors = vectors.detach()
    if vectors.stride(-1) != 1:
        vectors = vectors.contiguous()
    words = vectors.view({1: torch.uint8, 2: torch.int16}.get(vectors.element_size(), torch.int32))
    weights = _weights(1 << words.shape[2].bit_length())
    if words.is_cpu and words.numel() and core.instructions():
        return _compiled(words, weights, before)
    return _plain(words, weights, before)


@lru_cache(maxsize=32)
def _weights(count: int) -> NDArray[np.uint32]:
    """Draw odd weights; more of them begin with the same ones."""
    return np.random.default_rng(0).integers(0, 1 << 32, count, np.uint32) | np.uint32(1)


def _compiled(words: Tensor, weights: NDArray[np.uint32], before: int) -> Tensor:
    """Let the core read the words where they are."""
    (batch, heads, length, n), (*strides, _) = words.shape, words.stride()
    sums = torch.empty(2, batch, heads, n, dtype=torch.int64)
    numbers = batch, heads, length, n, *strides, before, words.element_size(), torch.get_num_threads()
    core.run("add_hashes", words.data_ptr(), torch.from_numpy(weights.view(np.int32)), sums, *numbers)
    return sums


def _plain(words: Tensor, weights: NDArray[np.uint32], before: int) -> Tensor:
    """Do the same with PyTorch's operations."""
    step = max(1, _TOKENS // max(1, words.shape[0] * words.shape[1]))
    mask = (1 << 8 * words.element_size()) - 1  # without signs
    factors = torch.from_numpy(weights[: words.shape[2]].astype(np.int64)).to(words.device)[:, None]
    sums = words.new_zeros((2, *words.shape[:2], words.shape[3]), dtype=torch.int64)
    for start in range(0, words.shape[2], step):
        part = slice(start, start + step)
        terms = (words[:, :, part].long() & mask) * factors[part]
        sums[0] += terms[:, :, : max(0, before - start)].sum(2)
        sums[1] += terms.sum(2)
    return sums


_ATTRIBUTE = "hrf_state"  # of a layer of a cache


class _Mark(NamedTuple):
    """Tensors that a layer of a cache holds, and how many operations have written to them."""

    keys: ref[Tensor]
    values: ref[Tensor]
    versions: tuple[int, int]

    @classmethod
    def of(cls, layer: CacheLayerMixin) -> _Mark | None:
        """Mark the tensors of a layer; ``None`` if writes to them are not counted."""
        keys, values = layer.keys, layer.values
        if not isinstance(keys, Tensor) or not isinstance(values, Tensor):
            return None
        if keys.is_inference() or values.is_inference():
            return None
        return cls(ref(keys), ref(values), (keys._version, values._version))

    def holds(self, layer: CacheLayerMixin) -> bool:
        """Whether the layer has the same tensors, unchanged."""
        same = self.keys() is layer.keys and self.values() is layer.values
        now = _Mark.of(layer) if same else None
        return now is not None and self.versions == now.versions


class _Last(threading.local):
    """The keys that a cache returned last, the layer they are from, and whether it was as its state left it."""

    unchanged = False

    keys: Callable[[], Tensor | None] = staticmethod(lambda: None)
    layer: Callable[[], Any] = staticmethod(lambda: None)


_last = _Last()


@dataclass
class Kept:
    """The state after the keys of a layer, until a call takes it over.

    Attributes:
        state: the state itself; ``None`` once it is taken.
        feature_map: the map of the module.
        length: number of keys.
        mark: of the tensors of the layer; ``None`` if writes to them are not counted.
        hashes: of keys and values, ``(B, H_kv, ·)``, in place of a mark.
        ignore: which keys were ignored, ``(B, length)``, or ``None``.
        scale: factor of the logits.
    """

    state: AttentionState | None
    feature_map: FeatureMap
    length: int
    mark: _Mark | None
    hashes: Tensor | None
    ignore: Tensor | None
    scale: float

    def __deepcopy__(self, memo: dict[int, Any]) -> Kept:
        """Leave the state to the original: both copies would write to it."""
        return replace(self, state=None)

    def reordered(self, index: Tensor, layer: CacheLayerMixin) -> Kept:
        """Return the state for the batch elements ``index`` of a layer that has been reordered."""
        assert self.state is not None

        def rows(u: Tensor | None) -> Tensor | None:
            return None if u is None else u.index_select(0, index.to(u.device))

        state, mark = self.state.reorder(index), None if self.mark is None else _Mark.of(layer)
        return replace(self, state=state, mark=mark, hashes=rows(self.hashes), ignore=rows(self.ignore))

    def precedes(self, call: AttentionCall, feature_map: FeatureMap) -> bool:
        """Return whether the queries of a call belong to as many keys after those of the state, by all but hashes."""
        if self.state is None or self.feature_map is not feature_map or self.scale != call.scale:
            return False
        if self.length + call.query.shape[2] != call.key.shape[2]:
            return False
        before = None if call.ignore is None else call.ignore[:, : self.length]
        if before is None or self.ignore is None:
            return (before is None or not bool(before.any())) and self.ignore is None
        return torch.equal(before, self.ignore)

    def taken(self) -> AttentionState:
        """Hand the state over."""
        state, self.state = self.state, None
        assert state is not None
        return state


def layer_of(keys: Tensor) -> CacheLayerMixin | None:
    """Return the layer of a cache that returned these keys just now; ``None`` if none did."""
    layer: CacheLayerMixin | None = _last.layer() if _last.keys() is keys else None
    return layer


def attend_and_keep(call: AttentionCall, feature_map: FeatureMap, layer: CacheLayerMixin | None) -> Tensor:
    """Run causal attention from the state of a layer of a cache, or from the first key, and attach the new state.

    Args:
        call: a causal call, without gradients.
        feature_map: the map of the module.
        layer: layer of the cache, or ``None`` without a cache.
    """
    if layer is None:
        return _continued(call, _empty(call, feature_map), 0)
    kept: Kept | None = getattr(layer, _ATTRIBUTE, None)
    before = kept.length if kept is not None and kept.precedes(call, feature_map) else 0
    mark, now = _Mark.of(layer), None
    unchanged = _last.unchanged
    if mark is None:
        seen, now = torch.cat([hashes(call.key, before), hashes(call.value, before)], -1)
        unchanged = kept is not None and kept.hashes is not None and torch.equal(seen, kept.hashes)
    if kept is not None and before and unchanged:
        state = kept.taken()
    else:
        state, before = _empty(call, feature_map), 0
    output = _continued(call, state, before)
    setattr(
        layer, _ATTRIBUTE, Kept(state, feature_map, call.key.shape[2], mark, now, call.ignore, call.scale)
    )
    return output


def _empty(call: AttentionCall, feature_map: FeatureMap) -> AttentionState:
    return AttentionState(feature_map.with_fixed_centres(), scale=call.scale)


def _continued(call: AttentionCall, state: AttentionState, before: int) -> Tensor:
    """Attend from a state after the first ``before`` keys."""
    length, (query, key, value, ignore) = call.query.shape[2], call[:4]
    if before:
        key, value = (u[:, :, before:] for u in (key, value))
        ignore = None if ignore is None else ignore[:, before:]
    else:
        # Queries for the keys before the first query; their outputs are dropped.
        query = F.pad(query, (0, 0, key.shape[2] - length, 0))
    output = state.prefill(query, key, value, key_padding_mask=ignore)
    return output[:, :, -length:] if output.shape[2] != length else output


def _follow_caches() -> None:
    """Let caches note which layer returned which keys, and reorder, for beam search, the states of their layers."""
    update, reorder = Cache.update, CacheLayerMixin.reorder_cache

    @wraps(update)
    def noted(
        self: Cache, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if torch.compiler.is_compiling():
            return update(self, key_states, value_states, layer_idx, *args, **kwargs)
        kept = getattr(self.layers[layer_idx], _ATTRIBUTE, None) if layer_idx < len(self.layers) else None
        _last.unchanged = (
            kept is not None and kept.mark is not None and kept.mark.holds(self.layers[layer_idx])
        )
        keys, values = update(self, key_states, value_states, layer_idx, *args, **kwargs)
        _last.keys, _last.layer = ref(keys), ref(self.layers[layer_idx])
        return keys, values

    @wraps(reorder)
    def reordered(self: CacheLayerMixin, beam_idx: Tensor) -> None:
        kept: Kept | None = getattr(self, _ATTRIBUTE, None)
        if kept is not None and kept.mark is not None and not kept.mark.holds(self):
            kept = None  # written to before it was reordered
        reorder(self, beam_idx)  # type: ignore[arg-type]
        if kept is not None:
            kept = None if kept.state is None else kept.reordered(beam_idx, self)
        setattr(self, _ATTRIBUTE, kept)

    Cache.update = noted  # type: ignore[method-assign]
    CacheLayerMixin.reorder_cache = reordered  # type: ignore[method-assign]


_follow_caches()
