"""Predict times of the kernels from their loops: ``python -m benchmarks.gpu.model``.

Launches are recorded on the meta device. Matrix FLOPs and exponentials are those of the loops, padding included; bytes
are every tensor of a launch once, as if a second read hit the cache. A launch takes the longest of the three at `SHARE`
of published peaks. PyTorch's operations around the kernels are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from benchmarks.gpu.launches import Launch, Shape, record

__all__ = ["GPUS", "count", "main"]

SHARE = 0.5  # of peaks that kernels are taken to reach
LENGTHS = (4096, 16384, 65536)


class Gpu(NamedTuple):
    """Published peaks per second, and FLOPs per second of FlashAttention-2, forward and backward.

    Attributes:
        matrix: FLOPs of dense TF32 products.
        memory: bytes.
        exponentials: of the special function units, 16 per clock and multiprocessor.
        flash: FLOPs of FlashAttention-2 forward.
        flash_backward: likewise, or ``None`` where none is published for d = 64.
    """

    matrix: float
    memory: float
    exponentials: float
    flash: float
    flash_backward: float | None


# NVIDIA's data sheets of A100 80 GB and H100 SXM. FlashAttention-2: 73 % and 63 % of 312 TFLOP/s (its paper) and
# 299 TFLOP/s for d = 64 on an H100 (paper of FlashAttention-3).
GPUS = {
    "A100": Gpu(156e12, 2.039e12, 2.4e12, 0.73 * 312e12, 0.63 * 312e12),
    "H100": Gpu(494e12, 3.35e12, 3.9e12, 299e12, None),
}


class Work(NamedTuple):
    """Matrix FLOPs, exponentials and bytes."""

    flops: float
    exponentials: float
    moved: float

    def seconds(self, gpu: Gpu) -> float:
        """Return the time at a share of the peaks."""
        peaks = (gpu.matrix, gpu.exponentials, gpu.memory)
        return max(amount / (SHARE * peak) for amount, peak in zip(self, peaks, strict=True))


def _per_program(launch: Launch) -> tuple[float, float]:
    """Return matrix FLOPs and exponentials of a program: the sizes of ``tl.dot`` in the order of the loops.

    A program of a causal pass meets the blocks of its chunk on one side of it, (SPAN + 1) / 2 on average.
    """
    a = launch.arguments
    T, M, D, V = a["T"], a["M"], a["D"], a.get("V", 0)
    kinds, blocks, name = 1 if a["KIND"] == 1 else 2, -(-a["m"] // M), launch.kernel.fn.__name__
    project, by_values, features = 2 * T * M * D, kinds * 2 * T * M * V, kinds * T * M
    if name == "scale_keys":
        return blocks * project, 0
    if name == "sum_tokens":
        steps = a["n_chunks"] * -(-a["chunk"] // T)
        return steps * (project + by_values), steps * features
    if name == "step":
        return blocks * (3 * project + 2 * by_values), blocks * 2 * features
    causal, pairs, scores = a["CAUSAL"], kinds * 2 * T * M * T, 2 * T * T * V
    partners = a.get("other_groups", 1) * (a["SPAN"] + 1) / 2 if causal else 1
    exponentials = partners * blocks * features * (1 + causal)
    if name == "read_state":
        inner = project + causal * (project + pairs)
        return partners * (blocks * inner + causal * scores) + blocks * by_values, exponentials
    wanted = a["TOKENS"] + a["VALUES"]
    inner = project * (1 + causal + a["TOKENS"]) + causal * wanted * pairs
    state = wanted * by_values  # with the first partners alone
    return partners * (blocks * inner + causal * wanted * scores) + blocks * state, exponentials


def count(launch: Launch) -> Work:
    """Count the work of all programs of a launch."""
    flops, exponentials = _per_program(launch)
    programs = 1
    for size in launch.grid:
        programs *= size
    tensors = {
        id(u): u.numel() * u.element_size() for u in launch.arguments.values() if isinstance(u, Tensor)
    }
    return Work(programs * flops, programs * exponentials, sum(tensors.values()))


def _seconds(launches: Sequence[Launch], gpu: Gpu) -> float:
    return sum(count(launch).seconds(gpu) for launch in launches)


def _predicted() -> Iterator[dict[str, Any]]:
    for length in LENGTHS:
        shape = Shape(length=length)
        passes, pairs = record("positive", shape), 4 * shape.rows * length**2 * shape.dim
        for way, share in (("bidirectional", 1.0), ("causal", 0.5)):
            for name, gpu in GPUS.items():
                forward, backward = (_seconds(passes[key], gpu) for key in (way, f"{way}, backward"))
                flash = share * pairs / gpu.flash
                rows = [("forward", forward, flash)]
                if gpu.flash_backward is not None:
                    both = flash + 2.5 * share * pairs / gpu.flash_backward
                    rows.append(("forward and backward", forward + backward, both))
                for kind, own, exact in rows:
                    about = {"gpu": name, "attention": way, "pass": kind, "length": length}
                    yield {**about, "milliseconds": 1e3 * own, "flash_milliseconds": 1e3 * exact}


def main() -> None:
    """Write the predictions."""
    shape = Shape()
    settings = {"heads": shape.rows, "dim": shape.dim, "features": 2 * shape.n_projections, "share": SHARE}
    text = json.dumps({"settings": settings, "rows": list(_predicted())}, indent=1)
    Path("benchmarks/results/gpu_model.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
