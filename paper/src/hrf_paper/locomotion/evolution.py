"""Evolution strategies: antithetic directions, centred ranks, Adam.

The gradient of the expected return under Gaussian noise of deviation σ is estimated from pairs θ ± σε, which meet the
same terrain: g = Σ (rank(θ + σε) − rank(θ − σε)) ε / (number of pairs · σ).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Generator, Tensor

__all__ = ["Evolution", "centred_ranks", "directions", "start", "updated"]

_DECAYS = (0.9, 0.99)
_EPSILON = 1e-8


class Evolution(NamedTuple):
    """Parameters in training.

    Attributes:
        parameters: θ, ``(n,)``.
        mean: first moment of Adam.
        square: second moment of Adam.
        iteration: updates so far.
    """

    parameters: Tensor
    mean: Tensor
    square: Tensor
    iteration: int


def start(parameters: Tensor) -> Evolution:
    """Return the state before the first update."""
    return Evolution(parameters, torch.zeros_like(parameters), torch.zeros_like(parameters), 0)


def directions(n_pairs: int, n_parameters: int, *, seed: int, iteration: int) -> Tensor:
    """Draw ε, ``(pairs, n)``, from seed and iteration alone."""
    generator = Generator().manual_seed(1_000_003 * seed + iteration)
    return torch.randn(n_pairs, n_parameters, generator=generator)


def centred_ranks(returns: Tensor) -> Tensor:
    """Replace numbers by their ranks, scaled to -½ … ½; equal numbers share the mean of their ranks.

    A ``FloatingPointError`` says how many returns are NaN or infinite.
    """
    if bad := int((~returns.isfinite()).sum()):
        raise FloatingPointError(f"{bad} of {returns.numel()} returns are not finite")
    flat = returns.ravel().double()
    below = (flat[:, None] > flat).sum(1)
    ties = (flat[:, None] == flat).sum(1)
    ranks = below + (ties - 1) / 2
    return (ranks / max(1, len(flat) - 1) - 0.5).reshape(returns.shape).float()


def updated(
    state: Evolution, noise: Tensor, returns: Tensor, *, deviation: float, learning_rate: float
) -> Evolution:
    """Take a step of Adam along the estimated gradient.

    Args:
        state: parameters before the step.
        noise: ε, ``(pairs, n)``.
        returns: ``(2, pairs)``, of θ + σε and of θ - σε.
        deviation: σ.
        learning_rate: of Adam.
    """
    ranks = centred_ranks(returns)
    gradient = (ranks[0] - ranks[1]) @ noise / (len(noise) * deviation)
    iteration = state.iteration + 1
    fast, slow = _DECAYS
    mean = fast * state.mean + (1 - fast) * gradient
    square = slow * state.square + (1 - slow) * gradient**2
    step = (mean / (1 - fast**iteration)) / ((square / (1 - slow**iteration)).sqrt() + _EPSILON)
    parameters = state.parameters + learning_rate * step
    if not bool(parameters.isfinite().all()):
        raise FloatingPointError(f"parameters are not finite after iteration {iteration}")
    return Evolution(parameters, mean, square, iteration)
