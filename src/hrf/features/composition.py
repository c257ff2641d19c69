"""The composition lemma (paper, Sec. 2.2): features of a hybrid from features of its parts.

With λ̂ₖ = aₖ + ρₖ(x)ᵀρₖ(y) and a_{p+1} = 1 − Σ aₖ, the hybrid of ``hybrid.py`` is

    K̂ = Σ_{k≤p+1} aₖ K̂ₖ + Σ_{k≤p} (λ̂ₖ − aₖ)(K̂ₖ − K̂_{p+1}),

so its features are ρₖ ⊗ (φₖ, φ_{p+1}) for every coefficient, then √|aₖ| φₖ for every base. Signs stand on the key
side: the minus, ρₖ ⊗ (φₖ, −φ_{p+1}), and the signs of the aₖ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hrf.features.base import Side

__all__ = ["compose"]


def compose(
    phi: list[Tensor],
    rho: list[Tensor],
    constants: Sequence[float],
    side: Side,
    out: Tensor | None = None,
) -> Tensor:
    """Multiply features φₖ of the bases with features ρₖ of the coefficients.

    Args:
        phi: ``(..., L, D)`` per base.
        rho: the number 1, ``(..., L, 1)``, then ``(..., L, n)`` per coefficient.
        constants: aₖ per base; bases with aₖ = 0 have no features of their own.
        side: signs stand on the key side.
        out: a place for the result, without autograd then.
    """
    one, *rho = rho
    if side == "key":
        phi = [*phi[:-1], -phi[-1]]
    # Widest first: it then is what touches the memory of the result, with all threads.
    products = [(r, torch.cat([phi[k], phi[-1]], -1)) for k, r in enumerate(rho)]
    for k, a in enumerate(constants):
        if a:
            # Key signs: the sign of aₖ, and the minus of the last base, which −φ has already.
            sign = 1 if side == "query" else math.copysign(1, a) * (-1 if k == len(rho) else 1)
            products.append((one * (sign * math.sqrt(abs(a))), phi[k]))
    blocks, start = [], 0
    for factor, vector in products:
        shape = (factor.shape[-1], vector.shape[-1])
        place = None if out is None else out[..., start : start + math.prod(shape)].unflatten(-1, shape)
        blocks.append(torch.mul(factor.unsqueeze(-1), vector.unsqueeze(-2), out=place).flatten(-2))
        start += math.prod(shape)
    return torch.cat(blocks, -1) if out is None else out
