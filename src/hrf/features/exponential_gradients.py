"""Gradients of exponential features, from the features themselves.

A term is exp(a + ib) with a = ±Re ωᵀu and b = ±Im ωᵀu − Re uᵀ Im u; its features are the cosine and the sine of b
times exp(a). Their derivatives are features again: d/da gives both unchanged, and d/db turns (cos, sin) into
(−sin, cos). So nothing is exponentiated anew.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hrf.numerics import Features

__all__ = ["pulled_back"]


def pulled_back(
    real: Tensor | None, imag: Tensor | None, omega: Tensor, values: Tensor, grad: Features
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of Re u and Im u, ``(..., L, d)``.

    Args:
        real: Re u, ``(..., L, d)``; ``None`` where it vanishes.
        imag: Im u, likewise.
        omega: rows ω, ``(..., m, d)``.
        values: features on the scale of their row, cosines before sines, ω before −ω.
        grad: gradients of values, which are overwritten, and of the scales.
    """
    along, grad_real, grad_imag = grad.log_scale, None, None
    sizes, angles = _by_term(values, grad.values, has_real=real is not None, has_imag=imag is not None)
    if sizes is not None and real is not None:
        grad_real = _signed(sizes, omega) @ omega - along * real
    if angles is not None and imag is not None:
        grad_imag = _signed(angles, omega) @ omega + along * imag
        if grad_real is not None and real is not None:  # −Re uᵀ Im u in all angles
            turn = angles.sum(-1, keepdim=True)
            grad_real, grad_imag = grad_real - turn * imag, grad_imag - turn * real
    return grad_real, grad_imag


def _by_term(
    values: Tensor, grad: Tensor, *, has_real: bool, has_imag: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of a and of b of each term, ``(..., L, n_terms)``; ``grad`` is overwritten."""
    if not has_imag:
        return grad.mul_(values), None
    (cos, sin), (along_cos, along_sin) = values.chunk(2, -1), grad.chunk(2, -1)
    angles = torch.addcmul(along_sin * cos, along_cos, sin, value=-1)
    return (along_cos.mul_(cos).addcmul_(along_sin, sin) if has_real else None), angles


def _signed(terms: Tensor, omega: Tensor) -> Tensor:
    """Return the gradient of ωᵀu, given those of all terms, ω alone or ω before −ω: ``(..., L, m)``."""
    if terms.shape[-1] == omega.shape[-2]:
        return terms
    plus, minus = terms.chunk(2, -1)
    return plus - minus
