"""Rows of many columns: features and ridge regression with orthogonal and with Hadamard projections."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch

from benchmarks import report
from hrf.learn import KernelRidge, RandomFeatures
from hrf.report import folder, write

SIZES, WIDTHS, ROWS = (256, 784, 4096), (2048, 8192), 2000
KINDS = ("orthogonal", "hadamard")


def measured(columns: int, width: int, kind: Any) -> dict[str, float]:
    """Return CPU seconds to draw the map, to map all rows (the best of three), and to fit ridge regression."""
    x = np.random.default_rng(0).normal(size=(ROWS, columns)).astype(np.float32)
    given: dict[str, Any] = {"gamma": 0.5 / columns, "projection": kind, "random_state": 0}
    start = process_time()
    features = RandomFeatures(n_components=width, **given).fit(x)
    drawn, mapped = process_time() - start, []
    for _ in range(3):
        start = process_time()
        features.transform(x)
        mapped.append(process_time() - start)
    start = process_time()
    KernelRidge(n_features=width, **given).fit(x, np.sin(3 * x[:, 0]))
    return {"draw": drawn, "transform": min(mapped), "fit": process_time() - start}


def rows_of(result: dict[str, Any]) -> list[list[str]]:
    """Return one row per number of columns and width, both projections side by side."""
    rows = [
        ["columns", "features", *(f"{what}, {kind}" for what in ("µs per row", "s to fit") for kind in KINDS)]
    ]
    for key in dict.fromkeys(key.rpartition("|")[0] for key in result["times"]):
        found = [result["times"][f"{key}|{kind}"] for kind in KINDS]
        mapped = [f"{times['transform'] / result['rows'] * 1e6:.0f}" for times in found]
        columns, width = map(int, key.split("|"))
        rows.append([f"{columns:,}", f"{width:,}", *mapped, *(f"{times['fit']:.2f}" for times in found)])
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernel_methods.columns", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for kernel_columns.json")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    cases = [(columns, width, kind) for columns in SIZES for width in WIDTHS for kind in KINDS]
    times = {"|".join(map(str, case)): measured(*case) for case in cases}
    result = {"rows": ROWS, "times": times, "environment": report.environment()}
    for row in rows_of(result):
        print(" | ".join(row))
    write(folder(args.out) / "kernel_columns.json", (json.dumps(result, indent=1) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
