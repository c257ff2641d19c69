"""Every block size has a measurement, and the kept one belongs to the size in use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import tuning as benchmark
from hrf import tuning

KEPT = json.loads((Path(benchmark.__file__).parent / "results" / "tuning.json").read_text(encoding="utf-8"))
SIZES = {name for name in vars(tuning) if name.isupper()}


def test_every_size_is_timed_or_says_why_not():
    assert set(benchmark.CASES) | set(benchmark.NOT_TIMED) == SIZES
    assert not set(benchmark.CASES) & set(benchmark.NOT_TIMED)


@pytest.mark.parametrize("name", benchmark.CASES)
def test_the_kept_measurement_is_of_the_size_in_use(name):
    assert KEPT["sizes"][name]["sizes"][1] == getattr(tuning, name)
    assert KEPT["sizes"][name]["case"] == benchmark.CASES[name][0]


def test_a_size_is_timed_at_all_factors_and_left_as_it_was(monkeypatch):
    seen = []
    monkeypatch.setitem(
        benchmark.CASES, "CAUSAL_CHUNK", ("a case", lambda: lambda: seen.append(tuning.CAUSAL_CHUNK))
    )
    found = benchmark.measured("CAUSAL_CHUNK", rounds=2)
    assert found["sizes"] == [64, 128, 256]
    assert set(seen) == {64, 128, 256}
    assert len(found["seconds"]) == 3
    assert tuning.CAUSAL_CHUNK == 128
