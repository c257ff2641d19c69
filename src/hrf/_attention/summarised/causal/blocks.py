"""Finished blocks of keys: clusters, cells, and the table of their summaries."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from hrf._attention.recompute import recompute
from hrf._attention.summarised.causal.cells import Cells, make_cells
from hrf._attention.summarised.causal.nodes import make_table
from hrf._attention.summarised.causal.sizes import WIDTH
from hrf._attention.summarised.tree import Parts, balanced_parts

__all__ = ["Blocks", "make_blocks"]


class Blocks(NamedTuple):
    """M blocks of n keys each.

    Attributes:
        cells: of queries.
        clusters: parts of the keys, ``(M, n / WIDTH, WIDTH)``.
        keys: by cluster, ``(M, n / WIDTH, WIDTH, d)``, zeros at places without key.
        values: likewise, ``(..., d_v)``.
        table: summaries, ``(M, G, nodes, ·)``.
    """

    cells: Cells
    clusters: Parts
    keys: Tensor
    values: Tensor
    table: Tensor


def make_blocks(x: Tensor, members: Tensor, y: Tensor, v: Tensor, real: Tensor, n_cells: int) -> Blocks:
    """Make blocks of keys ``(M, n, d)``, ``real (M, n)``, and of queries ``(M, m, d)`` for their cells.

    Padding holds zeros.
    """
    cells = make_cells(x, members, y, real, n_cells)
    clusters = _clusters(y @ cells.metric_root, real)
    table = recompute(partial(_table, cells, clusters), y, v, learned=())[0]
    return Blocks(cells, clusters, clusters.take(y), clusters.take(v), table)


def _table(cells: Cells, clusters: Parts, y: Tensor, v: Tensor) -> tuple[Tensor]:
    return (make_table(cells, clusters, y, v),)


@torch.no_grad()
def _clusters(y: Tensor, real: Tensor) -> Parts:
    """Cut the real keys of each block into clusters of at most `WIDTH` keys."""
    # A block without key has clusters of padding, of which no place is filled.
    parts = balanced_parts(y, real | ~real.any(-1, keepdim=True), y.shape[1] // WIDTH)
    missing = WIDTH - parts.tokens.shape[-1]
    tokens, filled = (pad(u, (0, missing)) for u in parts)
    return Parts(tokens, filled & real.gather(1, tokens.flatten(1)).view_as(filled))
