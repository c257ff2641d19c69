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
the tree.
"""

from __future__ import annotations

import json
import stat
from math import prod
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from hrf.projections import Projections
from hrf.registry import Registered, UndefinedClass, find, is_own, name_of

__all__ = ["encode", "load_part"]

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


# Loading builds parts from classes that the running process has defined (`hrf.registry`), so a file cannot run
# code. A class joins by being defined; the module that defines it has to be imported before `load`.


Part = TypeVar("Part", bound=nn.Module)

_SIZES = ("n_projections", "n_coefficient_projections")  # rows of ω, in the arguments of parts


def load_part(path: str | PathLike[str], expected: type[Part], noun: str) -> Part:
    """Read a file that `encode` made of a module of the expected class; ``noun`` says what it is."""
    name = fspath(path)
    header, tensors = _read(name)
    try:
        return _rebuilt(header, tensors, expected, noun)
    except UndefinedClass as error:
        raise ValueError(f"{name} needs {error}") from error
    except Exception as error:  # constructors meet arguments that nobody has checked
        raise ValueError(f"{name} has a malformed hrf header: {error!r}") from error


def _read(name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the header and the tensors of a file."""
    _check_size(name)
    try:
        with safe_open(name, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    except OSError:
        raise
    except Exception as error:  # safetensors and PyTorch raise errors of many types
        raise ValueError(f"{name} is not a safetensors file: {error}") from error
    if "hrf" not in metadata:
        raise ValueError(f"{name} holds no hrf map: its header has no 'hrf' entry")
    try:
        header = json.loads(metadata["hrf"])
        version = header["format"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{name} has a malformed hrf header: {error!r}") from error
    if version != FORMAT:
        raise ValueError(f"{name} has format {version!r}; this version of hrf reads format {FORMAT}")
    return header, tensors


def _check_size(name: str) -> None:
    """Refuse what is no regular file, or too short for the header it announces, before anything waits or allocates."""
    status = Path(name).stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(f"{name} is a folder; expected a file that FeatureMap.save wrote")
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{name} is not a regular file; expected a file that FeatureMap.save wrote")
    with Path(name).open("rb") as file:
        announced = int.from_bytes(file.read(8), "little")
    if announced > status.st_size - 8:
        raise ValueError(
            f"{name} is not a safetensors file: it has {status.st_size} bytes and announces a header of {announced}"
        )


def _rebuilt(header: dict[str, Any], tensors: dict[str, Tensor], expected: type[Part], noun: str) -> Part:
    """Build the module, tie its shared projections and fill in its numbers."""
    for key in header["complex"]:
        # A copy: a file aligns numbers to 8 bytes, and LAPACK may crash on complex ones that are not aligned to 16.
        tensors[key] = torch.view_as_complex(tensors[key]).clone()
    with torch.random.fork_rng(devices=[]):  # parts are drawn only to be overwritten
        part = _built(header["map"], tensors)
    if not isinstance(part, expected):
        raise TypeError(f"it describes a {type(part).__name__}; expected {noun}")
    for first, *others in header["shared"]:
        for path in others:
            _tie(part, first, path)
    state = {k.removeprefix("state."): t for k, t in tensors.items() if k.startswith("state.")}
    for key, buffer in part.state_dict(keep_vars=True).items():
        if key in state:  # keep the precision the map was saved in
            buffer.data = buffer.data.to(state[key].dtype)
    part.load_state_dict(state)
    return part


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
    if is_own(cls):
        _check_counts(tree["arguments"], tensors)
    return cls(**{name: _built(value, tensors) for name, value in tree["arguments"].items()})


def _check_counts(arguments: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Refuse a part that would draw more numbers than the file holds: it stores every ω."""
    held = sum(tensor.numel() for tensor in tensors.values())
    common = [arguments.get(name) for name in ("dim", "heads")]
    for name in _SIZES:
        counts = [count for count in (*common, arguments.get(name)) if isinstance(count, int)]
        if counts and prod(max(1, abs(count)) for count in counts) > held:
            described = ", ".join(
                f"{key}={arguments[key]!r}" for key in ("dim", "heads", name) if key in arguments
            )
            raise ValueError(f"{described} asks for more numbers than the file holds ({held})")


def _tie(part: nn.Module, first: str, second: str) -> None:
    """Put the projections at one path at another, too."""
    parent, _, name = second.rpartition(".")
    for path in (first, second):
        if not isinstance(part.get_submodule(path), Projections):
            raise TypeError(f"{path} is shared; expected projections")
    setattr(part.get_submodule(parent), name, part.get_submodule(first))
