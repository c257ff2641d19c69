"""Maps in files: safetensors for the numbers, a JSON header for the structure, no pickle.

The header names the format's version and, for every part, its class and its constructor
arguments; parts that share projections refer to one entry. Loading builds the parts from a
fixed list of classes, so a file cannot run code.
"""

from __future__ import annotations

import json
from os import PathLike, fspath
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
    seen: dict[nn.Module, int] = {}

    def encode(value: Any) -> Any:
        if isinstance(value, nn.Module):
            if value in seen:
                return {"same_as": seen[value]}
            name = type(value).__name__
            if _CLASSES.get(name) is not type(value):
                raise TypeError(f"{name} is not a class of hrf; only its own maps can be saved")
            seen[value] = len(seen)
            arguments = value.config()  # type: ignore[operator]
            return {"class": name, "arguments": {k: encode(v) for k, v in arguments.items()}}
        if isinstance(value, Tensor):
            tensors[f"argument.{len(tensors)}"] = value.detach().clone()
            return {"tensor": f"argument.{len(tensors) - 1}"}
        if isinstance(value, dict):
            return {"plain": value}
        return [encode(v) for v in value] if isinstance(value, list | tuple) else value

    header = {"format": FORMAT, "map": encode(feature_map)}
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
        for key in header["complex"]:
            tensors[key] = torch.view_as_complex(tensors[key])
        with torch.random.fork_rng(devices=[]):  # parts are drawn only to be overwritten
            feature_map = _decode(header["map"], tensors)
        state = {k.removeprefix("state."): t for k, t in tensors.items() if k.startswith("state.")}
        for key, buffer in feature_map.state_dict(keep_vars=True).items():
            buffer.data = buffer.data.to(state[key].dtype)  # keep the precision the map was saved in
        feature_map.load_state_dict(state)
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise ValueError(f"{name} has a malformed hrf header: {error!r}") from error
    if not isinstance(feature_map, FeatureMap):
        raise ValueError(f"{name} holds a {type(feature_map).__name__}; expected a feature map")
    return feature_map


def _decode(tree: Any, tensors: dict[str, Tensor]) -> Any:
    built: list[Any] = []

    def decode(value: Any) -> Any:
        if isinstance(value, list):
            return [decode(v) for v in value]
        if not isinstance(value, dict):
            return value
        if "plain" in value:
            return value["plain"]
        if "tensor" in value:
            return tensors[value["tensor"]]
        if "same_as" in value:
            return built[value["same_as"]]
        cls = _CLASSES[value["class"]]
        index = len(built)
        built.append(None)
        arguments = {k: decode(v) for k, v in value["arguments"].items()}
        built[index] = cls(**arguments)
        return built[index]

    return decode(tree)
