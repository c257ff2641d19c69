"""The naive twin of every engine: Σ_y K̂(x, y) v(y) from the matrix of estimates, and how to compare."""

from __future__ import annotations

import torch
from torch import Tensor

from hrf.features.base import FeatureMap
from hrf.numerics import Features


def reference(
    x: Tensor, y: Tensor, values: Tensor, phi: FeatureMap, keep: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The sums, and the sums of magnitudes Σ |K̂||v| that rounding is relative to."""
    estimate = phi.estimate(x, y)
    if keep is not None:
        estimate = estimate * keep.unsqueeze(-2)
    return estimate @ values, estimate.abs() @ values.abs()


def inputs(*lead: int, length: int, keys: int, dim: int, columns: int = 5, norm: float = 1.5) -> list[Tensor]:
    """Queries, keys and values in float64, the last column of the values 1."""
    x, y = (norm * torch.randn(*lead, n, dim, dtype=torch.float64) / dim**0.5 for n in (length, keys))
    values = torch.randn(*lead, keys, columns, dtype=torch.float64)
    values[..., -1] = 1
    return [x, y, values]


def sums(engine, x: Tensor, y: Tensor, values: Tensor, phi: FeatureMap, keep=None) -> Features:
    """What an engine streams, for all queries at once: ``(..., H, L, c)``."""
    every = zip(*engine.stream(x, y, values, phi, keep), strict=True)
    return Features(*(torch.cat([p.flatten(0, -2) for p in t]).unflatten(0, x.shape[:-1]) for t in every))


def check_equal(engine, x, y, values, phi, keep=None, tolerance=1e-8):
    """Values and gradients of an engine against the reference."""
    tensors = [t.clone().requires_grad_() for t in (x, y, values)]
    expected, size = reference(*tensors, phi, keep)
    received = sums(engine, *tensors, phi, keep)
    assert isinstance(received, Features)
    assert received.log_scale.shape == (*x.shape[:-1], 1)
    result = received.unscaled()
    assert result.shape == expected.shape
    assert ((result - expected).abs() <= tolerance * size).all()
    with torch.no_grad():
        assert ((sums(engine, x, y, values, phi, keep).unscaled() - expected).abs() <= tolerance * size).all()
    # Weights that make every row count the same, whatever its scale.
    weight = torch.randn_like(expected) / size.detach().amax(-1, keepdim=True).clamp(min=1e-300)
    for mine, theirs in zip(
        torch.autograd.grad((result * weight).sum(), tensors),
        torch.autograd.grad((expected * weight).sum(), tensors),
        strict=True,
    ):
        assert ((mine - theirs).abs() <= tolerance * theirs.abs().amax().clamp(min=1)).all()
