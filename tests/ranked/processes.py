"""Run a function on several ranks: processes with gloo on this machine."""

from __future__ import annotations

import os
import tempfile
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed, multiprocessing

SECONDS = 120.0  # until a test gives up


def run(size: int, function: Callable[..., Any], *arguments: Any, timeout: float = SECONDS) -> list[Any]:
    """Call ``function(*arguments)`` on every rank of a group of this size; return what each returned, or fail."""
    # A server that has imported torch forks processes: they start at once.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["hrf.distributed", "ranked.cases"])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        queue = context.SimpleQueue()
        work = (size, folder, timeout, queue, function, arguments)
        processes = [context.Process(target=_rank, args=(rank, *work)) for rank in range(size)]
        for process in processes:
            process.start()
        found = dict(queue.get() for _ in processes)
        for process in processes:
            process.join()
    for rank, (result, error) in sorted(found.items()):
        assert error is None, f"rank {rank} of {size}:\n{error}"
        found[rank] = result
    return [found[rank] for rank in range(size)]


def texts(calls: dict[str, Callable[[], Any]]) -> dict[str, str]:
    """Return the type and text of the error of each call."""
    found = dict.fromkeys(calls, "nothing was said")
    for name, call in calls.items():
        try:
            call()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def _rank(
    rank: int,
    size: int,
    folder: str,
    timeout: float,
    queue: Any,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    try:
        torch.set_num_threads(1)
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "queries and keys have norms")  # as in pyproject.toml
        distributed.init_process_group(
            "gloo",
            init_method=Path(folder, "store").as_uri(),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout),
        )
        queue.put((rank, (function(*arguments), None)))
        distributed.destroy_process_group()
    except BaseException:
        queue.put((rank, (None, traceback.format_exc())))
