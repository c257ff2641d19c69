"""Cells of past queries: centres that later queries are read from, and the metrics of a block.

A later query x of a cell with centre r is x = r + δ. Of the members (the block's own last queries) Λ is the covariance
of δ, up to a factor, so δᵀ(y₁ − y₂) has a variance proportional to |y₁ − y₂|² in the metric Λ. The factor is the
query's own: γ(x) = δᵀΣ_yδ / tr(ΛΣ_y), Σ_y the covariance of the block's keys.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hrf._attention.summarised.statistics import covariance
from hrf._attention.summarised.tree import JITTER, balanced_parts, root_of_metric

__all__ = ["Cells", "Placed", "make_cells"]


class Placed(NamedTuple):
    """Queries in cells.

    Attributes:
        delta: δ, ``(M, m, d)``.
        width: γ(x), ``(M, m)``.
        cell: ``(M, m)``.
    """

    delta: Tensor
    width: Tensor
    cell: Tensor


class Cells(NamedTuple):
    """Cells of M blocks: constants to the gradient.

    Attributes:
        centre: r, ``(M, G, d)``.
        root: R with R Rᵀ = Σ_y / tr(ΛΣ_y), ``(M, d, d)``.
        metric_root: the same of Λ.
    """

    centre: Tensor
    root: Tensor
    metric_root: Tensor

    def place(self, x: Tensor) -> Placed:
        """Put queries ``(M, m, d)`` into the cells with the nearest centres."""
        with torch.no_grad():
            cell = torch.cdist(x @ self.root, self.centre @ self.root).argmin(-1)
            centre = self.centre.gather(1, cell[..., None].expand_as(x))
        delta = x - centre
        return Placed(delta, (delta @ self.root).square().sum(-1), cell)


@torch.no_grad()
def make_cells(x: Tensor, members: Tensor, y: Tensor, real: Tensor, n_cells: int) -> Cells:
    """Make cells from queries ``(M, m, d)``, as ``members (M, m)`` says, and keys ``(M, n, d)``, ``real (M, n)``.

    Padding holds zeros, and is the only member of a block without any. A cell without member has the mean of all.
    """
    members = members | ~members.any(-1, keepdim=True)
    spread = covariance(y, real)
    root = root_of_metric(spread)
    parts = balanced_parts(x @ root, members, n_cells)
    rows, some = parts.take(x), parts.filled[..., None]
    counts = some.sum(-2)
    overall = rows.sum((1, 2)) / counts.sum(1)
    centre = (rows.sum(-2) / counts.clamp(min=1)).where(counts > 0, overall[:, None])
    residual = ((rows - centre[..., None, :]) * some).flatten(1, 2)
    metric = residual.mT @ residual
    size = metric.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]
    eye = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    tiny = torch.finfo(x.dtype).tiny
    # Members that are all alike say nothing about later queries: all directions count the same.
    metric = (metric / size.clamp(min=tiny)).where(size > tiny, eye / len(eye)) + JITTER * eye
    scale = (metric * spread).sum((1, 2)).clamp(min=tiny).sqrt()
    return Cells(centre, root / scale[:, None, None], torch.linalg.cholesky(metric))
