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
            encode,
            ((p, *compiled.arrays(self.codes.bits, c)) for p, c in zip(products.numpy(), codes, strict=True)),
        )
        return codes

    def write(self, features: Tensor, codes: Tensor, values: Tensor) -> Tensor:
        """As of `Products`, with columns to no purpose after the others."""
        from hrf.compiled.codes import write
        from hrf.compiled.products import padded

        parts, phi = compiled.parts(codes.mT), features[:-1].unflatten(0, values.shape[:2])
        shape = *self.codes.same.shape[:2], sum(self.widths), padded(self.columns)
        states = phi.new_zeros(len(parts), *shape)
        compiled.each(
            write,
            (
                compiled.arrays(
                    phi[row, some], codes[row, :, some], self.codes.bits, values[row, some], state
                )
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
                    *compiled.arrays(
                        phi[row, some], codes[row, :, some], self.codes.bits, states[row], out[row, some]
                    ),
                    self.widths[0],
                )
                for row, some in compiled.parts(codes.mT)
            ),
        )
        return out[..., : self.columns]
