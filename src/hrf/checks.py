"""Checks of arguments: each error says what was received and what was expected."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from operator import index
from types import FunctionType
from typing import Any, SupportsIndex, TypeVar

import torch
from torch import Generator, Tensor

__all__ = [
    "check_count",
    "check_positive",
    "check_tensor",
    "check_tensors",
    "generator_of",
    "not_finite",
    "own_constructor",
    "shapes_with_heads",
]

Class = TypeVar("Class", bound=type)


def check_count(name: str, value: SupportsIndex) -> int:
    """Return a size as an ``int``; refuse anything but a positive whole number."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(f"{name} is {value!r} of type {type(value).__name__}; expected a whole number")
    if (count := index(value)) < 1:
        raise ValueError(f"{name} is {count}; expected at least 1")
    return count


def check_positive(name: str, value: float) -> None:
    """Refuse anything but a finite number above zero."""
    if not isinstance(value, Real) or not 0 < value < float("inf"):
        raise ValueError(f"{name} is {value!r}; expected a positive number")


def check_tensor(
    name: str, value: Tensor, shapes: Sequence[tuple[int, ...]], *, complex_too: bool = False
) -> None:
    """Refuse anything but a tensor of finite numbers in one of the shapes."""
    numbers = "numbers" if complex_too else "real numbers"
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is of type {type(value).__name__}; expected a tensor")
    if value.dtype == torch.bool or (value.is_complex() and not complex_too):
        raise TypeError(f"{name} is a tensor of {value.dtype}; expected {numbers}")
    if tuple(value.shape) not in shapes:
        expected = " or ".join(map(str, shapes))
        raise ValueError(f"{name} has shape {tuple(value.shape)}; expected {expected}")
    if not value.is_meta and not value.isfinite().all():
        raise ValueError(f"{name} has values that are NaN or infinite; expected finite values")


def check_tensors(**values: object) -> None:
    """Refuse anything but tensors, given by their names."""
    for name, value in values.items():
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{name} is of type {type(value).__name__}; expected a tensor (torch.as_tensor makes one of an array)"
            )


def generator_of(
    generator: Generator | None, seed: SupportsIndex | None, device: torch.device | str = "cpu"
) -> Generator | None:
    """Return the generator given, or a new one with this seed, or ``None`` for PyTorch's global generator."""
    if generator is not None and not isinstance(generator, Generator):
        raise TypeError(
            f"generator is {generator!r}; expected a torch.Generator (a number is a seed: seed=0)"
        )
    if seed is None:
        return generator
    if generator is not None:
        raise ValueError("generator and seed are both given; expected one of them")
    if isinstance(seed, bool) or not isinstance(seed, SupportsIndex):
        raise TypeError(f"seed is {seed!r}; expected a whole number")
    return Generator(device).manual_seed(index(seed))


def not_finite(x: Tensor) -> str:
    """Count the values that are NaN or infinite, in words; return an empty text if there are none."""
    bad = int((~x.isfinite()).sum())
    return f"{bad} value{' that is' if bad == 1 else 's that are'} NaN or infinite" if bad else ""


def own_constructor(cls: Class) -> Class:
    """Copy the inherited constructor into a class, so that Python's errors about arguments name the class itself.

    They name the class that defines the constructor otherwise, which users may never have seen.
    """
    inherited: Any = cls.__init__  # type: ignore[misc]
    own = FunctionType(
        inherited.__code__, inherited.__globals__, "__init__", inherited.__defaults__, inherited.__closure__
    )
    own.__kwdefaults__, own.__annotations__ = inherited.__kwdefaults__, inherited.__annotations__
    own.__module__, own.__qualname__ = cls.__module__, f"{cls.__qualname__}.__init__"
    cls.__init__ = own  # type: ignore[misc]
    return cls


def shapes_with_heads(heads: int | None, *shapes: tuple[int, ...]) -> list[tuple[int, ...]]:
    """List the shapes that a tensor may have: with heads, each begins with an axis for them."""
    leading = () if heads is None else (heads,)
    return [(*leading, *shape) for shape in shapes]
