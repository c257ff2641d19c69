"""Evolution strategies, and the processes that compute returns."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Generator, Tensor

from hrf_paper.requirements import missing

# Evolution strategies: antithetic directions, centred ranks, Adam.
#
# The gradient of the expected return under Gaussian noise of deviation σ is estimated from pairs θ ± σε, which meet the
# same terrain: g = Σ (rank(θ + σε) − rank(θ − σε)) ε / (number of pairs · σ).

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


# Where returns are computed: in this process, in several processes, or on Ray where it is installed.

Task = TypeVar("Task")
Result = TypeVar("Result")


class Mapped(Protocol):
    """A function like ``map``, whose results are in the order of the tasks."""

    def __call__(self, function: Callable[[Task], Result], tasks: Iterable[Task], /) -> Iterable[Result]:
        """Apply the function to all tasks."""
        ...


@contextmanager
def workers(processes: int = 1, *, ray: bool = False) -> Iterator[Mapped]:
    """Return a ``map`` over processes, for the time of the block.

    Each task is computed by itself, so that results do not depend on the number of processes.

    Args:
        processes: their number; 1 computes here.
        ray: whether to use a Ray cluster instead.
    """
    if processes < 1:
        raise ValueError(f"processes is {processes}; expected at least 1")
    if ray:
        yield _on_ray()
    elif processes == 1:
        yield map
    else:
        # Spawned: PyBullet and PyTorch do not survive a fork with threads.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, context, initializer=_one_thread) as pool:
            yield pool.map


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _on_ray() -> Mapped:
    if missing(("ray",)):
        raise ModuleNotFoundError("training on Ray needs ray: pip install ray", name="ray")
    cluster: Any = import_module("ray")
    if not cluster.is_initialized():
        cluster.init()

    def mapped(function: Callable[[Task], Result], tasks: Iterable[Task], /) -> Iterable[Result]:
        remote = cluster.remote(function)
        results: list[Result] = cluster.get([remote.remote(task) for task in tasks])
        return results

    return mapped
