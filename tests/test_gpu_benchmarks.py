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
TARGETS = {"sm_80", "sm_90", "gfx942"}
KERNELS = {"sum_tokens", "read_state", "scale_keys", "pull_tokens", "step"}
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
    assert {row["kernel"].split()[0] for row in found} == KERNELS
    assert all(
        row["shared"] <= LARGEST and 0 < row["registers"] <= 255 and not row["spills"] for row in found
    )


def test_the_report_has_no_spills_at_default_sizes():
    found = json.loads((RESULTS / "gpu_compile.json").read_text(encoding="utf-8"))["kernels"]
    assert {row["target"] for row in found} == TARGETS
    maps = {
        name + padded
        for name in ("positive", "trigonometric", "single", "shifted")
        for padded in ("", ", padded")
    }
    assert {row["map"] for row in found} == maps
    assert all(row["shared"] <= LARGEST for row in found if row["target"] != "gfx942")
    default = [row for row in found if row["dim"] == 64 and row["dtype"] == "bfloat16"]
    assert {(row["map"], row["target"]) for row in default} == {
        (name, target) for name in maps for target in TARGETS
    }
    assert not [row for row in found if row["spills"] and row["dim"] <= 128]


def test_tables_have_a_row_per_gpu_and_target():
    rows = list(tables.model_rows(json.loads((RESULTS / "gpu_model.json").read_text(encoding="utf-8"))))
    assert len({len(row) for row in rows}) == 1
    assert {row[0].split(",")[0] for row in rows[1:]} == {"A100", "H100"}
    rows = list(tables.compile_rows(json.loads((RESULTS / "gpu_compile.json").read_text(encoding="utf-8"))))
    assert {row[0] for row in rows[1:]} == TARGETS


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


@needs_triton
def test_the_model_counts_the_pairs_of_a_chunk():
    """A block of queries meets the keys of its chunk as far as its own: one block, or one and two of them."""
    from benchmarks.gpu.launches import Shape, record
    from benchmarks.gpu.model import count

    shape = Shape(rows=3, length=1024)
    read = record("positive", shape)["causal"][-1]
    assert read.arguments["SPAN"] == 2
    T, d, width = read.arguments["T"], shape.dim, shape.width
    features = 2 * shape.n_projections
    pair = 2 * shape.n_projections * d + features * T + T * width  # both projected, scores, values
    each = 2 * shape.rows * shape.length * (1.5 * pair + features * width)
    assert count(read).flops == each
    assert count(read).exponentials == 1.5 * 2 * shape.rows * shape.length * features


@needs_triton
@pytest.mark.parametrize("sizes", [{"rows": 100_000, "length": 40}, {"rows": 2, "length": 1 << 22}])
@pytest.mark.parametrize("name", ["positive", "trigonometric"])
def test_a_grid_ends_where_the_device_ends(name, sizes):
    """Many rows and many tokens: CUDA's second and third axis have 65,535 places at most, its first 2³¹ − 1."""
    from benchmarks.gpu.launches import Shape, record

    launches = [one for own in record(name, Shape(**sizes)).values() for one in own]
    assert {one.kernel.fn.__name__ for one in launches} == KERNELS
    for one in launches:
        assert max(one.grid[1:], default=1) < 1 << 16
        assert one.grid[0] < 1 << 31


@needs_triton
@pytest.mark.parametrize("groups", [1, 3])
def test_kernels_are_given_tensors_without_gaps(groups):
    """But for those that come with their strides, whose numbers are neighbours; a state may begin with a later slot."""
    from benchmarks.gpu.launches import Shape, record

    strided = {"x", "key", "value", "other_x", "other_value"}
    for own in record("positive", Shape(3, 100, groups=groups, padded=True)).values():
        for name, given in (
            (n, u) for one in own for n, u in one.arguments.items() if isinstance(u, torch.Tensor)
        ):
            if name in strided or (name == "states" and given.storage_offset()):
                assert given.stride(-1) == 1, name
            else:
                assert given.is_contiguous(), name


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("module", ["benchmarks.gpu", "benchmarks.gpu.device"])
def test_without_a_gpu_a_sentence_says_so(module):
    done = run(module)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("There is no GPU")
    assert len(done.stderr.strip().splitlines()) == 1
