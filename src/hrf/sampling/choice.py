"""One step of a draw: choose a branch by its weight."""

from __future__ import annotations

import warnings

import torch
from torch import Generator, Tensor

__all__ = ["choose", "chosen_products"]


def choose(weights: Tensor, draws: int, generator: Generator | None) -> Tensor:
    """Draw branches with replacement, in proportion to their weights: ``(..., n) -> (..., draws)``.

    A branch of weight 0 is never drawn; each row needs a positive weight.
    """
    ends = weights.cumsum(-1)
    u = torch.rand(
        *weights.shape[:-1], draws, generator=generator, dtype=weights.dtype, device=weights.device
    )
    # u is at most 1 less one unit in its last place, so that the product stays below the last end.
    return torch.searchsorted(ends, u * ends[..., -1:], right=True)


def chosen_products(x: Tensor, rows: Tensor, index: Tensor) -> Tensor:
    """Multiply each x with its own choice of rows: ``(N, D), (R, D), (N, j) -> (N, j)``."""
    if index.shape[1] >= len(rows):
        return (x @ rows.mT).gather(1, index)
    if x.device.type != "cpu":
        return (rows[index] @ x.unsqueeze(-1)).squeeze(-1)
    # Entries of the product x rowsᵀ at the places of a sparse matrix: rows are read and never copied.
    starts = torch.arange(len(x) + 1) * index.shape[1]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
        places = torch.sparse_csr_tensor(
            starts,
            index.flatten(),
            x.new_zeros(index.numel()),
            size=(len(x), len(rows)),
            check_invariants=False,  # the columns of a row need no order here
        )
    return torch.sparse.sampled_addmm(places, x, rows.mT, beta=0.0).values().view(index.shape)
