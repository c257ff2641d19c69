"""Maps in files: safetensors for the numbers, a JSON header for the structure, no pickle.

The header names the format's version and, for every part, its class and its constructor
arguments, and which of the parts share projections. Loading builds the parts from a fixed list
of classes, so a file cannot run code.
"""

from __future__ import annotations

import json
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from hrf.features import asymmetric, clustered, coefficients, exponential, gaussian, hybrid, mixture, optimal
from hrf.features.base import FeatureMap
from hrf.projections import Projections

__all__ = ["FORMAT", "load", "save"]

FORMAT = 1

_CLASSES: dict[str, type[nn.Module]] = {
    cls.__name__: cls
    for cls in (
        Projections,
        exponential.Exponential,
        exponential.Positive,
        exponential.Trigonometric,
        optimal.OptimalPositive,
        optimal.DenseExponential,
        asymmetric.AsymmetricExponential,
        gaussian.GaussianKernel,
        hybrid.Hybrid,
        hybrid.AngularHybrid,
        hybrid.GaussianHybrid,
        clustered.ClusteredHybrid,
        mixture.GaussianMixture,
        coefficients.Angular,
        coefficients.FromFeatureMap,
        coefficients.Gaussian,
        coefficients.Indicator,
    )
}


def save(feature_map: FeatureMap, path: str | PathLike[str]) -> None:
    """Write a map to a ``.safetensors`` file."""
    tensors = {f"state.{name}": value.detach().clone() for name, value in feature_map.state_dict().items()}

    def encode(value: Any) -> Any:
        if isinstance(value, nn.Module):
            name = type(value).__name__
            if _CLASSES.get(name) is not type(value):
                raise TypeError(f"{name} is not a class of hrf; only its own maps can be saved")
            arguments = value.config()  # type: ignore[operator]
            return {"class": name, "arguments": {k: encode(v) for k, v in arguments.items()}}
        if isinstance(value, Tensor):
            tensors[f"argument.{len(tensors)}"] = value.detach().clone()
            return {"tensor": f"argument.{len(tensors) - 1}"}
        if isinstance(value, dict):
            return {"plain": value}
        return [encode(v) for v in value] if isinstance(value, list | tuple) else value

    header = {"format": FORMAT, "map": encode(feature_map), "shared": _shared(feature_map)}
    # safetensors has no complex numbers: a last axis of two holds them.
    stored = {k: (torch.view_as_real(t) if t.is_complex() else t).contiguous() for k, t in tensors.items()}
    header["complex"] = [name for name, tensor in tensors.items() if tensor.is_complex()]
    save_file(stored, fspath(path), metadata={"hrf": json.dumps(header)})


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
    try:
        return _rebuilt(header, tensors)
    except (LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise ValueError(f"{name} has a malformed hrf header: {error!r}") from error


def _rebuilt(header: dict[str, Any], tensors: dict[str, Tensor]) -> FeatureMap:
    for key in header["complex"]:
        tensors[key] = torch.view_as_complex(tensors[key])
    with torch.random.fork_rng(devices=[]):  # parts are drawn only to be overwritten
        feature_map = _decode(header["map"], tensors)
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


def _shared(feature_map: FeatureMap) -> list[list[str]]:
    """Paths to each `Projections` object that stands in more than one place."""
    paths: dict[nn.Module, list[str]] = {}
    for path, module in feature_map.named_modules(remove_duplicate=False):
        if isinstance(module, Projections):
            paths.setdefault(module, []).append(path)
    return [places for places in paths.values() if len(places) > 1]


def _tie(feature_map: FeatureMap, first: str, second: str) -> None:
    """Put the projections at one path at another, too."""
    parent, _, name = second.rpartition(".")
    for path in (first, second):
        if not isinstance(feature_map.get_submodule(path), Projections):
            raise TypeError(f"{path} is shared; expected projections")
    setattr(feature_map.get_submodule(parent), name, feature_map.get_submodule(first))


def _decode(value: Any, tensors: dict[str, Tensor]) -> Any:
    """What `save` encoded."""
    if isinstance(value, list):
        return [_decode(v, tensors) for v in value]
    if not isinstance(value, dict):
        return value
    if "plain" in value:
        return value["plain"]
    if "tensor" in value:
        return tensors[value["tensor"]]
    arguments = {k: _decode(v, tensors) for k, v in value["arguments"].items()}
    return _CLASSES[value["class"]](**arguments)
