"""Whether there is a GPU: ``python -m benchmarks.gpu.device`` says so where there is none, and fails."""

from __future__ import annotations

import sys

import torch

__all__ = ["require_gpu"]


def require_gpu() -> torch.device:
    """Return the GPU, or leave with status 2 and a sentence."""
    if not torch.cuda.is_available():
        print("There is no GPU that PyTorch can use here: run this on a machine with one.", file=sys.stderr)
        raise SystemExit(2)
    return torch.device("cuda")


if __name__ == "__main__":
    print(torch.cuda.get_device_name(require_gpu()))
