"""Compile all kernels for A100, H100 and MI300X without a GPU: ``python -m benchmarks.gpu.compile``.

It writes registers per thread, shared memory and spills per program to ``benchmarks/results/gpu_compile.json``, from
ptxas and from the metadata of AMD's code objects. Sizes are those of the library's blocks, for every kind of map.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["DEFAULT", "LARGEST", "TARGETS", "compiled", "main"]

TARGETS = {"sm_80": ("cuda", 80, 32), "sm_90": ("cuda", 90, 32), "gfx942": ("hip", "gfx942", 64)}
LARGEST = 99 << 10  # bytes of shared memory per program: what sm_86 has
# (dim, width, projections, dtype): the default size, and others, which only have to fit.
DEFAULT = ((64, 64, 128, torch.bfloat16),)
OTHERS = ((128, 128, 128, torch.bfloat16), (64, 64, 128, torch.float32), (256, 256, 256, torch.bfloat16))
_TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.uint8: "*u8"}


def _typed(value: Any) -> tuple[str, bool]:
    """Return the type of an argument in a signature, and whether it is a multiple of 16."""
    if isinstance(value, Tensor):
        return _TYPES[value.dtype], value.storage_offset() * value.element_size() % 16 == 0
    if isinstance(value, float):
        return "fp32", False
    return ("i32" if abs(value) < 1 << 31 else "i64"), value % 16 == 0


def compiled(launch: Any, target: str) -> dict[str, int]:
    """Compile a launch as Triton would at run time; return registers, shared memory and spills."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, constants, attributes = {}, {}, {}
    for place, (parameter, name) in enumerate(
        zip(launch.kernel.params, launch.kernel.arg_names, strict=True)
    ):
        value = launch.arguments[name]
        if parameter.is_constexpr or value is None or (isinstance(value, int) and value == 1):
            signature[name], constants[(place,)] = "constexpr", value
            continue
        signature[name], aligned = _typed(value)
        if aligned:
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(launch.kernel, signature, constants, attributes)
    options = {"num_warps": launch.num_warps, "num_stages": 1}
    log = io.StringIO()
    with contextlib.redirect_stdout(log):
        made = triton.compile(source, target=GPUTarget(*TARGETS[target]), options=options)
    text = made.asm["amdgcn"] if target.startswith("gfx") else log.getvalue()
    return {**_numbers(text, target), "shared": made.metadata.shared}


def _numbers(text: str, target: str) -> dict[str, int]:
    if target.startswith("gfx"):
        patterns = {"registers": r"\.vgpr_count:\s+(\d+)", "spills": r"\.vgpr_spill_count:\s+(\d+)"}
    else:
        patterns = {"registers": r"Used (\d+) registers", "spills": r"(\d+) bytes spill"}
    return {name: sum(map(int, re.findall(pattern, text))) for name, pattern in patterns.items()}


def rows(
    sizes: Sequence[tuple[Any, ...]], names: Sequence[str], targets: Sequence[str], *, padded: bool = False
) -> list[dict[str, Any]]:
    """Compile the distinct kernels of all passes; padded calls have two query heads per key head, too."""
    from benchmarks.gpu.launches import Shape, record

    found = []
    for (dim, width, m, dtype), name in product(sizes, names):
        shape = Shape(4, 1024, dim, width, m, 1 + padded, dtype, padded)
        about = {"map": name + ", padded" * padded, "dim": dim, "width": width}
        about |= {"dtype": str(dtype).removeprefix("torch.")}
        for target in targets:
            passes = record(name, shape, amd=target.startswith("gfx")).values()
            for label, launch in {one.label: one for own in passes for one in own}.items():
                numbers = {"warps": launch.num_warps, "target": target, **compiled(launch, target)}
                found.append({"kernel": label, **about, **numbers})
                print(found[-1], file=sys.stderr, flush=True)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Compile, write the report and print the largest numbers per target."""
    from benchmarks.gpu.launches import MAPS

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.compile", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument(
        "--quick", action="store_true", help="default sizes, positive maps and sm_80 only; no file"
    )
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as cache:
        os.environ |= {
            "TRITON_CACHE_DIR": cache,
            "TRITON_DUMP_PTXAS_LOG": "1",
            "TRITON_DEFAULT_FP_FUSION": "1",
        }
        if args.quick:
            found = [
                row
                for padded in (False, True)
                for row in rows(DEFAULT, ["positive"], ["sm_80"], padded=padded)
            ]
            print(json.dumps(found))
            return
        found = rows(DEFAULT, list(MAPS), list(TARGETS), padded=True)
        found += rows(DEFAULT, list(MAPS), list(TARGETS)) + rows(OTHERS, ["positive"], list(TARGETS))
    import triton

    (args.out / "gpu_compile.json").write_text(
        json.dumps({"triton": triton.__version__, "kernels": found}, indent=1)
    )
    for target in TARGETS:
        own = [row for row in found if row["target"] == target]
        largest = {k: max(row[k] for row in own) for k in ("registers", "shared", "spills")}
        print(f"{target}: {len(own)} kernels, at most {largest}")


if __name__ == "__main__":
    os.environ.pop("TRITON_INTERPRET", None)
    sys.exit(main())
