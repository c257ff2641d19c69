"""The rule for outputs, in place and without autograd: in one compiled pass, or by `bounded` in blocks.

Outputs of all rows do not fit the cache, and the operations of `bounded` pass over them several times.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hrf._attention import loops
from hrf._attention.visible import ROUNDING, Visible, VisibleChunk, bounded

__all__ = ["put_in_box"]


@torch.no_grad()
def put_in_box(
    out: Tensor, small: Tensor, seen: Visible | VisibleChunk, moved: Tensor | None = None
) -> Tensor | None:
    """Replace rows whose denominator is too small by the mean, and move all others into the box, in place.

    Args:
        out: quotients, ``(N, rows, d_v)``; rows of one of the N are contiguous.
        small: rows whose denominator is too small, ``(N, rows, 1)``.
        seen: the values that the rows see.
        moved: where to mark coordinates that were moved by more than rounding, ``(N, rows, d_v)``, or ``None``.

    Returns:
        Rows with such a coordinate, ``(N, rows, 1)``; ``None`` for maps without signs, which stay in the box.
    """
    before, values, groups = seen.in_order()
    if before.low is None or before.high is None:
        found, _ = bounded(out, small, seen)
        if found is not out:
            out.copy_(found)
        return None
    if not loops.serves(out):
        found, marks = bounded(out, small, seen)
        out.copy_(found)
        if marks is None:
            return torch.zeros_like(small)
        if moved is not None:
            moved.copy_(marks)
        return marks.any(-1, keepdim=True)
    return _compiled(out, small, before, values, groups, moved)


def _compiled(
    out: Tensor, small: Tensor, before: Visible, values: Tensor, groups: int, moved: Tensor | None
) -> Tensor:
    from hrf._attention.loops.box import clip_rows

    clipped, rounding = torch.zeros_like(small), ROUNDING * torch.finfo(out.dtype).eps
    # A loop that sees values one after the other writes to the box, and has its head to itself.
    boxes = loops.arrays(*(t[:, 0].clone() for t in before if t is not None), values)
    rows, too_small, flags = (t.detach().numpy() for t in (out, small[..., 0], clipped[..., 0]))
    marks = np.empty((len(rows), 0, 0), bool) if moved is None else moved.numpy()

    def clip(n: int, some: slice) -> None:
        own = (box[n] for box in boxes)
        clip_rows(
            *(rows[n, some], too_small[n, some], *own, groups, rounding, flags[n, some], marks[n, some])
        )

    tasks = [(n, slice(None)) for n in range(len(rows))] if values.shape[1] else loops.parts(out)
    loops.each(clip, tasks)
    return clipped
