"""Sums by sign code in compiled loops, without autograd, for features far from overflow and underflow."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from hrf import tuning
from hrf._attention import loops
from hrf._attention.angular.codes import Codes
from hrf._attention.dense.chunks import Scratch
from hrf.features.exponential import Exponential
from hrf.numerics import Features

__all__ = ["CompiledCodes"]


class CompiledCodes:
    """The compiled twin of `CodeEngine`, for all tokens of some rows.

    Args:
        bases: two of `Exponential`.
        omega: projections for the bases and then for n signs, ``(M, d)`` or ``(R, M, d)``, times ``root``.
        n: number of sign bits.
        length: tokens per row.
        root: √scale, which multiplies tokens.
        ones: add a column of ones to the values.
    """

    def __init__(
        self, bases: list[Exponential], omega: Tensor, n: int, length: int, root: float, *, ones: bool
    ) -> None:
        from hrf._attention.loops.features import COS_SIN, EXP, EXP_BOTH
        from hrf._attention.loops.products import WIDE

        self.n, self.ones = n, ones
        self.codes = Codes.of(n, length / tuning.COMPILED_CODE_TOKENS, omega)
        self.omega = pad(omega, (0, 0, 0, -omega.shape[-2] % WIDE)).mT.contiguous()
        self.width = sum(base.feature_dim for base in bases)
        kinds = [COS_SIN if b.query_matrix.has_imag else EXP_BOTH if b.antithetic else EXP for b in bases]
        starts = [0, 0 if bases[0].projection is bases[1].projection else bases[0].n_projections]
        self.bases = torch.tensor([*zip(kinds, starts, (b.n_projections for b in bases), strict=True)])
        # Logs of weights are linear in the square, and the same for queries and keys: two values tell all.
        squares = omega.new_tensor([[0.0], [1.0]])
        found = torch.stack([b.isotropic_log_weight(squares).flatten() for b in bases])
        self.logs = torch.stack([found[:, 0], (found[:, 1] - found[:, 0]) * root**2], -1)
        self.buffers = (Scratch(), Scratch()), (Scratch(), Scratch())

    def sums(self, rows: slice, x: Tensor, y: Tensor, values: Tensor, keep: Tensor | None) -> Features | None:
        """Return the sums of some rows, ``(R, L, c)``; ``None`` if features come too near to overflow or underflow."""
        from hrf._attention.loops.codes import read, write
        from hrf._attention.loops.products import ROWS, padded

        if keep is not None:
            y = y.masked_fill(~keep.unsqueeze(-1), 0)  # padding must not count
        prepared = self._prepare(rows, x, y)
        if prepared is None:
            return None
        queries, keys = prepared
        if keep is not None:
            keys[2].masked_fill_(~keep.unsqueeze(-1), self.codes.shape[1])
        parts, columns = loops.parts(y), values.shape[-1]
        features = self.width + -self.width % ROWS
        states = y.new_zeros(len(parts), *self.codes.same.shape[:2], features * (padded(columns) + 1))
        every = loops.arrays(self.codes.bits, self.bases)
        tasks = []
        for part, state in zip(parts, states, strict=True):
            tasks.append((*loops.arrays(*(t[part] for t in keys), values[part], state), *every))
        loops.each(write, tasks)
        total = states.unflatten(0, (len(y), -1)).sum(1)
        out = x.new_empty(*x.shape[:2], padded(columns + 1))
        tasks = []
        for part in loops.parts(x):
            own = loops.arrays(*(t[part] for t in queries), out[part], total[part[0]])
            tasks.append((*own, *every, columns))
        loops.each(read, tasks)
        scale = out.new_full((1, 1, 1), -math.log(self.n)).expand(*x.shape[:2], 1)
        # Sums over ones stand after those over values.
        return Features(out[..., : columns + self.ones], scale)

    def _prepare(self, rows: slice, *sides: Tensor) -> list[list[Tensor]] | None:
        """Return products, weights and codes of queries and keys, if all features are far from over- and underflow."""
        from hrf._attention.loops.features import prepare

        every = loops.arrays(self.codes.bits, self.bases, self.logs)
        omega = self.omega if self.omega.ndim == 2 else self.omega[rows]
        tasks, largest, found = [], [], []
        for u, buffers in zip(sides, self.buffers, strict=True):
            shapes = self.omega.shape[-1], 2
            mine = [buffer.of(*u.shape[:2], n, like=u) for buffer, n in zip(buffers, shapes, strict=True)]
            mine.append(torch.empty(*u.shape[:2], len(self.codes.bits), dtype=torch.long))
            parts = loops.parts(u)
            largest.append(u.new_empty(len(parts), 2))
            for part, top in zip(parts, largest[-1], strict=True):
                own = omega if omega.ndim == 2 else omega[part[0]]
                tasks.append((*loops.arrays(u[part], *(t[part] for t in mine), top, own), *every))
            found.append(mine)
        loops.each(prepare, tasks)
        # Queries and keys get a third of the range each, and the sums with the values the last.
        limit = math.log(torch.finfo(omega.dtype).max) / 3
        return found if all(float(t.amax(0).sum()) < limit for t in largest) else None
