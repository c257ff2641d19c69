"""``python -m benchmarks.gpu``: check the kernels on your GPU, time them beside exact attention, write ``gpu.json``."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import hrf
from benchmarks.gpu.device import require_gpu
from hrf._attention import map_kernels, reference
from hrf.report import markdown_table

HEADS, DIM, FEATURES = 32, 64, 256
LENGTHS = (1024, 4096, 16384, 65536)
WARM_UP, ROUNDS = 3, 20
# Those without a matrix of all pairs, which would not fit.
FLASH = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
LARGEST_ERROR = 2e-2  # of bfloat16 outputs of size 1


def tokens(length: int, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """Draw query, key and value."""
    generator = torch.Generator(device).manual_seed(0)
    shape = 1, HEADS, length, DIM
    return [torch.randn(shape, device=device, generator=generator).to(dtype) for _ in range(3)]


def check(phi: hrf.FeatureMap, device: torch.device) -> None:
    """Compare outputs and gradients with the float64 reference; raise if one is off."""
    for is_causal in (False, True):
        found = []
        for attend, dtype in ((hrf.attention, torch.bfloat16), (reference.attention, torch.float64)):
            given = [u.to(dtype).requires_grad_() for u in tokens(200, device, torch.bfloat16)]
            out = attend(*given, phi.to(dtype=torch.promote_types(dtype, torch.float32)), is_causal=is_causal)
            found.append([out, *torch.autograd.grad(out.sum(), given)])
        phi.float()
        for mine, exact in zip(*found, strict=True):
            error = float((mine.double() - exact).abs().max() / exact.abs().max().clamp(min=1))
            if not error <= LARGEST_ERROR:
                raise AssertionError(
                    f"the kernels are off by {error:.2g} (causal: {is_causal}); expected rounding"
                )


def exact(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    """Attend exactly, by FlashAttention where the GPU has it."""
    with sdpa_kernel(FLASH, set_priority=True):
        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)


def peers(phi: hrf.FeatureMap) -> Iterator[tuple[str, Callable[..., Tensor]]]:
    """Yield attention functions by name."""
    yield "hrf", lambda q, k, v, is_causal: hrf.attention(q, k, v, phi, is_causal=is_causal)
    yield "exact (SDPA)", exact
    try:
        from fla.ops.linear_attn import chunk_linear_attn
    except ModuleNotFoundError:
        return
    except Exception as error:  # it reads versions and devices when it is imported
        print(f"flash-linear-attention is left out: {error}", file=sys.stderr)
        return

    def linear(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
        features = (u.softmax(-1).transpose(1, 2).contiguous() for u in (q, k))
        return chunk_linear_attn(*features, v.transpose(1, 2).contiguous())[0].transpose(1, 2)

    yield "flash-linear-attention (d features, causal)", linear


def milliseconds(call: Callable[[], Any]) -> float | None:
    """Return the median of some rounds, or ``None`` if the call does not fit the memory or has no kernel here."""
    rounds = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(ROUNDS)]
    try:
        for _ in range(WARM_UP):
            call()
        for start, end in rounds:  # nothing waits for the device between rounds
            start.record()
            call()
            end.record()
        torch.cuda.synchronize()
    except RuntimeError as error:  # out of memory, or no kernel of exact attention
        if not isinstance(error, torch.OutOfMemoryError) and not re.search(
            "No (available kernel|viable backend)", str(error)
        ):
            raise
        torch.cuda.empty_cache()
        return None
    return median(start.elapsed_time(end) for start, end in rounds)


def measure(phi: hrf.FeatureMap, device: torch.device) -> Iterator[dict[str, Any]]:
    """Time all peers, forward and with gradients."""
    for length in LENGTHS:
        given = [u.requires_grad_() for u in tokens(length, device, torch.bfloat16)]
        for is_causal in (False, True):
            for name, attend in peers(phi):
                if "causal" in name and not is_causal:
                    continue

                def forward(attend: Callable[..., Tensor] = attend, is_causal: bool = is_causal) -> Tensor:
                    return attend(*given, is_causal=is_causal)  # noqa: B023

                def both(forward: Callable[[], Tensor] = forward) -> None:
                    torch.autograd.grad(forward().sum(), given)  # noqa: B023

                with torch.no_grad():
                    times = {"forward": milliseconds(forward)}
                times["forward and backward"] = milliseconds(both)
                yield {"length": length, "is_causal": is_causal, "name": name, "milliseconds": times}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Format the times."""
    lines = [
        [
            f"{row['length']:,}",
            "causal" if row["is_causal"] else "",
            row["name"],
            *("—" if time is None else f"{time:.3f}" for time in times),
        ]
        for row in rows
        for times in [row["milliseconds"].values()]
    ]
    return markdown_table(["tokens", "", "attention", "forward, ms", "forward and backward, ms"], lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Check, measure, print and write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description="Time attention on your GPU."
    )
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for gpu.json")
    args = parser.parse_args(argv)
    device = require_gpu()
    if not map_kernels.is_installed():
        print("The kernels need Triton 3.5 or later: pip install 'triton>=3.5'.", file=sys.stderr)
        raise SystemExit(2)
    import triton

    phi = hrf.Positive(DIM, n_projections=FEATURES // 2, seed=0, device=device)
    check(phi, device)
    rows = list(measure(phi, device))
    found: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
    found["rows"] = rows
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "gpu.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{table(rows)}\n\nSend us {args.out / 'gpu.json'}, please.")


if __name__ == "__main__":
    main()
