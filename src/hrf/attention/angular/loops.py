"""Sums by sign code in compiled loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hrf import compiled
from hrf.attention.angular.codes import Codes

__all__ = ["Loops"]

_FEW = 16  # tokens of a code: fewer are not worth a state of their own


class Loops:
    """What `Products` does, without autograd: keys become states by value of each bit, which queries read.

    Args:
        n: sign bits.
        length: tokens of a row at a time.
        widths: of the features of both bases.
        like: a tensor of the kind of all others.
        columns: of values, or one more, which is of ones.
    """

    def __init__(self, n: int, length: int, widths: Sequence[int], like: Tensor, columns: int) -> None:
        self.codes = Codes.of(n, length / _FEW, like)
        self.widths, self.columns = widths, columns

    def of_signs(self, products: Tensor) -> Tensor:
        """As of `Products`."""
        from hrf.compiled.codes import encode

        codes = torch.empty(len(products), len(self.codes.bits), products.shape[1], dtype=torch.long)
        compiled.each(
            encode, ((p, *_arrays(self.codes.bits, c)) for p, c in zip(products.numpy(), codes, strict=True))
        )
        return codes

    def write(self, features: Tensor, codes: Tensor, values: Tensor) -> Tensor:
        """As of `Products`, with columns to no purpose after the others."""
        from hrf.compiled.codes import write
        from hrf.compiled.products import padded

        parts, phi = _parts(codes), features[:-1].unflatten(0, values.shape[:2])
        shape = *self.codes.same.shape[:2], sum(self.widths), padded(self.columns)
        states = phi.new_zeros(len(parts), *shape)
        compiled.each(
            write,
            (
                _arrays(phi[row, some], codes[row, :, some], self.codes.bits, values[row, some], state)
                for (row, some), state in zip(parts, states, strict=True)
            ),
        )
        states = states.unflatten(0, (len(codes), -1))
        return (states.squeeze(1) if len(parts) == len(codes) else states.sum(1)).flatten(-2)

    def read(self, features: Tensor, codes: Tensor, states: Tensor) -> Tensor:
        """As of `Products`."""
        from hrf.compiled.codes import read

        phi = features.unflatten(0, (len(codes), -1))
        states = states.unflatten(-1, (phi.shape[-1], -1))
        out = phi.new_empty(*phi.shape[:2], states.shape[-1])
        compiled.each(
            read,
            (
                (
                    *_arrays(
                        phi[row, some], codes[row, :, some], self.codes.bits, states[row], out[row, some]
                    ),
                    self.widths[0],
                )
                for row, some in _parts(codes)
            ),
        )
        return out[..., : self.columns]


def _parts(codes: Tensor) -> list[tuple[int, slice]]:
    """Each row of tokens, in parts if threads would have nothing to do else."""
    n_rows, _, length = codes.shape
    size = -(-length // -(-torch.get_num_threads() // n_rows))
    return [(row, slice(start, start + size)) for row in range(n_rows) for start in range(0, length, size)]


def _arrays(*tensors: Tensor) -> tuple[Any, ...]:
    """What compiled functions take; tensors to write to have to be contiguous."""
    return tuple(t.contiguous().numpy() for t in tensors)
