"""Sums by sign code in compiled loops."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hrf import compiled
from hrf.attention.angular.codes import Codes

__all__ = ["Loops"]

_FEW = 16  # tokens of a code: fewer are not worth a state of their own


class Loops:
    """What `Products` does, without autograd: keys become states by value of each bit, which queries read."""

    def __init__(self, n: int, length: int, widths: Sequence[int], like: Tensor, *, ones: bool) -> None:
        self.codes = Codes.of(n, length / _FEW, like)
        self.widths, self.ones = widths, ones
        self.columns = 0

    def write(self, features: Tensor, codes: Tensor, values: Tensor) -> Tensor:
        """As of `Products`, with columns to no purpose after those of values and ones."""
        from hrf.compiled.codes import write
        from hrf.compiled.products import padded

        self.columns = values.shape[-1] + self.ones
        spans = _spans(codes)
        states = values.new_zeros(
            len(spans), len(codes), *self.codes.same.shape[:2], sum(self.widths), padded(self.columns)
        )
        phi = features[:-1].view(*values.shape[:2], -1)
        compiled.each(
            write,
            (
                (*_arrays(phi[row, span], values[row, span], codes[row, :, span], self.codes.bits), own[row])
                for span, own in zip(spans, states.numpy(), strict=True)
                for row in range(len(codes))
            ),
        )
        return states.sum(0).flatten(-2)

    def spread(self, states: Tensor) -> Tensor:
        """The states themselves."""
        return states

    def read(self, features: Tensor, codes: Tensor, states: Tensor) -> Tensor:
        """Σ φ(x)ᵀ S for the states S of the bits of each query: ``(R, L, c)``."""
        from hrf.compiled.codes import read

        phi = features.view(len(codes), codes.shape[-1], -1)
        states = states.unflatten(-1, (phi.shape[-1], -1))
        out = phi.new_zeros(*phi.shape[:2], states.shape[-1])
        compiled.each(
            read,
            (
                (
                    *_arrays(phi[row, span], codes[row, :, span], self.codes.bits, states[row]),
                    self.widths[0],
                    out[row, span].numpy(),
                )
                for row in range(len(codes))
                for span in _spans(codes)
            ),
        )
        return out[..., : self.columns]


def _spans(codes: Tensor) -> list[slice]:
    """Parts of each row, so that all threads have something to do."""
    n_rows, _, length = codes.shape
    size = -(-length // -(-torch.get_num_threads() // n_rows))
    return [slice(start, start + size) for start in range(0, length, size)]


def _arrays(*tensors: Tensor) -> Sequence[object]:
    """What compiled functions take."""
    return [t.detach().contiguous().numpy() for t in tensors]
