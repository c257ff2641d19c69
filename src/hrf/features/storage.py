"""Maps from files, as ``encoding.py`` lays them out.

Loading builds parts from classes that the running process has defined (`hrf.registry`), so a file cannot run
code. A class joins by being defined; the module that defines it has to be imported before `load`.
"""

from __future__ import annotations

import json
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hrf.features.base import FeatureMap
from hrf.features.encoding import FORMAT
from hrf.projections import Projections
from hrf.registry import UndefinedClass, find

__all__ = ["load"]


def load(path: str | PathLike[str]) -> FeatureMap:
    """Read a map that `FeatureMap.save` wrote; a ``ValueError`` says what is wrong with any other file.

    >>> import hrf, tempfile, torch
    >>> phi = hrf.Positive(4, n_projections=8)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     phi.save(f"{folder}/map.safetensors")
    ...     copy = hrf.load(f"{folder}/map.safetensors")
    >>> x = torch.randn(3, 4)
    >>> torch.equal(phi.queries(x), copy.queries(x))
    True
    """
    name = fspath(path)
    header, tensors = _read(name)
    try:
        return _rebuilt(header, tensors)
    except UndefinedClass as error:
        raise ValueError(f"{name} needs {error}") from error
    except (LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise ValueError(f"{name} has a malformed hrf header: {error!r}") from error


def _read(name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the header and the tensors of a file."""
    if Path(name).is_dir():
        raise IsADirectoryError(f"{name} is a folder; expected a file that FeatureMap.save wrote")
    try:
        with safe_open(name, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise ValueError(f"{name} is not a safetensors file: {error}") from error
    if "hrf" not in metadata:
        raise ValueError(f"{name} holds no hrf map: its header has no 'hrf' entry")
    try:
        header = json.loads(metadata["hrf"])
        version = header["format"]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{name} has a malformed hrf header: {error!r}") from error
    if version != FORMAT:
        raise ValueError(f"{name} has format {version!r}; this version of hrf reads format {FORMAT}")
    return header, tensors


def _rebuilt(header: dict[str, Any], tensors: dict[str, Tensor]) -> FeatureMap:
    """Build the map, tie its shared projections and fill in its numbers."""
    for key in header["complex"]:
        tensors[key] = torch.view_as_complex(tensors[key])
    with torch.random.fork_rng(devices=[]):  # parts are drawn only to be overwritten
        feature_map = _built(header["map"], tensors)
    if not isinstance(feature_map, FeatureMap):
        raise TypeError(f"it describes a {type(feature_map).__name__}; expected a feature map")
    for first, *others in header["shared"]:
        for path in others:
            _tie(feature_map, first, path)
    state = {k.removeprefix("state."): t for k, t in tensors.items() if k.startswith("state.")}
    for key, buffer in feature_map.state_dict(keep_vars=True).items():
        buffer.data = buffer.data.to(state[key].dtype)  # keep the precision the map was saved in
    feature_map.load_state_dict(state)
    return feature_map


def _built(tree: Any, tensors: dict[str, Tensor]) -> Any:
    """Build the value that a tree describes."""
    if isinstance(tree, list):
        return [_built(value, tensors) for value in tree]
    if not isinstance(tree, dict):
        return tree
    if "plain" in tree:
        return tree["plain"]
    if "tensor" in tree:
        return tensors[tree["tensor"]]
    cls = find(tree["class"], tree.get("module"))
    return cls(**{name: _built(value, tensors) for name, value in tree["arguments"].items()})


def _tie(feature_map: FeatureMap, first: str, second: str) -> None:
    """Put the projections at one path at another, too."""
    parent, _, name = second.rpartition(".")
    for path in (first, second):
        if not isinstance(feature_map.get_submodule(path), Projections):
            raise TypeError(f"{path} is shared; expected projections")
    setattr(feature_map.get_submodule(parent), name, feature_map.get_submodule(first))
