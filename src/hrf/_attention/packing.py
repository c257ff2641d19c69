"""Sequences packed along the length, as flash-attn has them: each attends to itself only.

They are padded to batches of similar lengths (within a factor of two), so that many short sequences cost
neither a call per sequence nor the length of the longest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from hrf._attention.inputs import Inputs

__all__ = ["Packing", "check_packed", "check_starts"]


class Packing:
    """Packed sequences as batches, and back.

    Args:
        inputs: a batch of 1 with all sequences along the length.
        cu_seqlens: where each of n sequences begins, and the total length, ``(n + 1,)``.
    """

    def __init__(self, inputs: Inputs, cu_seqlens: Tensor) -> None:
        check_packed(inputs, cu_seqlens)
        check_starts(cu_seqlens, inputs.key.shape[2])
        self._inputs, self._batches = inputs, list(_batches(cu_seqlens))
        self._groups = inputs.query.shape[2] // max(1, inputs.key.shape[2])

    def batches(self) -> Iterator[Inputs]:
        """Yield sequences of similar length as batches; without any token, the inputs themselves."""
        inputs = self._inputs
        if not self._batches:
            yield inputs
        for index, filled in self._batches:
            ignore = ~filled if inputs.ignore is None else ~filled | inputs.ignore[0, index]
            sides = (inputs.query, self._groups), (inputs.key, 1), (inputs.value, 1)
            q, k, v = (_take(u, index, groups) for u, groups in sides)
            yield inputs._replace(query=q, key=k, value=v, ignore=ignore, present=filled)

    def unpacked(self, outputs: Sequence[Tensor]) -> Tensor:
        """Put the outputs of all batches in the order of the tokens: ``(1, H, L, d_v)``."""
        if not self._batches:
            return outputs[0]
        pairs = [
            (index[filled], out.transpose(0, 1).unflatten(2, (-1, self._groups))[:, filled])
            for (index, filled), out in zip(self._batches, outputs, strict=True)
        ]
        order, tokens = zip(*pairs, strict=True)  # (H, tokens, groups, d_v) each
        return torch.cat(tokens, 1)[:, torch.cat(order).argsort()].flatten(1, 2).unsqueeze(0)


def check_packed(inputs: Inputs, cu_seqlens: Tensor) -> None:
    """Refuse a batch, and anything but whole numbers."""
    batch = len(inputs.key)
    if batch != 1:
        raise ValueError(f"packed sequences came in a batch of {batch}; expected a batch axis of 1 or none")
    if cu_seqlens.ndim != 1 or cu_seqlens.is_floating_point() or not len(cu_seqlens):
        raise ValueError(
            f"cu_seqlens is a tensor of {cu_seqlens.dtype} and shape {tuple(cu_seqlens.shape)}; expected "
            "integers (n + 1,): where each of n sequences begins, and the total length"
        )


def check_starts(cu_seqlens: Tensor, length: int) -> None:
    """Refuse starts of sequences that do not go from 0 to the length."""
    if cu_seqlens[0] != 0 or cu_seqlens[-1] != length or (cu_seqlens.diff() < 0).any():
        raise ValueError(
            f"cu_seqlens runs from {int(cu_seqlens[0])} to {int(cu_seqlens[-1])}; expected from 0 to the "
            f"length {length}, never falling"
        )


def _batches(cu_seqlens: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield tokens of sequences of similar length, ``(n, longest)``, and which places hold one."""
    first, lengths = cu_seqlens[:-1].long(), cu_seqlens.diff().long()
    power = lengths.double().log2().ceil()
    for p in power[lengths > 0].unique():
        chosen = power == p
        place = torch.arange(int(lengths[chosen].max()), device=cu_seqlens.device)
        filled = place < lengths[chosen, None]
        yield (first[chosen, None] + place).where(filled, 0), filled


def _take(u: Tensor, index: Tensor, groups: int) -> Tensor:
    """Gather tokens of ``u (1, H, L·groups, d)`` into a batch: ``(n, H, longest·groups, d)``."""
    return u[0].unflatten(1, (-1, groups))[:, index].flatten(2, 3).transpose(0, 1)
