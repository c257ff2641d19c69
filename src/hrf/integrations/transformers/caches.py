"""Caches of Transformers that attend themselves: states of linear attention, and summaries of finished blocks.

Causal linear attention needs only sums over the keys so far, `hrf.AttentionState`: a token costs the same at position
100 and at position 100,000, and memory does not grow (`LinearCache`). Summarised attention keeps the tokens, and reads
few of them (`SummarisedCache`). Attention modules of Transformers hand new keys and values to their cache, and what it
returns to the attention function. A layer of these caches returns the new keys as they are, with a reference to itself
as an attribute; the attention function finds the layer there (`layer_of`) and lets it attend.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from os import PathLike, fspath
from pathlib import Path
from typing import Any
from weakref import ref

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer
from typing_extensions import Self, override

from hrf import atomic_write
from hrf._attention import AttentionState, SummarisedAttention
from hrf._attention.operator import uncompiled
from hrf._attention.summarised.cache import SummarisedState
from hrf.features.base import FeatureMap
from hrf.features.files import encode
from hrf.integrations.transformers.interface import AttentionCall, is_ours

__all__ = ["LinearCache", "SummarisedCache", "layer_of"]

_ATTRIBUTE = "hrf_layer"  # of keys: a weak reference to the layer that returned them

_HEADER = "hrf_cache"  # of a file: facts about each layer, in JSON


def layer_of(call: AttentionCall) -> AttendingLayer | None:
    """Return the layer of a cache of ours that the keys of a call come from, or ``None``."""
    found = getattr(call.key, _ATTRIBUTE, None)
    layer: AttendingLayer | None = None if found is None else found()
    return layer


class AttendingLayer(CacheLayerMixin):
    """One layer of a cache that attends itself.

    Attributes:
        length: number of tokens so far.
    """

    is_sliding = False
    supports_early_init = False
    name = ""  # of the cache

    def __init__(self) -> None:
        super().__init__()
        self.length = 0
        self._unread = 0  # tokens that `update` returned and `attend` has not added yet

    @override
    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: the first call of `attend` makes the state."""

    @override
    @uncompiled
    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Return the new keys and values, for the attention function to hand to `attend`."""
        if self._unread:
            raise RuntimeError(
                f"{self._unread} tokens of a {self.name} reached no attention of hrf, or only after their keys were "
                "changed; expected a model that hands the keys of its cache to the attention function as they are, "
                "with an attn_implementation of hrf or after convert; use a DynamicCache"
            )
        self.length += key_states.shape[-2]
        self._unread = key_states.shape[-2]
        setattr(key_states, _ATTRIBUTE, ref(self))
        return key_states, value_states

    @uncompiled
    def attend(self, call: AttentionCall, method_of: Callable[[AttentionCall], object]) -> Tensor:
        """Add the keys of a call, and attend from its queries to all tokens so far.

        Args:
            call: a call that `check` lets pass.
            method_of: returns the map or the method for the call.
        """
        self._unread = 0
        return self._attend(call, method_of(call))

    def _attend(self, call: AttentionCall, method: object) -> Tensor:
        raise NotImplementedError

    def check(self, call: AttentionCall) -> None:
        """Refuse calls that the layer cannot serve."""
        module = type(call.module).__name__
        if call.pairs is not None:
            raise ValueError(
                f"this {module} has a sliding window, and the {self.name} holds another layer for it; expected a "
                f"{self.name} made for this model, or a DynamicCache"
            )
        if not call.is_causal:
            raise ValueError(
                f"this {module} is not causal, as in cross-attention, and a {self.name} is for causal attention; "
                f"expected past_key_values=EncoderDecoderCache({self.name}(model), DynamicCache())"
            )
        if call.wants_weights:
            raise ValueError(
                f"output_attentions asks for the weights of all keys, which a {self.name} does not hold; expected "
                "another cache, or use_cache=False"
            )
        if self._unread != call.key.shape[2]:
            raise ValueError(
                f"this {module} attends to keys that a {self.name} has added already, of another layer or "
                "for another part of this one; expected one attention per key; use a DynamicCache"
            )

    @override
    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of keys that a mask is for, the new ones only, and the number of those before."""
        return query_length, self.length

    @override
    def get_seq_length(self) -> int:
        """Return the number of tokens so far."""
        return self.length

    @override
    def get_max_length(self) -> int:
        """Return −1: there is no limit."""
        return -1

    get_max_cache_shape = get_max_length  # its name before Transformers 5.13

    def tensors(self) -> dict[str, Tensor]:
        """Return what the layer holds as tensors, batch first; empty before the first token."""
        raise NotImplementedError

    def facts(self) -> dict[str, Any]:
        """Return what a file says about the layer, beside its tensors."""
        raise NotImplementedError

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Continue from what `tensors` and `facts` returned."""
        raise NotImplementedError

    @override
    def reset(self) -> None:
        """Forget all tokens."""
        self.__init__()  # type: ignore[misc]

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each batch element."""
        if self.length:
            self.reorder_cache(self._rows().repeat_interleave(repeats))  # type: ignore[arg-type]

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the batch elements of these indices."""
        if self.length:
            self.reorder_cache(self._rows()[indices])  # type: ignore[arg-type]

    def _rows(self) -> Tensor:
        first = next(iter(self.tensors().values()))
        return torch.arange(len(first), device=first.device)


class LinearLayer(AttendingLayer):
    """One layer of a `LinearCache`: the state after all tokens so far."""

    name = "LinearCache"

    def __init__(self) -> None:
        super().__init__()
        self._state: AttentionState | None = None
        self._map: FeatureMap | None = None
        # From a file, until a call brings the map.
        self._loaded: dict[str, Tensor] = {}
        self._digest: str | None = None

    @override
    def _attend(self, call: AttentionCall, method: object) -> Tensor:
        if not isinstance(method, FeatureMap):
            raise TypeError(
                f"a LinearCache came with {type(method).__name__}, which has no features; expected a SummarisedCache"
            )
        self._check_map(method)
        if self._state is None:
            phi = method.to(call.query.device).with_fixed_centres()
            self._state = AttentionState(phi, scale=call.scale).load(self._loaded)
            self._loaded = {}
        return self._state.prefill(call.query, call.key, call.value, key_padding_mask=call.ignore)

    def _check_map(self, feature_map: FeatureMap) -> None:
        """Refuse to go on with another map than the one that the state was written with."""
        if feature_map is self._map:
            return
        known = self._digest if self._map is None else _digest(self._map)
        if known not in (None, _digest(feature_map)):
            raise ValueError(
                "the LinearCache was filled with another feature map; expected the maps it was filled with, or an "
                "empty cache"
            )
        self._map = feature_map

    @override
    def tensors(self) -> dict[str, Tensor]:
        return dict(self._loaded) if self._state is None else self._state.tensors()

    @override
    def facts(self) -> dict[str, Any]:
        return {"tokens": self.length, "map": self._digest if self._map is None else _digest(self._map)}

    @override
    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        self.reset()
        self.length, self._digest, self._loaded = facts["tokens"], facts["map"], tensors

    def crop(self, tokens_to_remove: int) -> None:
        """Do nothing: `LinearCache.crop` refuses to take tokens back."""

    @override
    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep the batch elements ``beam_idx``, in that order and as often: for beam search."""
        if self._state is not None:
            self._state = self._state.reorder(beam_idx)
        self._loaded = {name: tensor.index_select(0, beam_idx) for name, tensor in self._loaded.items()}

    def __deepcopy__(self, memo: dict[int, Any]) -> LinearLayer:
        """Copy the state; the map is shared."""
        other = copy.copy(self)
        if self._state is not None:
            other._state = self._state.detach()
        return other


class SummarisedLayer(AttendingLayer):
    """One layer of a `SummarisedCache`: tokens so far, and the blocks that steps have needed."""

    name = "SummarisedCache"
    is_croppable = True

    def __init__(self) -> None:
        super().__init__()
        self._state: SummarisedState | None = None
        self._loaded: dict[str, Tensor] = {}

    @override
    def _attend(self, call: AttentionCall, method: object) -> Tensor:
        if not isinstance(method, SummarisedAttention):
            raise TypeError(
                f"a SummarisedCache came with {type(method).__name__}, a feature map; expected a LinearCache"
            )
        if self._state is None:
            self._state = SummarisedState.of(method, call.query.shape[-1], call.scale).load(self._loaded)
            self._state.crop(self.length - call.key.shape[2])  # since it was loaded
            self._loaded = {}
        dtype = torch.promote_types(call.query.dtype, torch.float32)
        query, key, value = (u.to(dtype) for u in (call.query, call.key, call.value))
        return self._state.attend(query, key, value, call.ignore).to(call.query.dtype)

    @override
    def tensors(self) -> dict[str, Tensor]:
        return dict(self._loaded) if self._state is None else self._state.tensors()

    @override
    def facts(self) -> dict[str, Any]:
        return {"tokens": self.length}

    @override
    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        self.reset()
        self.length, self._loaded = facts["tokens"], tensors

    def nbytes(self) -> dict[str, int]:
        """Return the bytes of keys and values, of stored queries, and of finished blocks."""
        return {} if self._state is None else self._state.nbytes()

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens, as many as the negative number says."""
        if tokens_to_remove > 0:
            raise ValueError(f"crop got {tokens_to_remove}; expected minus the number of tokens to forget")
        self.length = max(self.length + tokens_to_remove, 0)
        if self._state is not None:
            self._state.crop(self.length)

    @override
    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep the batch elements ``beam_idx``, in that order and as often: for beam search."""
        if self._state is not None:
            self._state.reorder(beam_idx)
        self._loaded = {name: tensor.index_select(0, beam_idx) for name, tensor in self._loaded.items()}

    def __deepcopy__(self, memo: dict[int, Any]) -> SummarisedLayer:
        """Copy the tokens; finished blocks, which never change, are shared."""
        other = copy.copy(self)
        if self._state is not None:
            other._state = self._state.copy()
        return other


class AttendingCache(Cache):
    """A cache whose layers attend themselves; layers with a window are those of Transformers' `DynamicCache`."""

    kind: type[AttendingLayer]

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config.get_text_config(decoder=True)
        name = config._attn_implementation
        if not is_ours(name):
            raise ValueError(
                f"the attention of this {type(model).__name__} is {name!r}; a {type(self).__name__} expects attention "
                "by hrf (attn_implementation='hrf' or 'hrf-summarised', or convert)"
            )
        layers = DynamicCache(config=config).layers
        super().__init__(layers=[self.kind() if type(layer) is DynamicLayer else layer for layer in layers])

    def save(self, path: str | PathLike[str]) -> None:
        """Write the cache to a ``.safetensors`` file."""
        tensors: dict[str, Tensor] = {}
        facts: list[dict[str, Any]] = []
        for index, layer in enumerate(self.layers):
            own, about = _packed(layer)
            tensors |= {f"{index}.{name}": tensor.contiguous() for name, tensor in own.items()}
            facts.append(about)
        atomic_write.write(Path(path), save(tensors, metadata={_HEADER: json.dumps(facts)}))

    @classmethod
    def load(cls, path: str | PathLike[str], model: PreTrainedModel) -> Self:
        """Read what `save` wrote, for the same model with the same attention."""
        with safe_open(fspath(path), framework="pt", device=str(model.device)) as file:
            header = (file.metadata() or {}).get(_HEADER)
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        if header is None:
            raise ValueError(
                f"{fspath(path)} holds no {cls.__name__}; expected a file that {cls.__name__}.save wrote"
            )
        cache, facts = cls(model), json.loads(header)
        if [about["kind"] for about in facts] != [type(layer).__name__ for layer in cache.layers]:
            raise ValueError(
                f"{fspath(path)} has {len(facts)} layers, which do not fit the {len(cache.layers)} layers of a "
                f"{cls.__name__} for this {type(model).__name__}; expected the model that the cache was saved with"
            )
        for index, (layer, about) in enumerate(zip(cache.layers, facts, strict=True)):
            start = f"{index}."
            own = {name.removeprefix(start): t for name, t in found.items() if name.startswith(start)}
            _unpack(layer, own, about)
        return cache


class LinearCache(AttendingCache):
    """Cache of a model with attention by `hrf`: states of feature maps in place of keys and values.

    Decoding a token costs the same at any position, and memory does not grow with the length, except for exact pairs of
    a `hrf.ClusteredHybrid`, which need the keys. Serves greedy and sampled generation, beam search, padding, prompts in
    pieces (``prefill_chunk_size``), and copies: ``copy.deepcopy`` of a cache continues a prompt more than once.

    Layers with a sliding window keep the keys and values of the window, as in Transformers' `DynamicCache`, and so do
    layers of hybrid models that are more than attention. Single tokens cannot be taken out of a sum: `crop`, and with
    it assisted decoding, is refused. Models that change keys after the cache has returned them (multi-head latent
    attention), or use them twice, are refused no later than in their second call; they work with a `DynamicCache`.

    Args:
        model: model of Transformers that uses `hrf` (see `register` and `convert`).

    >>> import torch, transformers
    >>> from hrf.integrations.transformers import LinearCache, register
    >>> register("hrf", "positive")
    >>> sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    >>> config = transformers.LlamaConfig(**sizes)
    >>> model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="hrf")
    >>> cache, prompt = LinearCache(model), torch.randint(64, (1, 20))
    >>> text = model.generate(prompt, past_key_values=cache, max_new_tokens=5, min_new_tokens=5)
    >>> cache.get_seq_length()
    24
    """

    kind = LinearLayer

    @override
    def crop(self, tokens_to_remove: int) -> None:
        """Refuse to take tokens back."""
        if tokens_to_remove and self.get_seq_length():
            raise NotImplementedError(
                "a LinearCache holds sums over all tokens, and none can be taken back; copy the cache before these "
                "tokens (copy.deepcopy) and continue from the copy, or use a DynamicCache"
            )
        super().crop(tokens_to_remove)


class SummarisedCache(AttendingCache):
    """Cache of a decoder with summarised attention: keys and values, with summaries of the blocks that are finished.

    A new token reads the summaries of its cell in each block, the keys that these would get wrong, and the last 1,024
    tokens or less, in place of all keys. Continuing from the cache equals attending to the whole sequence, to rounding.
    Serves greedy and sampled generation, beam search, padding, prompts in pieces (``prefill_chunk_size``),
    `crop` to an earlier length, copies (``copy.deepcopy``), and files.

    Keys and values are kept in float32. Every fourth query is kept, too, and summaries take half to twice the memory of
    keys and values, per query head; `SummarisedCache.nbytes` counts. Layers with a sliding window keep those of
    Transformers' `DynamicCache`.

    Args:
        model: decoder of Transformers with ``attn_implementation="hrf-summarised"``.

    >>> import torch, transformers
    >>> from hrf.integrations.transformers import SummarisedCache
    >>> sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    >>> config = transformers.LlamaConfig(**sizes)
    >>> model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="hrf-summarised")
    >>> cache, prompt = SummarisedCache(model), torch.randint(64, (1, 20))
    >>> text = model.generate(prompt, past_key_values=cache, max_new_tokens=5, min_new_tokens=5)
    >>> cache.crop(-4)
    >>> cache.get_seq_length()
    20
    """

    kind = SummarisedLayer

    def nbytes(self) -> dict[str, int]:
        """Return the bytes of keys and values, of stored queries, and of finished blocks, over all layers."""
        counts: Counter[str] = Counter()
        for layer in self.layers:
            counts.update(layer.nbytes() if isinstance(layer, SummarisedLayer) else {})
        return dict(counts)


def _digest(feature_map: FeatureMap) -> str:
    return sha256(encode(feature_map)).hexdigest()


def _packed(layer: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a layer, and facts about it for the header of a file."""
    kind = {"kind": type(layer).__name__}
    if isinstance(layer, AttendingLayer):
        return layer.tensors(), kind | layer.facts()
    if isinstance(layer, DynamicSlidingWindowLayer):
        found = {"keys": layer.keys, "values": layer.values}
        tensors = {name: tensor for name, tensor in found.items() if tensor is not None}
        return tensors, kind | {"tokens": layer.get_seq_length()}
    raise TypeError(f"a {type(layer).__name__} cannot be saved; expected layers of states or sliding windows")


def _unpack(layer: Any, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Fill a new layer with what `_packed` returned."""
    if isinstance(layer, AttendingLayer):
        layer.restore(tensors, facts)
    elif tensors:
        layer.update(tensors["keys"], tensors["values"])
        layer.cumulative_length = facts["tokens"]
