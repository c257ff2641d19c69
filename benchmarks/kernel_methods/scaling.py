"""Up to 10⁷ rows through `KernelRidge` on a Dask cluster of two worker processes: time, memory, coefficients.

Rows are made block by block on the workers and never exist all at once. The same blocks go through `partial_fit` in
one process, and the coefficients of both are compared. With ``--wide``, 4,096 features by conjugate gradients: every
product passes over the rows, which are made anew each time.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import torch
from distributed import Client, LocalCluster
from numpy.typing import NDArray

from benchmarks import report
from hrf.learn import KernelRidge
from hrf.report import folder, write

Array = NDArray[np.float64]

SIZES = (10**5, 10**6, 10**7)
COLUMNS, BLOCK, WIDTH, WIDE = 20, 50_000, 256, 4096


def block(index: int) -> Array:
    """Make a block of rows ``(BLOCK, COLUMNS + 1)``; the target is the last column."""
    generator = np.random.default_rng([0, index])
    x = generator.normal(size=(BLOCK, COLUMNS))
    y = np.sin(x[:, 0]) + x[:, 1] * x[:, 2] / 2 + 0.1 * generator.normal(size=BLOCK)
    return np.hstack([x, y[:, None]])


def model(width: int = WIDTH) -> KernelRidge:
    """Return the model to fit."""
    return KernelRidge(
        alpha=1.0, gamma=1 / (4 * COLUMNS), feature_map="trigonometric", n_features=width, random_state=0
    )


def on_cluster(client: Client, rows: int, width: int = WIDTH) -> tuple[KernelRidge, dict[str, float]]:
    """Fit on the cluster; measure seconds, CPU seconds of the workers and their peak memory."""
    parts = [
        da.from_delayed(dask.delayed(block)(k), (BLOCK, COLUMNS + 1), dtype=np.float64)
        for k in range(rows // BLOCK)
    ]
    table = da.concatenate(parts)
    before, start = sum(client.run(time.process_time).values()), time.perf_counter()
    fitted = model(width).fit(table[:, :-1], table[:, -1])
    return fitted, {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": sum(client.run(time.process_time).values()) - before,
        "peak_megabytes": max(client.run(peak).values()),
    }


def peak() -> float:
    """Return the largest memory that this process ever held, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_one_process(rows: int) -> KernelRidge:
    """Fit block by block, without Dask."""
    fitted = model()
    for k in range(rows // BLOCK):
        table = block(k)
        fitted.partial_fit(table[:, :-1], table[:, -1])
    return fitted


def run(sizes: Sequence[int], path: Path, wide: bool) -> None:
    """Measure, print and write: the cluster first, then, for narrow features, one process."""
    torch.set_num_threads(1)
    known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    result: dict[str, Any] = {
        "columns": COLUMNS,
        "block": BLOCK,
        "width": WIDTH,
        "workers": 2,
        "sizes": {},
    } | known
    kind = "wide" if wide else "sizes"
    result["wide_environment" if wide else "environment"] = report.environment()
    result[kind] = {}
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None)
    with cluster, Client(cluster) as client:
        client.run(torch.set_num_threads, 1)
        on_cluster(client, 2 * BLOCK)  # workers import what they need
        fitted = {}
        for rows in sizes:
            fitted[rows], result[kind][str(rows)] = on_cluster(client, rows, WIDE if wide else WIDTH)
            save(result, path)
    if wide:
        return
    for rows, model_of_cluster in fitted.items():
        coef = in_one_process(rows).coef_
        difference = np.abs(model_of_cluster.coef_ - coef).max() / np.abs(coef).max()
        result["sizes"][str(rows)]["coefficient_difference"] = float(difference)
        save(result, path)


def save(result: dict[str, Any], path: Path) -> None:
    """Print and write what is known so far."""
    print(result["sizes"], result.get("wide"), flush=True)
    write(folder(path.parent) / path.name, (json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernel_methods.scaling", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[*SIZES], help=f"multiples of {BLOCK}")
    parser.add_argument("--wide", action="store_true", help=f"{WIDE} features instead of {WIDTH}")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for kernel_scaling.json")
    args = parser.parse_args(argv)
    run(args.sizes, args.out / "kernel_scaling.json", args.wide)
    return 0


if __name__ == "__main__":
    sys.exit(main())
