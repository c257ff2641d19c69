"""Objects by number: operators in compiled graphs take tensors and numbers only, so objects travel as handles."""

from __future__ import annotations

import itertools
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from typing_extensions import Self

__all__ = ["Handled", "object_of"]

_numbers = itertools.count()
_objects: WeakValueDictionary[int, object] = WeakValueDictionary()


class Handled:
    """An object with a handle, which does not keep it alive; copies have handles of their own.

    Attributes:
        handle: a tensor, since graphs are compiled anew for every number but not for the values of a tensor.
    """

    handle: Tensor

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Make an object, also for a copy."""
        self = super().__new__(cls)
        number = next(_numbers)
        _objects[number] = self
        self.__dict__["handle"] = torch.tensor(number, device="cpu")
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        restore = getattr(super(), "__setstate__", self.__dict__.update)
        restore({**state, "handle": self.handle})


def object_of(handle: Tensor) -> object:
    """Return the object of a handle."""
    try:
        return _objects[int(handle)]
    except KeyError:
        raise RuntimeError(
            "a compiled graph refers to a feature map that is gone; compile it in this process, and keep the map"
        ) from None
