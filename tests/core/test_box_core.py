"""The box by the core, against PyTorch's operations."""

from __future__ import annotations

import pytest
import torch

from attention.data import random
from hrf import _core as core
from hrf._attention.denominator import Running, Visible, bounded, of_all, put_in_box

N, KEYS, WIDTH = 3, 40, 5


def seen(kind: str, dtype: torch.dtype) -> tuple[Visible | object, int]:
    """What some rows see, and how many there are: all keys, or those up to their own, with a key that is ignored."""
    value = random(1, N, 2 * KEYS, WIDTH, seed=1).to(dtype)
    ignore = torch.zeros(1, 2 * KEYS, dtype=torch.bool)
    ignore[:, [0, KEYS + 3]] = True
    if kind == "all":
        return of_all(value, ignore, dtype, signed=True), KEYS
    before = of_all(value[:, :, :KEYS], ignore[:, :KEYS], dtype, signed=True)
    ones = (~ignore)[:, None, KEYS:, None].to(dtype).expand(1, N, KEYS, 1)
    chunk = torch.cat([value[:, :, KEYS:] * ones, ones], -1).flatten(0, 1)
    groups = 2 if kind == "grouped" else 1
    return Running(before).chunk(chunk, groups), KEYS * groups


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["all", "causal", "grouped"])
def test_equal_to_bounded(kind, dtype, marked):
    visible, rows = seen(kind, dtype)
    # Some outputs are far outside, some leave the box by rounding, the last row is infinite.
    out = 2.5 * random(N, 2 * rows, WIDTH, seed=2).to(dtype)[:, :rows]
    low, high = visible.per_row().low, visible.per_row().high
    assert low is not None
    out[:, 1] = high[:, min(1, high.shape[1] - 1)] * (1 + 4 * torch.finfo(dtype).eps)
    out[:, -1] = torch.inf
    small = random(N, rows, 1, seed=3) > 0.5
    small[:, [1, -1]] = False
    expected, moved = bounded(out, small, visible)
    found, marks = out.clone(), torch.zeros_like(out, dtype=torch.bool) if marked else None
    assert core.serves(found)
    clipped = put_in_box(found, small, visible, marks)
    # A mean is a sum in another order; numbers in the box are copied.
    torch.testing.assert_close(found, expected, rtol=0, atol=2 * KEYS * torch.finfo(dtype).eps * 4)
    assert torch.equal(found.where(~small, 0), expected.where(~small, 0))
    assert torch.equal(clipped, moved.any(-1, keepdim=True))
    assert not clipped[:, 1].any()
    assert clipped[:, -1].all()
    if marks is not None:
        assert torch.equal(marks, moved)


def test_a_row_that_sees_nothing_is_zero():
    nothing = of_all(torch.zeros(1, N, 0, WIDTH), None, torch.float32, signed=True)
    out = torch.full((N, 2, WIDTH), torch.nan)
    clipped = put_in_box(out, torch.ones(N, 2, 1, dtype=torch.bool), nothing)
    assert not out.any()
    assert not clipped.any()
