"""Where returns are computed: in this process, in several processes, or on Ray where it is installed."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Protocol, TypeVar

from hrf_paper.requirements import missing

__all__ = ["Mapped", "workers"]

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
