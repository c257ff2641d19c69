"""Pools of processes with one thread each: one core per task, and no threads that wait for each other."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

__all__ = ["CORES", "pool"]

CORES = 2


def pool(n_workers: int | None = None, threads: int = 1) -> ProcessPoolExecutor:
    """Return a pool of new processes: two, or one per core if there are fewer."""
    n_workers = min(CORES, os.cpu_count() or 1) if n_workers is None else n_workers
    return ProcessPoolExecutor(
        n_workers, mp_context=get_context("spawn"), initializer=torch.set_num_threads, initargs=(threads,)
    )
