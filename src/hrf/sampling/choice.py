"""One step of a draw: choose a branch by its weight."""

from __future__ import annotations

import warnings

import torch
from torch import Generator, Tensor

__all__ = ["choose", "chosen_products", "step_down"]


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


def step_down(
    masses: Tensor,
    nodes: Tensor,
    span: int,
    draws: int,
    *,
    n_classes: int,
    forced: Tensor | None,
    drawn: bool,
    generator: Generator | None,
) -> tuple[Tensor, Tensor]:
    """Choose a node per draw; return nodes and the logarithms of their probabilities, ``(n, k)`` both.

    Args:
        masses: estimates, ``(n, r, branches)``, for r · draws = k.
        nodes: their indices in the level.
        span: classes per node.
        draws: number of draws per row.
        n_classes: number of classes.
        forced: classes whose way is given; negative where branches are drawn.
        drawn: whether there is anything to draw.
        generator: the source of randomness.
    """
    weights = masses.clamp_(min=0)
    total = weights.sum(-1, keepdim=True)
    if (hopeless := total == 0).any():
        classes = (n_classes - nodes * span).clamp(0, span).to(weights.dtype)
        weights = torch.where(hopeless, classes, weights)
        total = weights.sum(-1, keepdim=True)
    branch = choose(weights, draws, generator) if drawn else None
    if forced is not None:
        given = forced.view(*weights.shape[:-1], draws) // span - nodes[..., :1]
        branch = given if branch is None else torch.where(given < 0, branch, given)
    assert branch is not None
    log_p = weights.gather(-1, branch).log() - total.log()
    return (nodes[..., :1] + branch).flatten(1), log_p.flatten(1)
