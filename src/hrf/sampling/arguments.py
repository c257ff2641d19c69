"""Arguments that samplers and layers share: tensors, and the source of randomness."""

from __future__ import annotations

from operator import index
from typing import SupportsIndex

import torch
from torch import Generator, Tensor

__all__ = ["check_tensors", "generator_of"]


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
