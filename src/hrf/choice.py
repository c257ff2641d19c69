"""One step of a draw: weigh branches, and choose one by its weight.

What values rarely need is left out on a CPU where they do not need it, and always done on an accelerator, which would
have to be waited for.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from hrf.numerics import finite

__all__ = ["branch_weights", "choose", "chosen_products", "mixed", "step_down", "uniform_ids"]

_CLOSE = 30.0  # log scales this close to each other can share one scale without loss


def choose(weights: Tensor, draws: int, generator: Generator | None) -> Tensor:
    """Draw branches with replacement, in proportion to their weights: ``(..., n) -> (..., draws)``.

    A branch of weight 0 is never drawn; each row needs a positive weight.
    """
    ends = weights.cumsum(-1)
    limits = torch.finfo(weights.dtype)
    if not ends.is_cpu or (ends[..., -1] < limits.tiny / limits.eps).any():
        # Sums of subnormal numbers are so coarse that their product with u would round up to the last end.
        ends = (weights / weights.amax(-1, keepdim=True)).cumsum(-1)
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


def branch_weights(products: Tensor, log_scale: Tensor, floor: float) -> Tensor:
    """Compute masses on one scale per row, 0 where a product is at most ``floor``; products are overwritten.

    The scale is the largest scale of a branch with mass: long classes without mass do not hide short ones.
    """
    products = F.threshold(products, floor, 0.0, inplace=True)
    if products.is_cpu:
        high = finite(log_scale.amax())
        if high - log_scale.masked_fill(log_scale.isneginf(), torch.inf).amin() < _CLOSE:
            return products.mul_((log_scale - high).exp())
    scale = torch.where(products > 0, log_scale, -torch.inf)
    return products.mul_(scale.sub_(finite(scale.amax(-1, keepdim=True))).exp_())


def step_down(
    weights: Tensor,
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
        weights: masses, not negative, ``(n, r, branches)``, for r · draws = k.
        nodes: their indices in the level.
        span: classes per node.
        draws: number of draws per row.
        n_classes: number of classes.
        forced: classes whose way is given; negative where branches are drawn.
        drawn: whether there is anything to draw.
        generator: the source of randomness.
    """
    total = weights.sum(-1, keepdim=True)
    if not (hopeless := total == 0).is_cpu or hopeless.any():
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


def uniform_ids(
    shape: tuple[int, int], n_classes: int, share: float, generator: Generator | None, device: torch.device
) -> Tensor:
    """Draw classes for the share of uniform draws, −1 for all other draws."""
    uniform = torch.rand(shape, generator=generator, device=device) < share
    ids = torch.randint(n_classes, shape, generator=generator, device=device)
    return ids.masked_fill_(~uniform, -1)


def mixed(log_q: Tensor, share: float, n_classes: int) -> Tensor:
    """Mix a share of uniform draws into probabilities: (1 − share) q + share / n_classes, in logs."""
    if not share:
        return log_q
    uniform = log_q.new_tensor(math.log(share / n_classes))
    return torch.logaddexp(log_q + math.log1p(-share), uniform)
