"""Maps from files; ``encoding.py`` writes them, and says how they are laid out.

Loading builds parts from classes that the running process has defined (`hrf.registry`), so a file cannot run
code. A class joins by being defined; the module that defines it has to be imported before `load`.
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
from torch import Tensor, nn

from hrf.features.base import FeatureMap
from hrf.features.encoding import FORMAT
from hrf.projections import Projections
from hrf.registry import UndefinedClass, find, is_own

__all__ = ["load", "load_part"]

Part = TypeVar("Part", bound=nn.Module)

_SIZES = ("n_projections", "n_coefficient_projections")  # rows of ω, in the arguments of parts


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
    return load_part(path, FeatureMap, "a feature map")


def load_part(path: str | PathLike[str], expected: type[Part], noun: str) -> Part:
    """Read a file that ``encoding.py`` made of a module of the expected class; ``noun`` says what it is."""
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
        buffer.data = buffer.data.to(state[key].dtype)  # keep the precision the map was saved in
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
