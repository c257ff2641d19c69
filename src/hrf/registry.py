"""Classes by name, for files, and objects by number, for compiled graphs.

Classes that a file may name: every subclass of `Registered` joins by being defined.

A file holds names and numbers, never code. `find` returns classes that the running process has defined, and
no others. A name that hrf uses stays with hrf. Other names are kept per module, and a class that is defined
again replaces the older one, so that a cell of a notebook can be run twice.
"""

from __future__ import annotations

import itertools
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from typing_extensions import Self

__all__ = ["Handled", "Registered", "UndefinedClass", "find", "is_own", "name_of", "object_of"]


class UndefinedClass(LookupError):
    """A file names a class that is not defined in the running process."""


class Registered:
    """An object that a file can hold: a feature map, a coefficient, or projections."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        classes = _CLASSES.setdefault(cls.__name__, {})
        classes.pop(cls.__module__, None)  # the class that was defined last stands last
        classes[cls.__module__] = cls

    def config(self) -> dict[str, Any]:
        """Return constructor arguments that rebuild this object, without its drawn and fitted state."""
        raise NotImplementedError(f"{type(self).__name__} cannot be saved: it does not define config()")


# Classes by name, then by module, in the order of their definition.
_CLASSES: dict[str, dict[str, type[Registered]]] = {}


def is_own(cls: type) -> bool:
    """Whether hrf itself defines the class."""
    return cls.__module__.partition(".")[0] == "hrf"


def name_of(cls: type) -> str:
    """Return the name under which `find` returns this class, or refuse it."""
    name = cls.__name__
    if not issubclass(cls, Registered):
        raise TypeError(f"{name} cannot be saved; expected a feature map, a coefficient or Projections")
    if not is_own(cls) and any(map(is_own, _CLASSES[name].values())):
        raise TypeError(
            f"{cls.__module__}.{name} cannot be saved: this {name} is not a class of hrf but has the name of "
            "one; rename it"
        )
    return name


def find(name: str, module: str | None = None) -> type[Registered]:
    """Return the class of this name: hrf's own, else the one of the module, else the one defined last."""
    classes = {
        place: cls for place, cls in _CLASSES.get(name, {}).items() if cls.config is not Registered.config
    }
    own = [cls for cls in classes.values() if is_own(cls)]
    if classes:
        return own[0] if own else classes.get(str(module), [*classes.values()][-1])
    if not isinstance(name, str) or not name.isidentifier():
        raise LookupError(f"{name!r} is not the name of a class")
    hint = f" (it was {module} when the file was saved)" if module else ""
    raise UndefinedClass(
        f"the class {name}, which is not defined: import the module that defines {name} before hrf.load{hint}"
    )


# Objects by number: operators in compiled graphs take tensors and numbers only, so objects travel as handles.


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
