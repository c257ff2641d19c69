"""Checks of constructor arguments: what was received, what was expected."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["check_positive", "check_tensor", "shapes_with_heads"]


def shapes_with_heads(heads: int | None, *shapes: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The shapes that a tensor may have: with heads, an axis for them comes first."""
    leading = () if heads is None else (heads,)
    return [(*leading, *shape) for shape in shapes]


def check_tensor(
    name: str, value: Tensor, shapes: Sequence[tuple[int, ...]], *, complex_too: bool = False
) -> None:
    """Refuse what is not a finite tensor of numbers of one of the shapes."""
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


def check_positive(name: str, value: float) -> None:
    """Refuse what is not a finite number above zero."""
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} is {value}; expected a positive number")
