"""The example of attention over processes: equal to one process, bytes that do not grow, started by torchrun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from examples.distributed import measure
from ranked.processes import run

ROOT = Path(__file__).parents[1]


def test_differences_are_rounding_and_bytes_do_not_grow():
    first, second = run(2, measure, (64, 128))
    assert first == second
    assert len(first) == 12
    for short, long in zip(first[::2], first[1::2], strict=True):
        assert (short.name, short.is_causal, short.length) == (long.name, long.is_causal, 64)
        assert short[5:] == long[5:]
        for row in (short, long):
            assert row.outputs < 1e-8  # float64 through a few cancellations
            assert row.gradients < 1e-8


@pytest.mark.slow
def test_started_by_torchrun():
    command = (
        "-m torch.distributed.run --standalone --nproc-per-node 2 -m examples.distributed --lengths 64 128"
    )
    done = subprocess.run(
        [sys.executable, *command.split()], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "2 processes against one" in done.stdout
    lines = [line for line in done.stdout.splitlines() if "Positive" in line]
    assert [sum(f" {length} " in line for line in lines) for length in (64, 128)] == [2, 2]
