"""Maps whose structure says more than their features: which engine serves them, and on how many rows at a time.

A row is a head of one sequence. What an engine makes of its rows never exists for all of them: the backward pass
runs it again, this time with a graph, which is pulled back and dropped before the next rows. Engines do the same with
parts of a long row (``again.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hrf._attention import angular
from hrf._attention import clustered as clusters
from hrf._attention.denominator import Denominator, divided
from hrf._attention.inputs import Inputs
from hrf._attention.label_blocks import Part, parts
from hrf.features.base import FeatureMap, Features, full_precision
from hrf.features.clustered import ClusteredHybrid
from hrf.features.heads import of_heads

__all__ = ["attend", "serves"]

_TOKENS = 1 << 17, 1 << 14, 1 << 12  # at a time, or one row: without gradients, before them, with a graph

Engine = Callable[..., Iterator[Features]]  # x, y, values, the map, keys to keep, root, ones


def serves(feature_map: FeatureMap) -> bool:
    """Whether `attend` is for this map."""
    return _engine(feature_map) is not None


def attend(inputs: Inputs, moments: Tensor, feature_map: FeatureMap, rule: Denominator) -> Tensor:
    """Attention of every query to all keys: ``(B, H, L, d_v)``.

    ``moments`` are those of the keys that each row sees.
    """
    learned = [t for t in (*feature_map.parameters(), *feature_map.buffers()) if t.requires_grad]
    rows = _Rows(feature_map, rule, moments, inputs.ignore, inputs.root, inputs.dtype)
    return _Attend.apply(rows, *inputs[:3], *learned)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: _Rows, query: Tensor, key: Tensor, value: Tensor, *learned: Tensor) -> Any:
        out = query.new_empty(*query.shape[:-1], value.shape[-1], dtype=rows.dtype)
        low = torch.empty_like(out[..., :1], dtype=torch.bool)
        tokens = _TOKENS[1] if any(ctx.needs_input_grad) else _TOKENS[0]
        for part in parts(query, key, tokens):
            _, low[part] = rows.attend(part, query[part], key[part], value[part], out[part])
        rows.rule.count(low, rows.moments[..., :1])
        ctx.rows, ctx.learned = rows, learned
        # The backward pass uses the map again: saved here, a redraw in between is an error.
        ctx.save_for_backward(query, key, value, *learned, *rows.feature_map.buffers())
        return out

    @staticmethod
    @once_differentiable
    @full_precision
    def backward(ctx: Any, grad: Tensor) -> Any:
        rows: _Rows = ctx.rows
        query, key, value, *_ = ctx.saved_tensors
        inputs = query, key, value
        grads = [torch.zeros_like(u) for u in (*inputs, *ctx.learned)]
        for part in parts(query, key, _TOKENS[2]):
            some = [u[part].detach() for u in inputs]
            for u, needed in zip(some, ctx.needs_input_grad[1:4], strict=True):
                u.requires_grad_(needed)
            with torch.enable_grad():
                out, _ = rows.attend(part, *some)
            places = (*(g[part] for g in grads[:3]), *grads[3:])
            pairs = [p for p in zip((*some, *ctx.learned), places, strict=True) if p[0].requires_grad]
            found = torch.autograd.grad(out, [u for u, _ in pairs], grad[part], materialize_grads=True)
            for (_, place), g in zip(pairs, found, strict=True):
                place += g
        return None, *grads


@dataclass(frozen=True)
class _Rows:
    """B·H rows, inputs aside.

    Attributes:
        feature_map: the map.
        rule: what to do with small denominators.
        moments: of the keys that each row sees, ``(B, H, 1 or L, ·)``.
        ignore: keys to leave out, ``(B, S)``.
        root: √scale.
        dtype: of the computation.
    """

    feature_map: FeatureMap
    rule: Denominator
    moments: Tensor
    ignore: Tensor | None
    root: float
    dtype: torch.dtype

    def attend(
        self, part: Part, query: Tensor, key: Tensor, value: Tensor, out: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Outputs of a part, given its inputs, and which of its denominators are too small (`divided`)."""
        ignore = None if self.ignore is None else self.ignore[part[0]]
        inputs = Inputs(query, key, value, ignore, self.root, self.dtype, ())
        feature_map = of_heads(self.feature_map, part[1])
        sums, moments = _sums(inputs, feature_map), self.moments[part]
        return divided(inputs, sums, moments, feature_map, self.rule, out)


def _engine(feature_map: FeatureMap) -> Engine | None:
    """The engine for a map, if it has one of its own."""
    if isinstance(feature_map, ClusteredHybrid):
        return clusters.stream
    return angular.stream if angular.serves(feature_map) else None


def _sums(inputs: Inputs, feature_map: FeatureMap) -> Iterator[Features]:
    """Σ K̂(x, y) v and, in the last column, Σ K̂(x, y), for some queries after others as `divided` takes them."""
    x, y, v = (tensor.to(inputs.dtype) for tensor in inputs[:3])
    keep: Tensor | None = None
    if inputs.ignore is not None:
        keep = ~inputs.ignore[:, None]
        y, v = (u.masked_fill(~keep.unsqueeze(-1), 0) for u in (y, v))  # NaN there must not count
    feature_map.check_values(x, "query")
    feature_map.check_values(y, "key")
    engine = _engine(feature_map)
    assert engine is not None
    return engine(x, y, v, feature_map, keep, inputs.root, ones=True)
