"""Inner products of sums z = q + k over all pairs of a query's q and a key's k: an MSE depends on nothing else.

They come from distances and matrix products: a tensor of all z would be d times larger than the result.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from hrf import theory
from hrf.kernels import squared_distance

__all__ = ["ComplexSum", "PairSum"]


class PairSum(NamedTuple):
    """The real vectors q + k of all pairs.

    Attributes:
        query: q, ``(..., L, d)``.
        key: k, ``(..., S, d)``.
    """

    query: Tensor
    key: Tensor

    def dot(self, other: PairSum) -> Tensor:
        """Return (q + k)ᵀ(r + s), where r + s is another sum: ``(..., L, S)``."""
        q, k, r, s = *self, *other
        if other is self:
            return squared_distance(q, -k)  # exactly 0 where q + k is
        squares = (q * r).sum(-1).unsqueeze(-1) + (k * s).sum(-1).unsqueeze(-2)
        return squares + q @ s.mT + r @ k.mT


class ComplexSum(NamedTuple):
    """The real and the imaginary part of z; a part that vanishes is ``None``."""

    real: PairSum | None
    imag: PairSum | None

    def products(self, other: ComplexSum) -> theory.Products:
        """Return the inner products of the parts of z and of another sum; a scalar 0 where a part is absent."""

        def dot(a: PairSum | None, b: PairSum | None) -> Tensor:
            return zero if a is None or b is None else a.dot(b)

        zero = next(part for part in self if part is not None).query.new_zeros(())
        vu = dot(self.imag, other.real)
        # One number for both where z is the same, so that zᵀ conj(z) is real to the last digit.
        uv = vu if other is self else dot(self.real, other.imag)
        return theory.Products(dot(self.real, other.real), dot(self.imag, other.imag), vu, uv)
