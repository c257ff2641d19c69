"""Speed of the speech model: ``python -m benchmarks.speech``.

The transducer's loss with its backward pass, beside warprnnt-numba; and the time of the encoder over
its length, for several kinds of attention, with random weights at the size for a CPU. Times are those of one core.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Generator, Tensor
from warprnnt_numba import RNNTLossNumba

from benchmarks.speech_tables import OURS, THEIRS, encoder_rows, loss_rows
from benchmarks.timing import best_times
from hrf.report import folder, table, write
from hrf_paper.speech import CONFIGS, ConformerTransducer, Utterance, install, rnnt_loss

SIZES = ((10, 62, 30), (2, 160, 60))  # utterances, encoded frames, labels
LABELS = 29
LENGTHS = (500, 2_000, 8_000, 32_000)  # encoded frames
METHODS = ("exact", "FAVOR+ 128", "HRF-A (8, 8)", "HRF-C (3, 3) 64", "summarised")


def loss_times(batch: int, frames: int, labels: int) -> dict[str, float]:
    """Return seconds of the loss and its gradient, ours and theirs."""
    generator = Generator().manual_seed(0)
    logits = torch.randn(batch, frames, labels + 1, LABELS, generator=generator).requires_grad_()
    targets = torch.randint(1, LABELS, (batch, labels), generator=generator)
    sizes = torch.full((batch,), frames), torch.full((batch,), labels)
    theirs = RNNTLossNumba(blank=0, reduction="none")

    def gradient(loss: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
        return torch.autograd.grad(loss(logits, *arguments).sum(), logits)[0]

    small = [tensor.int() for tensor in (targets, *sizes)]
    ours, other = partial(gradient, rnnt_loss, targets, *sizes), partial(gradient, theirs, *small)
    ours()  # warms up
    # Theirs once: on a CPU it runs loops of Python, and takes seconds to minutes.
    once = best_times({THEIRS: other}, rounds=1, budget=0.0, clock=process_time)
    return best_times({OURS: ours}, clock=process_time) | once


@torch.no_grad()
def encoder_times(length: int) -> dict[str, float]:
    """Return seconds to encode one utterance of so many encoded frames, by kind of attention."""
    config = CONFIGS["cpu"]
    generator = Generator().manual_seed(0)
    noise = [
        Utterance(str(i), "", torch.randn(400, config.channels, generator=generator), "A") for i in range(20)
    ]
    features, frames = (
        torch.randn(1, 4 * length, config.channels, generator=generator),
        torch.tensor([4 * length]),
    )
    calls = {}
    for name in METHODS:
        torch.manual_seed(0)
        model = ConformerTransducer(config).eval()
        install(model, name, noise)
        encode = torch.no_grad()(model.encode)
        encode(features[:, :2_000], frames.clamp(max=2_000))  # compiles
        calls[name] = partial(encode, features, frames)
    # One round at the greatest length, which takes minutes.
    return best_times(calls, rounds=1, budget=3.0, clock=process_time)


def add_loss(found: dict[str, Any], size: tuple[int, int, int]) -> None:
    """Measure the loss of one size."""
    found["loss"].append(dict(zip(("utterances", "frames", "labels"), size, strict=True)) | loss_times(*size))


def add_encoder(found: dict[str, Any], length: int) -> None:
    """Measure the encoder at one length."""
    found["encoder"][str(length)] = encoder_times(length)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speech", description=__doc__)
    parser.add_argument("--lengths", nargs="*", type=int, default=[*LENGTHS], help="encoded frames")
    parser.add_argument("--out", type=Path, default=Path("results"), help="directory for speech.json")
    args = parser.parse_args(argv)
    path = folder(args.out) / "speech.json"
    found: dict[str, Any] = {"loss": [], "encoder": {}}
    work = [partial(add_loss, found, size) for size in SIZES]
    work += [partial(add_encoder, found, length) for length in args.lengths]
    for part in track(work, "measuring", console=Console(stderr=True), transient=True):
        part()
        write(path, (json.dumps(found, indent=1) + "\n").encode())
    console = Console()
    for headings, *rows in (loss_rows(found), encoder_rows(found)):
        console.print(table(headings, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
