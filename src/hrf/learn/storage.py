"""Estimators as files: safetensors and a JSON header, as maps are saved, and no pickle.

A file holds one `Stored` module: the class of the estimator, its parameters, and what it learned. Arrays of numbers
become tensors, maps and estimators inside become parts; texts and numbers stand for themselves.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from hrf import atomic_write
from hrf.features.base import FeatureMap
from hrf.features.files import encode, load_part
from hrf.learn.rows import Sums
from hrf.registry import Registered

__all__ = ["Saved", "load"]


class Stored(Registered, nn.Module):
    """The content of a file: names and values of an estimator's parameters and learned attributes.

    Args:
        estimator: name of the class, or ``Sums``.
        names: names of parameters and attributes.
        values: their values; arrays are tensors, arrays of texts are dictionaries.
    """

    def __init__(self, estimator: str, names: list[str], values: list[Any]) -> None:
        super().__init__()
        self.estimator, self.names, self.values = estimator, names, values
        flat = [part for value in values for part in (value if isinstance(value, list) else [value])]
        self.parts = nn.ModuleList([part for part in flat if isinstance(part, nn.Module)])

    @override
    def config(self) -> dict[str, Any]:
        return {"estimator": self.estimator, "names": self.names, "values": self.values}


class Saved:
    """An estimator that can be saved; every subclass can be loaded once it is defined."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _CLASSES[cls.__name__] = cls

    def save(self, path: str | PathLike[str]) -> None:
        """Write the estimator to a ``.safetensors`` file that `hrf.learn.load` opens."""
        atomic_write.write(Path(path), encode(_stored(self)))


_CLASSES: dict[str, Any] = {"Sums": Sums}


def load(path: str | PathLike[str]) -> Any:
    """Read an estimator that its method ``save`` wrote; a ``ValueError`` says what is wrong with any other file.

    >>> import numpy as np, tempfile
    >>> from hrf.learn import KernelRidge, load
    >>> x = np.random.default_rng(0).normal(size=(50, 2))
    >>> model = KernelRidge(random_state=0).fit(x, x[:, 0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(f"{folder}/model.safetensors")
    ...     copy = load(f"{folder}/model.safetensors")
    >>> np.array_equal(model.predict(x), copy.predict(x))
    True
    """
    return _restored(load_part(path, Stored, "an estimator of hrf.learn"))


def _stored(value: Any) -> Stored:
    """Describe an estimator, or sums."""
    if isinstance(value, Sums):
        return Stored(
            "Sums", list(value._fields), [_encoded(field, array) for field, array in value._asdict().items()]
        )
    return Stored(
        type(value).__name__, list(vars(value)), [_encoded(name, part) for name, part in vars(value).items()]
    )


def _encoded(name: str, value: Any) -> Any:
    """Turn a value into one that a file can hold."""
    if isinstance(value, Saved | Sums):
        return _stored(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "biuf":
            return torch.tensor(value)
        return {"texts": value.tolist(), "dtype": "object" if value.dtype == object else value.dtype.str}
    if isinstance(value, list | tuple):
        return [_encoded(name, part) for part in value]
    if value is None or isinstance(value, bool | int | float | str | FeatureMap):
        return value
    raise TypeError(
        f"{name} is {value!r} of type {type(value).__name__}, which cannot be saved without pickle"
    )


def _restored(stored: Stored) -> Any:
    if stored.estimator not in _CLASSES:
        raise ValueError(
            f"the file holds a {stored.estimator}; expected one of {', '.join(sorted(_CLASSES))}"
        )
    cls = _CLASSES[stored.estimator]
    values = dict(zip(stored.names, map(_decoded, stored.values), strict=True))
    if cls is Sums:
        return Sums(**values)
    estimator = object.__new__(cls)
    vars(estimator).update(values)
    return estimator


def _decoded(value: Any) -> Any:
    if isinstance(value, Stored):
        return _restored(value)
    if isinstance(value, Tensor):
        return value.numpy()
    if isinstance(value, dict):
        return np.array(value["texts"], dtype=value["dtype"])
    return [_decoded(part) for part in value] if isinstance(value, list) else value
