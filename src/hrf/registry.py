"""Classes that a file may name: every subclass of `Registered` joins by being defined.

A file holds names and numbers, never code. `find` returns classes that the running process has defined, and
no others. A name that hrf uses stays with hrf; any other name belongs to the class that was defined last, so
that a cell of a notebook can be run twice.
"""

from __future__ import annotations

from typing import Any

__all__ = ["Registered", "UndefinedClass", "find", "is_own", "name_of"]


class UndefinedClass(LookupError):
    """A file names a class that is not defined in the running process."""


class Registered:
    """An object that a file can hold: a feature map, a coefficient, or projections."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        holder = _CLASSES.get(cls.__name__)
        if holder is None or is_own(cls) or not is_own(holder):
            _CLASSES[cls.__name__] = cls

    def config(self) -> dict[str, Any]:
        """Return constructor arguments that rebuild this object, without its drawn and fitted state."""
        raise NotImplementedError(f"{type(self).__name__} cannot be saved: it does not define config()")


_CLASSES: dict[str, type[Registered]] = {}


def is_own(cls: type) -> bool:
    """Whether hrf itself defines the class."""
    return cls.__module__.partition(".")[0] == "hrf"


def name_of(cls: type) -> str:
    """Return the name under which `find` returns this class, or refuse it."""
    name, holder = cls.__name__, _CLASSES.get(cls.__name__)
    if not issubclass(cls, Registered) or holder is None:
        raise TypeError(f"{name} cannot be saved; expected a feature map, a coefficient or Projections")
    if holder is cls or _place(holder) == _place(cls):
        return name
    if is_own(holder):
        raise TypeError(
            f"{_place(cls)} cannot be saved: this {name} is not a class of hrf but has the name of one; rename it"
        )
    raise TypeError(f"{_place(cls)} and {_place(holder)} have the same name; rename one of them to save both")


def find(name: str, module: str | None = None) -> type[Registered]:
    """Return the class of this name; ``module``, where it was once defined, only helps to say what is missing."""
    cls = _CLASSES.get(name)
    if cls is not None and cls.config is not Registered.config:
        return cls
    if not isinstance(name, str) or not name.isidentifier():
        raise LookupError(f"{name!r} is not the name of a class")
    hint = f" (it was {module} when the file was saved)" if module else ""
    raise UndefinedClass(
        f"the class {name}, which is not defined: import the module that defines {name} before hrf.load{hint}"
    )


def _place(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
