"""Numbers held as mantissa · exp(exponent), so that e^{10000} and exact zeros fit in one tensor.

The variances of random features grow like exp(‖x‖² + ‖y‖²): beyond norms of 20 they overflow float64,
while at the points where an estimator is exact they are zero. A signed mantissa next to an exponent
keeps both ends, and lets covariances (which may be negative) be added before a logarithm is taken.

>>> import torch
>>> huge = Scaled(torch.tensor(2.0), torch.tensor(1000.0))
>>> none = Scaled(torch.tensor(0.0), torch.tensor(5000.0))
>>> scaled_sum(huge, none).log()
tensor(1000.6932)
"""

from __future__ import annotations

import math
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Scaled", "complement", "scaled_sum"]


class Scaled(NamedTuple):
    """The number mantissa · exp(exponent); the mantissa carries the sign."""

    mantissa: Tensor
    exponent: Tensor

    @classmethod
    def plain(cls, number: Tensor) -> Scaled:
        """Hold an ordinary number."""
        return cls(number, torch.zeros_like(number))

    @classmethod
    def exp(cls, exponent: Tensor) -> Scaled:
        """Hold the exponential of a number, which itself may overflow."""
        return cls(torch.ones_like(exponent), exponent)

    def times(self, factor: Scaled | Tensor | float) -> Scaled:
        """Multiply by another number."""
        if isinstance(factor, Scaled):
            return Scaled(self.mantissa * factor.mantissa, self.exponent + factor.exponent)
        return Scaled(self.mantissa * factor, self.exponent)

    def times_exp(self, exponent: Tensor) -> Scaled:
        """Multiply by exp(exponent), which itself may overflow."""
        return Scaled(self.mantissa, self.exponent + exponent)

    def log(self) -> Tensor:
        """Return the logarithm of max(number, 0): −inf where the number is zero, or negative by rounding."""
        return self.mantissa.clamp_min(0).log() + self.exponent

    def value(self) -> Tensor:
        """Return the ordinary number; infinite where the dtype cannot hold it, exactly 0 where the mantissa is 0."""
        return torch.where(self.mantissa == 0, 0.0, self.mantissa * self.exponent.exp())


def scaled_sum(*terms: Scaled) -> Scaled:
    """Add the terms, on the largest exponent of all terms that are not zero."""
    # The exponent of a zero means nothing: left in, it could flush every other term to zero.
    exponents = [torch.where(term.mantissa == 0, -math.inf, term.exponent) for term in terms]
    largest = reduce(torch.maximum, exponents)
    largest = torch.where(largest.isneginf(), 0.0, largest)
    mantissas = [t.mantissa * (e - largest).exp() for t, e in zip(terms, exponents, strict=True)]
    return Scaled(reduce(torch.add, mantissas), largest)


def complement(*numbers: Scaled) -> Scaled:
    """Return 1 − Σ numbers, the weight that is left for a last base."""
    one = Scaled.plain(torch.ones_like(numbers[0].mantissa))
    return scaled_sum(one, *(number.times(-1) for number in numbers))
