"""What a map costs: floating-point operations for one vector, by one set of rules.

=====================  =====================================================================
product of matrices    2 a multiply-add; `torch.utils.flop_counter` sees these, and only these
function               1 for an exponential, a cosine, a sign or a comparison
scaling, outer product 1 a multiplication
=====================  =====================================================================

Maps add up the pieces below in ``_flops``; ``flops()`` is the total.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Flops", "distances", "features", "outer", "projected", "scaled", "signs"]


class Flops(NamedTuple):
    """Operations in products of matrices, and all others."""

    products: int = 0
    others: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.products + self.others

    def plus(self, *more: Flops) -> Flops:
        """Those of several steps."""
        steps = (self, *more)
        return Flops(sum(step.products for step in steps), sum(step.others for step in steps))

    def times(self, count: int) -> Flops:
        """The same step several times."""
        return Flops(self.products * count, self.others * count)


def projected(n_rows: int, dim: int) -> Flops:
    """The products of a vector with rows: 2md."""
    return Flops(products=2 * n_rows * dim)


def features(width: int) -> Flops:
    """A function a feature, and its scaling."""
    return Flops(others=2 * width)


def signs(count: int) -> Flops:
    """A comparison a sign."""
    return Flops(others=count)


def scaled(dim: int, times: int = 1) -> Flops:
    """A vector times or plus another, entry by entry."""
    return Flops(others=times * dim)


def outer(n_rows: int, n_columns: int) -> Flops:
    """Every product of two entries."""
    return Flops(others=n_rows * n_columns)


def distances(n_centers: int, dim: int) -> Flops:
    """The nearest centre, by products with all."""
    return projected(n_centers, dim)
