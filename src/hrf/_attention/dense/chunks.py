"""Features of a chunk, for the products that causal attention is made of: with one another, and with a state.

`Dense` multiplies what a map gives. Maps with mostly zeros have products of their own (``clusters/chunks.py``).
A state is in parts, ``(N, D, c)`` each, which the products may overwrite.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import Self

from hrf._attention.dense.blocks import Blocks, Place
from hrf.features.base import Features, Side

__all__ = ["Chunks", "Dense", "Products", "Pull", "joined"]

# From the gradients of features, and of their log scale, to that of the rows; those of parameters are added.
Pull = Callable[[list[Tensor], Tensor, dict[Tensor, Tensor]], Tensor]


def joined(states: list[Tensor]) -> Tensor:
    """A state of all parts, which may be the only one itself."""
    return states[0] if len(states) == 1 else torch.cat(states, 1)


class Products(ABC):
    """Features ψ of T queries or keys, up to their log scales, ``(N, T, 1)``."""

    log_scale: Tensor

    @abstractmethod
    def scores(self, keys: Self) -> Tensor:
        """φᵀψ for all queries and keys: ``(N, T, S)``."""

    @abstractmethod
    def times(self, states: list[Tensor]) -> Tensor:
        """ψᵀS: ``(N, T, c)``."""

    @abstractmethod
    def add_to(self, states: list[Tensor], v: Tensor) -> None:
        """S += Σ ψ vᵀ."""

    @abstractmethod
    def gradient(self, g: Tensor, states: list[Tensor], weights: Tensor, others: Self) -> list[Tensor]:
        """The gradient S g + Σ weights · φ over the other side, ``weights (N, T, S)``, in the way of `Pull`."""


class Chunks(ABC):
    """Features of one chunk after another.

    Attributes:
        size: positions of a chunk, in units of the least.
    """

    size = 1

    @abstractmethod
    def split(self, state: Tensor) -> list[Tensor]:
        """A copy of a state ``(N, D, c)``, in parts."""

    @abstractmethod
    def features(self, x: Tensor, rows: slice, side: Side) -> Products:
        """Those of `Blocks.vectors`."""

    @abstractmethod
    def traced(self, u: Tensor, rows: slice, side: Side) -> tuple[Products, Pull]:
        """Those of rows of query or key, and the way back for gradients."""


class _Dense(Products):
    def __init__(self, features: Features) -> None:
        self.values, self.log_scale = features

    def scores(self, keys: Self) -> Tensor:
        return self.values @ keys.values.mT

    def times(self, states: list[Tensor]) -> Tensor:
        return self.values @ states[0]

    def add_to(self, states: list[Tensor], v: Tensor) -> None:
        states[0].baddbmm_(self.values.mT, v)

    def gradient(self, g: Tensor, states: list[Tensor], weights: Tensor, others: Self) -> list[Tensor]:
        return [(g @ states[0].mT).baddbmm_(weights, others.values)]


class Dense(Chunks):
    """Those of any map."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks, self._places = blocks, {"query": Place(), "key": Place()}

    def split(self, state: Tensor) -> list[Tensor]:
        """A copy, in one part."""
        return [state.clone()]

    def features(self, x: Tensor, rows: slice, side: Side) -> Products:
        """Those of `Blocks.vectors`."""
        return _Dense(self._blocks.features(x, rows, side, self._places[side]))

    def traced(self, u: Tensor, rows: slice, side: Side) -> tuple[Products, Pull]:
        """Those of rows of query or key, and the way back for gradients."""
        features, pull = self._blocks.traced(u, rows, side, self._places[side])

        def pulled(grad: list[Tensor], along: Tensor, parameters: dict[Tensor, Tensor]) -> Tensor:
            return pull(Features(grad[0], along), parameters)

        return _Dense(features), pulled
