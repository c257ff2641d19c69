"""The cost of a map: floating-point operations for one vector, by one set of rules.

=====================  =====================================================================
product of matrices    2 per multiply-add; `torch.utils.flop_counter` counts these, and only these
function               1 for an exponential, a cosine, a sign or a comparison
scaling, outer product 1 per multiplication
=====================  =====================================================================

Each map adds up the pieces below in the ``_flops`` of its own file, such as ``clustered.py``; ``flops()`` is the total.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Flops", "distances", "features", "outer", "projected", "scaled", "signs"]


class Flops(NamedTuple):
    """Operations in products of matrices, and all other operations."""

    products: int = 0
    others: int = 0

    @property
    def total(self) -> int:
        """All operations."""
        return self.products + self.others

    def plus(self, *more: Flops) -> Flops:
        """Add further steps."""
        steps = (self, *more)
        return Flops(sum(step.products for step in steps), sum(step.others for step in steps))

    def times(self, count: int) -> Flops:
        """Repeat the step ``count`` times."""
        return Flops(self.products * count, self.others * count)


def projected(n_rows: int, dim: int) -> Flops:
    """Count the products of a vector with m rows: 2md."""
    return Flops(products=2 * n_rows * dim)


def features(width: int) -> Flops:
    """Count one function per feature, and its scaling."""
    return Flops(others=2 * width)


def signs(count: int) -> Flops:
    """Count one comparison per sign."""
    return Flops(others=count)


def scaled(dim: int, times: int = 1) -> Flops:
    """Count a product or a sum of two vectors, entry by entry."""
    return Flops(others=times * dim)


def outer(n_rows: int, n_columns: int) -> Flops:
    """Count every product of two entries."""
    return Flops(others=n_rows * n_columns)


def distances(n_centers: int, dim: int) -> Flops:
    """Count the search for the nearest centre, by products with all centres."""
    return projected(n_centers, dim)
