"""Read arrays from files, one vector per row; a ``ValueError`` says in one sentence what is wrong with a file.

Kinds: ``.npy``, ``.npz``, ``.safetensors`` and ``.csv``. One of several arrays in a file is ``FILE:NAME``.
"""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO

import numpy as np
import torch
from numpy.lib import format as npy
from safetensors.torch import load_file
from torch import Generator, Tensor

from hrf.checks import not_finite

__all__ = ["read_array", "wine"]

_WINE_NORM = 1.0
_MOST_INFLATED = 1032  # zlib never makes a file longer than this many times


def read_array(location: str, *, heads: bool = False) -> Tensor:
    """Read a finite matrix ``(N, d)`` in float64.

    Args:
        location: a path, or ``FILE:NAME`` for one of several arrays.
        heads: whether there may be one matrix per head, ``(H, N, d)``.
    """
    path, name = _split_location(location)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"{path} ends in {path.suffix!r}; expected one of {', '.join(_READERS)}")
    if not path.is_file():
        raise ValueError(f"{path} is not a file" if path.exists() else f"{path} does not exist")
    array = _read(reader, path, name)
    if array.is_complex() or array.ndim not in ((2, 3) if heads else (2,)):
        kind = "complex numbers" if array.is_complex() else "numbers"
        raise ValueError(
            f"{location} holds {kind} of shape {tuple(array.shape)}; expected a real matrix (N, d)"
            + (", or (heads, N, d)" if heads else "")
        )
    if not array.numel():
        raise ValueError(f"{location} is empty: its shape is {tuple(array.shape)}")
    if bad := not_finite(array):
        raise ValueError(f"{location} has {bad}; expected finite numbers")
    return array


def wine(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return the 178 wines of scikit-learn as queries ``(89, 13)`` and keys ``(89, 13)``.

    Columns are standardised and scaled by one factor so that the mean of ‖x‖² is 1; rows are shuffled by ``seed``
    and split in two.
    """
    try:
        from sklearn.datasets import load_wine  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ValueError(
            "the built-in data need scikit-learn (pip install 'hybrid-random-features[learn]')"
        ) from error
    x = torch.from_numpy(load_wine().data).double()
    x = (x - x.mean(0)) / x.std(0, correction=0)
    x = x * (_WINE_NORM / x.square().sum(-1).mean().sqrt())
    x = x[torch.randperm(len(x), generator=Generator().manual_seed(seed))]
    return x[: len(x) // 2], x[len(x) // 2 :]


def _read(reader: Callable[[Path, str | None], Tensor], path: Path, name: str | None) -> Tensor:
    """Read an array; the readers of damaged files raise errors of many types, which become one sentence."""
    try:
        array = reader(path, name)
        return array if array.is_complex() else array.double()
    except Exception as error:
        if isinstance(error, ValueError) and not isinstance(error, UnicodeError):
            raise  # it is a sentence of ours
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path} cannot be read as {path.suffix}: {reason}") from error


def _split_location(location: str) -> tuple[Path, str | None]:
    """Split ``FILE:NAME`` into path and name; an existing file whose own name has a colon is not split."""
    before, colon, name = location.rpartition(":")
    if colon and Path(before).suffix.lower() in _READERS and not Path(location).exists():
        return Path(before), name
    return Path(location), None


def _read_npy(path: Path, name: str | None) -> Tensor:
    _refuse_name(path, name)
    with _plain(f"{path} cannot be read as .npy: it"), path.open("rb") as file:
        return _numbers(file, path.stat().st_size)


def _read_npz(path: Path, name: str | None) -> Tensor:
    with _plain(f"{path} cannot be read as .npz: it"):
        archive = zipfile.ZipFile(path)
    with archive:
        members = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
        chosen = _choose(path, list(members), name)
        with _plain(f"{path}:{chosen}"), archive.open(members[chosen]) as file:
            if members[chosen].file_size > _MOST_INFLATED * (1 + members[chosen].compress_size):
                raise ValueError("no compression goes so far")
            return _numbers(file, members[chosen].file_size)


@contextmanager
def _plain(what: str) -> Iterator[None]:
    """Replace NumPy's errors, which speak of pickle, where a file holds no array of numbers."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{what} is damaged, or holds no plain array of numbers") from error


def _numbers(file: IO[bytes], size: int) -> Tensor:
    """Read NumPy's format; refuse more numbers than ``size`` bytes can hold, before they are allocated."""
    headers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    shape, _, dtype = headers[npy.read_magic(file)](file)  # version 3 is for named fields
    if dtype.kind not in "biufc" or prod(shape) * dtype.itemsize > size:
        raise ValueError("no numbers, or fewer than announced")
    file.seek(0)
    array = npy.read_array(file, allow_pickle=False)
    return torch.tensor(array.astype(np.complex128 if dtype.kind == "c" else np.float64))


def _read_safetensors(path: Path, name: str | None) -> Tensor:
    tensors = load_file(path)
    return tensors[_choose(path, list(tensors), name)]


def _read_csv(path: Path, name: str | None) -> Tensor:
    """Read numbers separated by commas, with or without a header line."""
    _refuse_name(path, name)
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = [(number, row) for number, row in enumerate(csv.reader(file), 1) if any(map(str.strip, row))]
    if any(";" in cell for _, row in lines[1:] or lines for cell in row):
        raise ValueError(
            f"{path} separates its values by semicolons; expected commas between them, and points for decimals"
        )
    if lines and not any(map(_is_number, lines[0][1])):
        lines = lines[1:]
    if not lines:
        raise ValueError(f"{path} is empty: it has no line with numbers")
    first, width = lines[0][0], len(lines[0][1])
    for number, row in lines:
        if len(row) != width:
            raise ValueError(f"{path} has {len(row)} values in line {number} but {width} in line {first}")
        for column, cell in enumerate(row, 1):
            if not _is_number(cell):
                raise ValueError(
                    f"{path} has {cell.strip()!r} in line {number}, column {column}; expected a number"
                )
    return torch.tensor([[float(cell) for cell in row] for _, row in lines], dtype=torch.float64)


_READERS: dict[str, Callable[[Path, str | None], Tensor]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".safetensors": _read_safetensors,
    ".csv": _read_csv,
}


def _choose(path: Path, names: list[str], name: str | None) -> str:
    """Return the name of the array that is meant, or of the only one."""
    listed = ", ".join(sorted(names)) or "none"
    if name is None and len(names) == 1:
        return names[0]
    if name is None:
        raise ValueError(
            f"{path} holds {len(names)} arrays; name one of them as {path}:NAME (there are: {listed})"
        )
    if name not in names:
        raise ValueError(f"{path} has no array {name!r}; there are: {listed}")
    return name


def _refuse_name(path: Path, name: str | None) -> None:
    if name is not None:
        raise ValueError(f"{path} holds one array, without a name; drop {':' + name!r}")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
