"""Blocks of positions, few enough to be finished in the cache: what all engines do to one of them.

Features never exist for a whole sequence. In the backward pass those of a block are computed again, this time
with a graph, which is pulled back and dropped before the next block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hrf._attention.denominator import Denominator, log_bound
from hrf._attention.inputs import Inputs
from hrf.features.base import FeatureMap, Features, Side

__all__ = ["LOWEST", "Blocks", "Outputs", "Place", "Pullback", "pulled"]

# The log scale of a sum without terms. Finite, so that differences of scales are never NaN.
LOWEST = -1e30

_FLOATS = 1 << 20  # features in a block
_LEAST = 64  # rows in a block: fewer starve the matrix products


class Place:
    """Memory for the features of one block after another, so that it stays in the cache."""

    def __init__(self) -> None:
        self._memory: Tensor | None = None

    def of(self, *shape: int, like: Tensor) -> Tensor:
        """A tensor of this shape in the memory, which grows if it has to."""
        size = math.prod(shape)
        if self._memory is None or self._memory.numel() < size:
            self._memory = like.new_empty(size)
        return self._memory[:size].view(shape)


@dataclass(frozen=True)
class Blocks:
    """Features and values of blocks, with all batch elements and heads in one axis N = B·H.

    Attributes:
        feature_map: the map.
        rule: what to do with small denominators.
        ignore: keys to leave out, ``(B, S)``.
        root: √scale.
        dtype: of the computation.
    """

    feature_map: FeatureMap
    rule: Denominator
    ignore: Tensor | None
    root: float
    dtype: torch.dtype

    @classmethod
    def of(cls, inputs: Inputs, feature_map: FeatureMap, rule: Denominator) -> Blocks:
        """Those of some inputs."""
        return cls(feature_map, rule, inputs.ignore, inputs.root, inputs.dtype)

    @property
    def by_hand(self) -> bool:
        """Whether the map knows its own gradients; those of parameters are left to autograd."""
        return self.feature_map.has_pullback and not any(
            p.requires_grad for p in self.feature_map.parameters()
        )

    def slices(self, u: Tensor) -> Iterator[slice]:
        """Blocks of the rows of ``u (B, H, L, d)``."""
        floats = max(1, u.shape[0] * u.shape[1] * self.feature_map.feature_dim)
        size = max(_LEAST, _FLOATS // floats)
        return (slice(start, min(start + size, u.shape[2])) for start in range(0, u.shape[2], size))

    def vectors(self, u: Tensor, rows: slice, side: Side) -> Tensor:
        """What the map is applied to: rows of query or key, scaled, zero where ignored."""
        x = u[:, :, rows].to(self.dtype) * self.root
        if side == "key" and self.ignore is not None:
            x = x.masked_fill_(self.ignore[:, None, rows, None], 0)
        self.feature_map.check_values(x, side)
        return x

    def features(self, x: Tensor, rows: slice, side: Side, place: Place) -> Features:
        """Features of `vectors`, ``(N, rows, D)`` and ``(N, rows, 1)``; the scale of ignored keys is −inf."""
        out = place.of(*x.shape[:-1], self.feature_map.feature_dim, like=x)
        return self._flat(self.feature_map.scaled_into(x, side, out), rows, side)

    def traced(self, u: Tensor, rows: slice, side: Side, place: Place) -> tuple[Features, Pullback]:
        """Features of rows of query or key, and the way back for gradients."""
        x = self.vectors(u, rows, side)
        if self.by_hand:
            features = self.features(x, rows, side, place)
            return features, Pullback(self, x, features, side)
        with torch.enable_grad():
            features = self.feature_map.scaled(x.requires_grad_(), side)
        detached = Features(features.values.detach(), features.log_scale.detach())
        return self._flat(detached, rows, side), Pullback(self, x, features, side)

    def values(self, value: Tensor, rows: slice, log_weight: Tensor | None = None) -> Tensor:
        """Values with a column of ones, whose sums are the denominators, all times exp(log_weight) a row.

        ``(N, rows, d_v + 1)``; zero where ignored.
        """
        v = value[:, :, rows].to(self.dtype)
        out = v.new_empty(*v.shape[:-1], v.shape[-1] + 1)
        if log_weight is None:
            out[..., :-1], out[..., -1:] = v, 1
        else:
            weight = log_weight.exp().view_as(out[..., -1:])
            torch.mul(v, weight, out=out[..., :-1])
            out[..., -1:] = weight
        if self.ignore is not None:
            out.masked_fill_(self.ignore[:, None, rows, None], 0)
        return out.flatten(0, 1)

    def _flat(self, features: Features, rows: slice, side: Side) -> Features:
        values, log_scale = features
        if side == "key" and self.ignore is not None:
            log_scale = log_scale.masked_fill(self.ignore[:, None, rows, None], -torch.inf)
        return Features(values.flatten(0, 1), log_scale.flatten(0, 1))


class Outputs(NamedTuple):
    """Quotients of all rows, and what the backward pass needs of their denominators.

    Attributes:
        values: ``(N, L, d_v)``.
        used: what was divided by, ``(N, L, 1)``, at the scale of the sums.
        log_scale: that scale, ``(N, L, 1)``.
        low: which denominators were too small, ``(N, L, 1)``.
    """

    values: Tensor
    used: Tensor
    log_scale: Tensor
    low: Tensor

    @classmethod
    def empty(cls, sums: Tensor, length: int) -> Outputs:
        """Memory for sums of the kind and width of ``(N, ·, d_v + 1)``."""
        n, _, width = sums.shape
        used = sums.new_empty(n, length, 1)
        low = torch.empty_like(used, dtype=torch.bool)
        return cls(sums.new_empty(n, length, width - 1), used, torch.empty_like(used), low)

    def fill(self, blocks: Blocks, rows: slice, x: Tensor, sums: Features, moments: Tensor) -> None:
        """Divide the sums of some rows, ``(N, rows, d_v + 1)``."""
        seen = moments if moments.shape[2] == 1 else moments[:, :, rows]
        bound = log_bound(blocks.feature_map, x, seen)
        denominators = sums.values[..., -1:]
        used, low = blocks.rule.settle(
            denominators, sums.log_scale, None if bound is None else bound.flatten(0, 1)
        )
        self.used[:, rows], self.log_scale[:, rows], self.low[:, rows] = used, sums.log_scale, low
        torch.div(sums.values[..., :-1], used, out=self.values[:, rows])

    def pull(self, grad: Tensor, rows: slice, log_scale: Tensor, rule: Denominator) -> tuple[Tensor, Tensor]:
        """Gradients of the sums of some rows at ``log_scale``, and of their log scale.

        ``(N, rows, d_v + 1)`` and ``(N, rows, 1)``. Numerator and denominator share their scale, so it matters
        only where the floor took the place of the latter.
        """
        values, used, before, low = (tensor[:, rows] for tensor in self)
        used = used * (before - log_scale).exp()
        if rule.rule == "none":
            low = torch.zeros_like(low)
        inner = (grad * values).sum(-1, keepdim=True)
        out = grad.new_empty(*grad.shape[:-1], grad.shape[-1] + 1)
        torch.div(grad, used, out=out[..., :-1])
        out[..., -1:] = (inner / used).neg_().masked_fill_(low, 0)
        return out, inner.masked_fill(~low, 0)


class Pullback:
    """Gradients of a block's features, passed on to its vectors and to the map's parameters."""

    def __init__(self, blocks: Blocks, x: Tensor, features: Features, side: Side) -> None:
        self._blocks, self._x, self._features, self._side = blocks, x, features, side

    def __call__(self, grad: Features, parameters: dict[Tensor, Tensor]) -> Tensor:
        """The gradient of the unscaled rows, ``(B, H, rows, d)``; those of parameters are added to theirs.

        ``grad`` may be overwritten.
        """
        x, feature_map = self._x, self._blocks.feature_map
        grad = Features(*(g.view(*x.shape[:-1], g.shape[-1]) for g in grad))
        if self._blocks.by_hand:
            values = self._features.values.view_as(grad.values)
            return feature_map.pullback(x, self._side, values, grad).mul_(self._blocks.root)
        return pulled(x, self._features, grad, parameters) * self._blocks.root


def pulled(
    x: Tensor, outputs: Sequence[Tensor], grads: Sequence[Tensor], parameters: dict[Tensor, Tensor]
) -> Tensor:
    """The gradient of x by autograd, from those of some outputs; those of parameters are added to theirs."""
    pairs = [(out, g.view_as(out)) for out, g in zip(outputs, grads, strict=True) if out.requires_grad]
    if not pairs:
        return torch.zeros_like(x)
    outs, gs = zip(*pairs, strict=True)
    found = torch.autograd.grad(outs, [x, *parameters], gs, allow_unused=True)
    for parameter, g in zip(parameters, found[1:], strict=True):
        if g is not None:
            parameters[parameter] += g
    return torch.zeros_like(x) if found[0] is None else found[0]
