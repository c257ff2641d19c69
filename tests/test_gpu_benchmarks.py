"""Benchmarks of accelerators, as far as they go without one: what kernels compile to, the model, the refusal."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import tables

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)
LARGEST = 99 << 10  # bytes of shared memory that sm_86 has


def run(*module: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", *module]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@needs_triton
@pytest.mark.slow
def test_kernels_compile_and_fit():
    done = run("benchmarks.gpu.compile", "--quick")
    assert not done.returncode, done.stderr
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("[")))
    assert {row["kernel"].split()[0] for row in found} == {
        "sum_tokens",
        "read_state",
        "scale_keys",
        "pull_tokens",
        "step",
    }
    assert all(
        row["shared"] <= LARGEST and 0 < row["registers"] <= 255 and not row["spills"] for row in found
    )


def test_the_report_has_no_spills_of_the_default_map():
    found = json.loads((RESULTS / "gpu_compile.json").read_text(encoding="utf-8"))["kernels"]
    assert {row["target"] for row in found} == {"sm_80", "sm_90", "gfx942"}
    maps = {"positive", "positive, padded", "trigonometric", "single", "shifted"}
    assert {row["map"] for row in found} == maps
    assert all(row["shared"] <= LARGEST for row in found if row["target"] != "gfx942")
    default = [row for row in found if row["dim"] == 64 and row["dtype"] == "bfloat16"]
    assert not [row for row in default if row["spills"] and row["map"] == "positive"]
    # Bytes per thread, once per loop at most: angles, and grouped queries with padding.
    spilled = {(row["target"], row["kernel"]) for row in default if row["spills"]}
    assert spilled <= {("sm_90", "pull_tokens causal tokens")}
    assert max(row["spills"] for row in default) <= 24


def test_tables_have_a_row_per_gpu_and_target():
    rows = list(tables.model_rows(json.loads((RESULTS / "gpu_model.json").read_text(encoding="utf-8"))))
    assert len({len(row) for row in rows}) == 1
    assert {row[0].split(",")[0] for row in rows[1:]} == {"A100", "H100"}
    rows = list(tables.compile_rows(json.loads((RESULTS / "gpu_compile.json").read_text(encoding="utf-8"))))
    assert {row[0] for row in rows[1:]} == {"sm_80", "sm_90", "gfx942"}


@needs_triton
def test_the_model_counts_the_products_of_the_loops():
    """Bidirectional: projection and products with values, of keys and of queries, 2 FLOPs per multiply-add."""
    from benchmarks.gpu.launches import Shape, record
    from benchmarks.gpu.model import count

    shape = Shape(rows=3, length=1024)
    work = [count(launch) for launch in record("positive", shape)["bidirectional"]]
    features = 2 * shape.n_projections
    each = 2 * shape.rows * shape.length * (shape.n_projections * shape.dim + features * shape.width)
    assert [w.flops for w in work] == [each, each]
    assert [w.exponentials for w in work] == [shape.rows * shape.length * features] * 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("module", ["benchmarks.gpu", "benchmarks.gpu.device"])
def test_without_a_gpu_a_sentence_says_so(module):
    done = run(module)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("There is no GPU")
    assert len(done.stderr.strip().splitlines()) == 1
