"""Sums over exact pairs: groups with similar numbers of exact keys are padded to one size and go together."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from hrf import tuning

__all__ = ["exact_sums"]


def blocks_by_count(counts: Tensor, queries: int, width: int) -> Iterator[Tensor]:
    """Yield groups that have exact keys, most first, in blocks of at most `tuning.EXACT_FLOATS` floats."""
    sizes, order = counts.sort(descending=True, stable=True)
    sizes_list = sizes.tolist()
    start = 0
    while start < len(sizes_list) and sizes_list[start]:
        largest = sizes_list[start]
        step = max(1, tuning.EXACT_FLOATS // (largest * (queries + width)))
        end = start + 1
        # A group with fewer than half of the keys of the first would be mostly padding.
        while end < min(start + step, len(sizes_list)) and 2 * sizes_list[end] >= largest:
            end += 1
        yield order[start:end]
        start = end


def exact_sums(
    x: Tensor, keys: Tensor, values: Tensor, places: Tensor, real: Tensor
) -> tuple[Tensor, Tensor]:
    """Sum exp(xᵀy − m) (v, 1) over the exact keys of some groups.

    Args:
        x: queries ``(groups, queries, d)``.
        keys: all keys of all heads, ``(keys, d)``.
        values: likewise, ``(keys, d_v)``.
        places: exact keys of each group, ``(groups, most)``.
        real: which of them are any, ``(groups, most)``.

    Returns:
        The sums ``(groups, queries, d_v + 1)`` and m, the largest logit of each query, ``(groups, queries, 1)``.
    """
    logits = (x @ keys[places].mT).masked_fill(~real[:, None], -torch.inf)
    top = logits.detach().amax(-1, keepdim=True)
    weights = (logits - top).exp()
    return torch.cat([weights @ values[places], weights.sum(-1, keepdim=True)], -1), top
