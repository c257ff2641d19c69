"""Attention functions for Hugging Face models, the maps they use, and files of fitted maps.

Each attention module keeps its maps in a dictionary ``hrf_maps``. They are no part of ``state_dict``: a seed determines
maps that are made, and fitted maps have files of their own. Maps move to the device of the queries.
"""

from __future__ import annotations

import itertools
import math
import sys
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Generator, Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from typing_extensions import override

from hrf._attention import Denominator, SummarisedAttention, attention
from hrf._attention.denominator import Rule
from hrf._attention.inputs import drop_keys, unit_values
from hrf._attention.operator import Operands, call_operator, tensors_of
from hrf.features.base import FeatureMap, load
from hrf.integrations.transformers.caches import layer_of
from hrf.integrations.transformers.interface import (
    FITTED,
    SUMMARISED,
    AttentionCall,
    add,
    check_name,
    has_window,
    refuse,
)
from hrf.nn import Maker, MapName, feature_map_for, maker_of
from hrf.numerics import can_look
from hrf.registry import Handled

__all__ = ["attend", "drop_maps", "fitted_maps", "load_maps", "register", "save_maps", "switch", "use_maps"]

_registrations = itertools.count()

# What attends: a map, the method of summaries, or, while a graph is being compiled, what makes maps when it runs.
Method: TypeAlias = "FeatureMap | SummarisedAttention | _Made"


def register(
    name: str = "hrf",
    feature_map: MapName | Maker | SummarisedAttention = "positive",
    *,
    seed: int = 0,
) -> None:
    """Register ``attn_implementation=name`` with Transformers: linear attention with maps that need no data.

    Works for encoders, decoders and cross-attention, with grouped queries, padding, causal masks and generation with a
    cache. Layers with a sliding window keep PyTorch's attention, with their mask, where a sequence is longer than the
    window. Masks and arguments that linear attention cannot honour raise an error. Dropout drops keys, as in
    `hrf.nn.MultiheadAttention`; ``output_attentions=True`` returns estimated weights, in quadratic time, if the model
    passes it to its layers (Llama does, GPT-2 does not). Models with attention of their own refuse the name when they
    are built; `check` says more.

    Args:
        name: name of the implementation; not a name of Transformers' own, such as ``"sdpa"``.
        feature_map: as in `hrf.nn.MultiheadAttention`, except that it cannot be a map itself. Each layer makes its
            own map at its first call, with one head per query head. Or a `hrf.SummarisedAttention`, which all
            layers share and which has no features.
        seed: seed of ω; layer i draws with ``seed + i``, so that a model has the same maps whenever it is loaded.

    >>> import transformers, hrf.integrations.transformers
    >>> hrf.integrations.transformers.register("hrf", "positive")
    >>> config = transformers.ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    >>> model = transformers.AutoModel.from_config(config, attn_implementation="hrf")
    """
    check_name(name)
    if isinstance(feature_map, SummarisedAttention):
        add(name, _Summarised(feature_map))
        return
    maker = maker_of(feature_map) if isinstance(feature_map, str) else feature_map
    if isinstance(maker, FeatureMap) or not callable(maker):
        raise TypeError(
            f"feature_map is {feature_map!r}; expected a name, a function of (dim, heads=..., generator=...) that "
            "returns a map, or a SummarisedAttention"
        )
    add(name, _Made(maker, seed))


class _Attention:
    """Attention function that Transformers calls in a layer; subclasses provide the map, or the method."""

    def __call__(self, *arguments: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
        call = AttentionCall.of(*arguments, **options)
        layer = layer_of(call)
        if layer is not None:
            layer.check(call)
        if call.pairs is not None or self.is_left_out(call.module):
            return call.exact().transpose(1, 2), None
        weights = None
        if call.wants_weights:
            weights = attend(call._replace(value=unit_values(call.key)), self.method_of(call))
        if call.dropout:
            call = call._replace(value=drop_keys(call.value, call.dropout))
        output = attend(call, self.method_of(call)) if layer is None else layer.attend(call, self.method_of)
        if can_look(output) and not _is_finite(output):
            method = type(self.method_of(call)).__name__
            raise ValueError(
                f"the attention of {type(call.module).__name__} is not finite: {method} is far too noisy for its "
                "queries and keys; expected a map fitted to them (see convert), or positive features"
            )
        return output.transpose(1, 2), weights

    def is_left_out(self, module: nn.Module) -> bool:
        """Return whether a layer keeps exact attention."""
        return False

    def method_of(self, call: AttentionCall) -> Method:
        raise NotImplementedError


class _Made(Handled, _Attention):
    """Attention with maps from a maker, one per module; in compiled graphs, one per index of a layer and size."""

    def __init__(self, maker: Maker, seed: int) -> None:
        self.maker, self.seed = maker, seed
        self.key = f"{next(_registrations)}"  # a name may be registered twice, with different maps
        self.compiled_maps: dict[tuple[object, ...], FeatureMap] = {}

    @override
    def method_of(self, call: AttentionCall) -> Method:
        if torch.compiler.is_compiling():
            return self
        maps = _maps(call.module)
        if self.key not in maps:
            maps[self.key] = self._make(_index(call.module), call.query)
        return maps[self.key]

    def map_for(self, layer: int, query: Tensor) -> FeatureMap:
        """Return the map of a layer when a compiled graph runs (`hrf._attention.operator.MapSource`)."""
        key = layer, query.shape[1], query.shape[3], query.device
        if key not in self.compiled_maps:
            self.compiled_maps[key] = self._make(layer, query).to(query.device)
        return self.compiled_maps[key]

    def _make(self, layer: int, query: Tensor) -> FeatureMap:
        generator = Generator().manual_seed(self.seed + layer)
        return feature_map_for(self.maker, query.shape[3], query.shape[1], generator)


class _Fitted(_Attention):
    """Attention with maps from `convert` or `load_maps`; layers with a window may have none."""

    @override
    def is_left_out(self, module: nn.Module) -> bool:
        return FITTED not in _maps(module) and has_window(module)

    @override
    def method_of(self, call: AttentionCall) -> Method:
        name, maps = type(call.module).__name__, _maps(call.module)
        if FITTED not in maps:
            raise ValueError(f"this {name} has no fitted map; expected one from convert or load_maps")
        phi, (_, heads, _, dim) = maps[FITTED], call.query.shape
        if phi.dim != dim or phi.heads not in (None, heads):
            raise ValueError(
                f"the map of this {name} is for {phi.heads} heads of {phi.dim} dimensions, the model "
                f"has {heads} heads of {dim}; expected maps fitted to this model"
            )
        return phi


class _Summarised(_Attention):
    """Attention by summaries."""

    def __init__(self, method: SummarisedAttention) -> None:
        self.method = method

    @override
    def method_of(self, call: AttentionCall) -> Method:
        if not call.is_causal or self.method.rotary is not None or torch.compiler.is_compiling():
            return self.method
        methods = call.module.__dict__.setdefault("hrf_methods", {})
        if self not in methods:
            methods[self] = self.method.with_rotary(rotary_angles(call.module))
        return methods[self]


def rotary_angles(module: nn.Module) -> Tensor | None:
    """Return the angles per position of the rotary embeddings of an attention module's model, ``(half,)``.

    ``None`` where its configuration names none, or where its planes are other than (k, k + half).
    """
    rotate = getattr(sys.modules[type(module).__module__], "rotate_half", None)
    config: Any = getattr(module, "config", None)
    parameters = getattr(config, "rope_parameters", None) or {}
    kind = getattr(module, "layer_type", None)
    if kind in parameters:  # one set of parameters per kind of layer
        parameters = parameters[kind]
    if rotate is None or "rope_theta" not in parameters:
        return None
    if rotate(torch.arange(4.0)).tolist() != [-2.0, -3.0, 0.0, 1.0]:
        return None
    name = parameters.get("rope_type", "default")
    if name in ROPE_INIT_FUNCTIONS:
        own = {"layer_type": kind} if kind in config.rope_parameters else {}
        found: Tensor = ROPE_INIT_FUNCTIONS[name](config, torch.device("cpu"), **own)[0]
        return found
    dim = getattr(module, "head_dim", None) or config.hidden_size // config.num_attention_heads
    half = int(dim * parameters.get("partial_rotary_factor", 1.0)) // 2
    return parameters["rope_theta"] ** (-torch.arange(half, dtype=torch.double) / half)


def _maps(module: nn.Module) -> dict[str, FeatureMap]:
    if not hasattr(module, "hrf_maps"):
        module.__dict__["hrf_maps"] = {}  # no submodule
    maps: dict[str, FeatureMap] = module.hrf_maps  # type: ignore[assignment]
    return maps


add(FITTED, _Fitted())
add(SUMMARISED, _Summarised(SummarisedAttention()))


def _is_finite(output: Tensor) -> bool:
    """Return whether all outputs are finite; a sum is far faster than a look at each."""
    return math.isfinite(float(output.detach().sum())) or bool(output.isfinite().all())


def _index(module: nn.Module) -> int:
    return getattr(module, "layer_idx", None) or 0


def attend(call: AttentionCall, method: Method, denominator: Rule | Denominator = "clamp") -> Tensor:
    """Run `hrf.attention` for a call: ``(B, H, L, d_v)``."""
    query, paired = call.rows()
    if isinstance(method, SummarisedAttention):
        output = attention(
            call.query,
            call.key,
            call.value,
            method,
            is_causal=call.is_causal,
            key_padding_mask=call.ignore,
            query_padding_mask=call.ignore if call.is_self else None,
            scale=call.scale,
        )
    elif torch.compiler.is_compiling():
        learned, constants = tensors_of(method) if isinstance(method, FeatureMap) else ((), ())
        operands = Operands(
            *(query, call.key, call.value, method.handle, learned, constants),
            key_padding_mask=call.ignore,
            layer=_index(call.module),
            is_causal=paired,
            fixed_centres=call.is_causal,
            scale=call.scale,
        )
        output = call_operator(operands)
    else:
        assert isinstance(method, FeatureMap)
        phi = method.to(query.device)
        output = attention(
            query,
            call.key,
            call.value,
            # A single query attends to all keys so far and is no causal call, but centres must stay for it, too.
            phi.with_fixed_centres() if call.is_causal else phi,
            is_causal=paired,
            key_padding_mask=call.ignore,
            scale=call.scale,
            denominator=denominator,
        )
    return output[:, :, -call.query.shape[2] :]


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


def drop_maps(model: PreTrainedModel) -> None:
    """Forget the fitted maps of a model."""
    for module in model.modules():
        module.__dict__.get("hrf_maps", {}).pop(FITTED, None)


def fitted_maps(model: PreTrainedModel) -> dict[str, FeatureMap]:
    """Return the fitted maps of a model by the names of its modules."""
    maps = {name: module.__dict__.get("hrf_maps", {}) for name, module in model.named_modules()}
    return {name: own[FITTED] for name, own in maps.items() if FITTED in own}


# Files of fitted maps, one per layer.


# Names by which attention modules, or else their configurations, know their sizes.
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head")
_DIM = ("head_dim", "attention_head_size")


def save_maps(model: PreTrainedModel, folder: str | PathLike[str]) -> None:
    """Write the fitted maps of a converted model, one ``.safetensors`` file per layer; save the model as always."""
    found = fitted_maps(model)
    if not found:
        raise ValueError(f"this {type(model).__name__} has no fitted maps; expected a converted model")
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, feature_map in found.items():
        feature_map.save(Path(folder) / f"{name}.safetensors")


def load_maps(model: PreTrainedModel, folder: str | PathLike[str]) -> None:
    """Let a model use the maps that `save_maps` wrote. Maps of another model are refused, and nothing changes."""
    paths = sorted(Path(folder).glob("*.safetensors"))
    if not paths:
        raise FileNotFoundError(f"{folder} has no .safetensors files; expected the files of save_maps")
    refuse(model)
    modules = dict(model.named_modules())
    _check_names(model, modules, [path.stem for path in paths], folder)
    maps = {path.stem: load(path) for path in paths}
    for name, feature_map in maps.items():
        _check_sizes(name, modules[name], feature_map)
    use_maps(model, maps)


def _check_names(
    model: PreTrainedModel, modules: dict[str, nn.Module], names: list[str], folder: str | PathLike[str]
) -> None:
    """Refuse files that belong to no attention module, and attention modules without a file."""
    kinds = {type(modules[name]) for name in names if name in modules and _is_attention(modules[name])}
    strange = [name for name in names if name not in modules or type(modules[name]) not in kinds]
    expected = f"expected the files that save_maps wrote for this {type(model).__name__}"
    if strange:
        raise ValueError(
            f"{folder} has maps for {len(names)} layers, but this model has no attention layer {_listed(strange)}; "
            f"{expected}"
        )
    missing = [
        name
        for name, module in modules.items()
        if type(module) in kinds and name not in names and not has_window(module)
    ]
    if missing:
        raise ValueError(
            f"{folder} has maps for {len(names)} layers and none for the attention layer {_listed(missing)}; {expected}"
        )


def _is_attention(module: nn.Module) -> bool:
    return "attention" in type(module).__name__.lower()


def _listed(names: list[str]) -> str:
    """Name the first, and count the rest."""
    return f"{names[0]!r}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _check_sizes(name: str, module: nn.Module, feature_map: FeatureMap) -> None:
    """Refuse a map for another number of heads or another dimension, where the module tells its own."""
    for what, received, expected in (
        ("heads", feature_map.heads, _size(module, _HEADS)),
        ("dimensions per head", feature_map.dim, _size(module, _DIM)),
    ):
        if None not in (received, expected) and received != expected:
            raise ValueError(
                f"the map for {name!r} is for {received} {what}, the layer has {expected}; expected maps fitted to "
                "this model"
            )


def _size(module: nn.Module, names: tuple[str, ...]) -> int | None:
    """Return the first size of these names that a module or its configuration has, or ``None``."""
    places: tuple[Any, ...] = (module, getattr(module, "config", None))
    found = (getattr(place, name, None) for place in places for name in names)
    return next((size for size in found if isinstance(size, int)), None)
