"""Restriction of a map to some of its heads."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

from hrf.features.base import FeatureMap

__all__ = ["of_heads"]

Map = TypeVar("Map", bound=FeatureMap)
Module = TypeVar("Module", bound=nn.Module)


def of_heads(feature_map: Map, heads: slice | Tensor) -> Map:
    """Return the map restricted to a slice of its heads, or to heads by index: a copy whose tensors are views or rows.

    Gradients therefore reach the parameters of the map itself. A part may have several heads per head of the
    map, side by side, as `ClusteredHybrid` has for pairs of clusters. A map without heads is returned as it is.
    """
    if feature_map.heads is None or (isinstance(heads, slice) and heads == slice(0, feature_map.heads)):
        return feature_map
    return _Restriction(heads, feature_map.heads).of(feature_map, feature_map.heads)


class _Restriction:
    """Copies of the parts of one map; parts that share a part share its copy."""

    def __init__(self, heads: slice | Tensor, n_heads: int) -> None:
        self._heads, self._n_heads = heads, n_heads
        self._copies: dict[nn.Module, nn.Module] = {}

    def _rows(self, each: int) -> tuple[slice | Tensor, int]:
        """Return the rows of a part with several heads per head, and how many there are."""
        heads = self._heads
        if isinstance(heads, slice):
            rows = slice(heads.start * each, heads.stop * each)
            return rows, rows.stop - rows.start
        if each > 1:
            heads = (heads.unsqueeze(-1) * each + torch.arange(each, device=heads.device)).flatten()
        return heads, len(heads)

    def of(self, module: Module, n_heads: int | None) -> Module:
        """Return the copy of a part, which has as many heads as its owner unless it says otherwise."""
        n_heads = getattr(module, "heads", n_heads)
        if n_heads is None:
            return module
        rows, n_rows = self._rows(n_heads // self._n_heads)

        def rows_of(tensor: Tensor | None) -> Tensor | None:
            return tensor if tensor is None or tensor.shape[:1] != (n_heads,) else tensor[rows]

        if module not in self._copies:
            self._copies[module] = twin = copy.copy(module)
            vars(twin).update(
                _parameters={name: rows_of(tensor) for name, tensor in module._parameters.items()},
                _buffers={name: rows_of(tensor) for name, tensor in module._buffers.items()},
                _modules={
                    name: part if part is None else self.of(part, n_heads)
                    for name, part in module._modules.items()
                },
            )
            if hasattr(module, "heads"):
                vars(twin).update(heads=n_rows)
        return self._copies[module]  # type: ignore[return-value]
