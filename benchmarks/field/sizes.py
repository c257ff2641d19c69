"""Sizes of equal cost: as many FLOPs as a budget allows, or as much time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial

from torch import Tensor
from torch.nn import functional as F

from benchmarks.field.method import Family, Method
from benchmarks.minilm import Attention
from benchmarks.timing import best_times

__all__ = ["exact", "size_by_flops", "size_by_time"]

ALLOWED = 1.05  # times the budget: equal, up to noise
ROUNDS = 3
EXACT = "exact"


def exact(q: Tensor, k: Tensor, v: Tensor, layer: int = 0) -> Tensor:
    """Attend exactly, by PyTorch's function."""
    return F.scaled_dot_product_attention(q, k, v, scale=1.0)


def size_by_flops(family: Family, shape: tuple[int, int, int], budget: float) -> int | None:
    """Return the largest size within a budget of FLOPs per token, ``None`` if none is; 0 for one size only.

    Args:
        family: the method.
        shape: length, width of queries and width of values.
        budget: FLOPs per token.
    """
    if family.largest is None:
        return 0
    low, high = 0, family.largest(shape[0]) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if family.make(middle).flops(*shape) <= ALLOWED * budget:
            low = middle
        else:
            high = middle
    return low or None


def size_by_time(family: Family, inputs: Attention, layer: int, ours: Method) -> int | None:
    """Return the largest size of the `ladder` that takes no longer than ``ours``, measured in alternation with it.

    ``None`` if even the smallest size takes longer; 0 for one size only.
    """
    if family.largest is None:
        return 0

    def too_slow(size: int) -> bool:
        calls: dict[str, Callable[[], Tensor]] = {
            "ours": partial(ours.attend, *inputs, layer=layer),
            "it": partial(family.make(size).attend, *inputs, layer=layer),
        }
        calls["it"]()  # fits maps
        seconds = best_times(calls, rounds=ROUNDS, budget=0)
        return seconds["it"] > ALLOWED * seconds["ours"]

    sizes = list(ladder(family.largest(inputs.queries.shape[-2])))
    fast = bisect_left(sizes, True, key=too_slow)
    return sizes[fast - 1] if fast else None


def ladder(largest: int) -> Iterator[int]:
    """Yield 1, 2, 3, 4, 6, 8, 12, … up to the largest size."""
    yield 1
    power = 2
    while power <= largest:
        yield from (size for size in (power, power * 3 // 2) if size <= largest)
        power *= 2
