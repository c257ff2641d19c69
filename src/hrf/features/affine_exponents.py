"""Exponents of feature maps as affine functions of the inputs, for loops over single tokens and for the compiled core.

With u = A(x − a), the features of a real exponential map are exp(±ωᵀu) and their log weight is
xᵀb − aᵀb/2 − ‖u‖²/2 − log(2m)/2: ωᵀu, u and xᵀb are affine in x. Trigonometric features are cos ωᵀx and sin ωᵀx with
+‖x‖²/2 in the log weight; those of FAVOR++ and FAVOR# are exp(ωᵀBx + ωᵀ𝐀ω).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

__all__ = ["Affine", "AffineExponents", "joined"]


class Affine(NamedTuple):
    """The columns of ``x @ matrix + offset``, in float64: p, and unless u = x, the entries of u and xᵀb.

    Attributes:
        matrix: ``(H or 1, d, m)``, or ``(H or 1, d, m + d + 1)``.
        offset: ``(H or 1, ·)``; it has one more entry, the last: the constant of the log weight.
    """

    matrix: Tensor
    offset: Tensor


class AffineExponents(NamedTuple):
    """A map whose features are functions of m affine exponents p.

    Attributes:
        kind: ``"pairs"`` for exp(±p), +p before −p; ``"single"`` for exp(p); ``"turns"`` for cos p, then sin p.
        n_projections: m.
        query: the functions of queries.
        key: the functions of keys; the same object if they are the same.
    """

    kind: Literal["pairs", "single", "turns"]
    n_projections: int
    query: Affine
    key: Affine


def joined(parts: Sequence[Tensor], heads: int | None) -> Tensor:
    """Concatenate columns ``(rows, ·)`` or ``(H, rows, ·)``: ``(H or 1, rows, ·)``."""
    return torch.cat([part.expand(heads or 1, *part.shape[-2:]) for part in parts], -1).contiguous()
