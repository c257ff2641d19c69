"""Maps made of a clustered one that has no features (exact pairs, centres that move with the keys).

A `GaussianKernel` of it, say: the engine for clusters does not serve that. The matrix of estimates is formed, some rows
at a time, and formed again in the backward pass: time is quadratic, memory is not.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hrf._attention import reference
from hrf._attention.inputs import Inputs
from hrf.features.base import FeatureMap, Features

__all__ = ["sums"]

_FLOATS = 1 << 22  # estimates at a time


def sums(inputs: Inputs, feature_map: FeatureMap) -> Iterator[Features]:
    """Σ K̂(x, y) v and, in the last column, Σ K̂(x, y): ``(H, L, d_v + 1)`` for one batch element after another."""
    x, y, v = (tensor.to(inputs.dtype) for tensor in inputs[:3])
    x, y = x * inputs.root, y * inputs.root
    rows = max(1, _FLOATS // max(1, y.shape[1] * y.shape[2]))
    for b in range(len(x)):
        k, u = (y[b], v[b]) if inputs.ignore is None else (t[b, :, ~inputs.ignore[b]] for t in (y, v))
        blocks = [_block(q, k, u, feature_map) for q in x[b].split(rows, 1)]
        yield Features(*(torch.cat(parts, 1) for parts in zip(*blocks, strict=True)))


def _block(x: Tensor, y: Tensor, v: Tensor, feature_map: FeatureMap) -> Features:
    return Features(*checkpoint(reference.sums, x, y, v, feature_map, use_reentrant=False))
