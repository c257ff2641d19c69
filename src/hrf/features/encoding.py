"""Maps as bytes: safetensors for the numbers, a JSON header for the structure, no pickle.

The header, under the key ``hrf`` of the metadata, is an object with four entries:

===========  =================================================================================
``format``   `FORMAT`
``map``      a tree: ``{"class": name, "arguments": {...}}`` per part, ``{"tensor": key}`` per tensor,
             ``{"plain": {...}}`` per dictionary; other values stand for themselves. Classes that hrf does
             not define also have a ``"module"``, which only serves to say what is missing.
``shared``   lists of paths, as of ``named_modules``, at which the same `Projections` object stands
``complex``  keys of complex tensors, stored with a last axis of two: real and imaginary part
===========  =================================================================================

Tensors that start with ``state.`` are the map's state dict, tensors that start with ``argument.`` belong to
the tree. ``storage.py`` reads all of this.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from hrf.projections import Projections
from hrf.registry import Registered, is_own, name_of

__all__ = ["FORMAT", "encode"]

FORMAT = 1


def encode(feature_map: nn.Module) -> bytes:
    """Return the content of a ``.safetensors`` file that holds the map."""
    tensors = {f"state.{name}": value.detach().clone() for name, value in feature_map.state_dict().items()}
    tree = _tree(feature_map, tensors)
    complex_keys = [key for key, tensor in tensors.items() if tensor.is_complex()]
    header = {"format": FORMAT, "map": tree, "shared": _shared(feature_map), "complex": complex_keys}
    stored = {k: (torch.view_as_real(t) if t.is_complex() else t).contiguous() for k, t in tensors.items()}
    return save(stored, metadata={"hrf": json.dumps(header)})


def _tree(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Describe a value; tensors in it are added to ``tensors``."""
    if isinstance(value, nn.Module):
        return _part(value, tensors)
    if isinstance(value, Tensor):
        key = f"argument.{len(tensors)}"
        tensors[key] = value.detach().clone()
        return {"tensor": key}
    if isinstance(value, dict):
        return {"plain": value}
    if isinstance(value, list | tuple):
        return [_tree(v, tensors) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"{value!r} of type {type(value).__name__} cannot be saved; expected numbers, strings, tensors, maps, "
        "or lists of them in config()"
    )


def _part(part: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Describe a map, a coefficient or projections."""
    name = name_of(type(part))
    assert isinstance(part, Registered)
    tree = {"class": name, "arguments": {k: _tree(v, tensors) for k, v in part.config().items()}}
    return tree if is_own(type(part)) else tree | {"module": type(part).__module__}


def _shared(feature_map: nn.Module) -> list[list[str]]:
    """List the paths to each `Projections` object that stands in more than one place."""
    paths: dict[nn.Module, list[str]] = {}
    for path, module in feature_map.named_modules(remove_duplicate=False):
        if isinstance(module, Projections):
            paths.setdefault(module, []).append(path)
    return [places for places in paths.values() if len(places) > 1]
