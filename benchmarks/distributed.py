"""Time per rank at a fixed length per rank, for 1 and 2 ranks: ``python -m benchmarks.distributed``.

Ranks are processes with gloo and one thread each. Groups of one and of two run in alternation, so that other load hits
both alike; a time is the shortest of all rounds, and of each round that of the slowest rank.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from torch import distributed, multiprocessing

import hrf
from hrf.atomic_write import write
from hrf.report import table

HEADS, DIM, FEATURES = 4, 64, 256
LENGTH = 8192  # per rank
SIZES, ROUNDS, CALLS = (1, 2), 3, 3
ROOT = Path(__file__).parent / "results"


def cases() -> dict[str, Any]:
    """Return the calls to be timed, by name."""
    generator = torch.Generator().manual_seed(distributed.get_rank())
    tokens = [torch.randn(1, HEADS, LENGTH, DIM, generator=generator) for _ in range(3)]
    traced = [t.clone().requires_grad_() for t in tokens]

    def forward(function: Any, phi: hrf.Positive, causal: bool) -> Any:
        return lambda: function(*tokens, phi, is_causal=causal)

    def both(function: Any, phi: hrf.Positive, causal: bool) -> Any:
        return lambda: torch.autograd.grad(function(*traced, phi, is_causal=causal).sum(), traced)

    found, phi = {}, hrf.Positive(DIM, n_projections=FEATURES // 2, seed=0)
    for causal in (False, True):
        for kind, call in (("forward", forward), ("with gradients", both)):
            label = f"{'causal' if causal else 'bidirectional'}, {kind}"
            found[label] = call(hrf.distributed.attention, phi, causal)
            found[f"{label}, hrf.attention of the part"] = call(hrf.attention, phi, causal)
    return found


def worker(rank: int, size: int, folder: str, place: str) -> None:
    """Time all cases on one rank; the first writes the times of the slowest rank, and bytes."""
    torch.set_num_threads(1)
    store = Path(folder, "store").as_uri()
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    found = {}
    for name, call in cases().items():
        best = float("inf")
        for _ in range(CALLS + 1):  # the first warms up
            distributed.barrier()
            with hrf.distributed.traffic() as moved:
                start = perf_counter()
                call()
                seconds = torch.tensor(perf_counter() - start)
            distributed.all_reduce(seconds, distributed.ReduceOp.MAX)
            best = min(best, float(seconds))
        found[name] = {"seconds": best, "bytes": moved.bytes, "collectives": moved.collectives}
    if rank == 0:
        Path(place).write_text(json.dumps(found), encoding="utf-8")
    distributed.destroy_process_group()


def measure(size: int) -> dict[str, Any]:
    """Run a group of this size once."""
    with tempfile.TemporaryDirectory() as folder:
        place = str(Path(folder, "times.json"))
        multiprocessing.spawn(worker, (size, folder, place), nprocs=size)
        return dict(json.loads(Path(place).read_text(encoding="utf-8")))


def collected(rounds: Sequence[dict[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Take the shortest time of all rounds, per case and number of ranks."""
    rows = []
    for name, first in rounds[0][SIZES[0]].items():
        seconds = {str(size): min(found[size][name]["seconds"] for found in rounds) for size in SIZES}
        moved = {str(size): rounds[0][size][name]["bytes"] for size in SIZES}
        ratio = seconds[str(SIZES[1])] / seconds[str(SIZES[0])]
        rows.append(
            {
                "case": name,
                "seconds": seconds,
                "ratio": ratio,
                "bytes": moved,
                "collectives": first["collectives"],
            }
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT, help="directory of distributed.json")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    before = os.getloadavg()
    rows = collected([{size: measure(size) for size in SIZES} for _ in range(options.rounds)])
    machine = {
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
    }
    result = {
        "command": "python -m benchmarks.distributed",
        "machine": machine | {"load before": before, "load after": os.getloadavg()},
        "settings": {
            "heads": HEADS,
            "dim": DIM,
            "features": FEATURES,
            "length per rank": LENGTH,
            "rounds": options.rounds,
            "calls": CALLS,
        },
        "rows": rows,
    }
    write(options.out / "distributed.json", (json.dumps(result, indent=1) + "\n").encode())
    header = ["case", "1 rank, ms", "2 ranks, ms", "ratio", "bytes of 2"]
    cells = [
        [
            row["case"],
            *(f"{1e3 * t:.0f}" for t in row["seconds"].values()),
            f"{row['ratio']:.2f}",
            f"{row['bytes']['2']:,}",
        ]
        for row in rows
    ]
    Console().print(
        table(header, cells, title=f"{LENGTH:,} tokens per rank, {HEADS} heads of {DIM}, one thread")
    )


if __name__ == "__main__":
    main()
