"""Attention over several processes: ``torchrun --standalone --nproc-per-node 2 -m examples.distributed``.

Each process has its part of a sequence. The table compares outputs and gradients of all parts with one process that has
the whole sequence, and counts what moves between processes at several lengths.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import torch
from rich.console import Console
from torch import Tensor, distributed

import hrf
from hrf.report import table

HEADS, DIM = 2, 16
LENGTHS = 1024, 16384


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        name: of the map.
        is_causal: whether queries see no later key.
        length: tokens of all processes.
        outputs: largest difference of an output, relative to the largest output.
        gradients: largest difference of a gradient, relative to the largest gradient.
        forward: the most bytes that a process hands over in the forward pass.
        both: the most bytes in both passes.
        collectives: the most calls of collectives in both passes.
    """

    name: str
    is_causal: bool
    length: int
    outputs: float
    gradients: float
    forward: int
    both: int
    collectives: int

    def cells(self) -> list[str]:
        """Return the cells of the line."""
        numbers = f"{self.outputs:.0e}", f"{self.gradients:.0e}", f"{self.forward:,}", f"{self.both:,}"
        return [
            self.name,
            "yes" if self.is_causal else "no",
            f"{self.length:,}",
            *numbers,
            str(self.collectives),
        ]


def maps(sample: Tensor) -> dict[str, hrf.FeatureMap]:
    """Build one map per family, the same in every process."""
    return {
        "Positive": hrf.Positive(DIM, n_projections=32, seed=0).double(),
        "AngularHybrid": hrf.AngularHybrid(
            DIM, n_projections=16, n_coefficient_projections=4, seed=0
        ).double(),
        "ClusteredHybrid": hrf.ClusteredHybrid.fit(sample, sample, n_projections=16, seed=0).double(),
    }


def compared(name: str, phi: hrf.FeatureMap, tokens: list[Tensor], *, is_causal: bool) -> Row:
    """Compare this process's part with the whole."""
    rank, size, length = distributed.get_rank(), distributed.get_world_size(), tokens[0].shape[-2]
    rows = slice(rank * length // size, (rank + 1) * length // size)
    own = [t[..., rows, :].detach().requires_grad_() for t in tokens]
    with hrf.distributed.traffic() as both:
        with hrf.distributed.traffic() as forward:
            out = hrf.distributed.attention(*own, phi, is_causal=is_causal)
        mine = torch.autograd.grad(out.square().sum(), own)
    whole = hrf.attention(*tokens, phi, is_causal=is_causal)
    every = torch.autograd.grad(whole.square().sum(), tokens)
    gradients = (_difference(g, all_[..., rows, :], every) for g, all_ in zip(mine, every, strict=True))
    found = [_difference(out, whole[..., rows, :], [whole]), max(gradients)]
    counts = [forward.bytes, both.bytes, both.collectives]
    differences, largest = torch.tensor(found), torch.tensor(counts)
    for tensor in (differences, largest):
        distributed.all_reduce(tensor, distributed.ReduceOp.MAX)
    return Row(name, is_causal, length, *differences.tolist(), *largest.tolist())


def _difference(mine: Tensor, theirs: Tensor, among: list[Tensor] | tuple[Tensor, ...]) -> float:
    return float((mine - theirs).detach().abs().max() / max(t.detach().abs().max() for t in among))


def measure(lengths: Sequence[int] = LENGTHS) -> list[Row]:
    """Return the table; every process of the default group calls this."""
    found = []
    for length in lengths:
        generator = torch.Generator().manual_seed(0)
        shape = 1, HEADS, length, DIM
        tokens = [
            torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(3)
        ]
        for name, phi in maps(tokens[1][0, 0, :256].detach().float()).items():
            for is_causal in (False, True):
                found.append(compared(name, phi, tokens, is_causal=is_causal))
    return sorted(found, key=lambda row: (row.name, row.is_causal, row.length))


def main() -> None:
    """Join the group, measure, and print the table once."""
    parser = argparse.ArgumentParser(
        prog="torchrun --standalone --nproc-per-node 2 -m examples.distributed",
        description="Attention over several processes, compared with one process.",
    )
    parser.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        default=LENGTHS,
        help="tokens of all processes (default: %(default)s)",
    )
    arguments = parser.parse_args()
    distributed.init_process_group("gloo")
    rows, size = measure(arguments.lengths), distributed.get_world_size()
    if distributed.get_rank() == 0:
        header = ["map", "causal", "tokens", "outputs", "gradients", "forward", "both", "calls"]
        title = f"{size} processes against one: relative differences; bytes handed over, calls"
        Console().print(table(header, [row.cells() for row in rows], title=title))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
