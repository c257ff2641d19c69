"""Which tensors compiled loops serve, and how they run in threads."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from hrf._attention import loops as compiled


class TestEach:
    def test_calls_with_each(self, threads):
        out = np.zeros(100)
        compiled.each(lambda row, number: row.fill(number), ((out[i : i + 1], i) for i in range(100)))
        assert out.tolist() == list(range(100))

    def test_errors_arrive(self, threads):
        def fail(i):
            if i == 7:
                raise ValueError(f"received {i}")

        with pytest.raises(ValueError, match="received 7"):
            compiled.each(fail, ((i,) for i in range(20)))

    def test_no_more_is_done_after_an_error(self, threads):
        done = []

        def fail(i):
            done.append(i)
            raise ValueError

        with pytest.raises(ValueError):  # noqa: PT011
            compiled.each(fail, ((i,) for i in range(100)))
        assert len(done) <= 2  # one a thread

    def test_nothing_to_do(self, threads):
        compiled.each(pytest.fail, [])


class TestServes:
    def test_float32_and_float64_of_this_machine(self):
        assert compiled.serves(torch.zeros(2), torch.zeros(2, dtype=torch.float64))
        assert not compiled.serves(torch.zeros(2, dtype=torch.bfloat16))
        assert not compiled.serves(torch.zeros(2), torch.zeros(2, device="meta"))

    def test_no_transform_of_torch_func(self):
        seen = []
        torch.func.vmap(lambda t: seen.append(compiled.serves(t)) or t)(torch.zeros(2, 3))
        assert seen == [False]

    def test_not_without_numba(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "numba", None)
        assert not compiled.installed.__wrapped__()

    def test_not_without_compiler(self, monkeypatch):
        monkeypatch.setattr("numba.config.DISABLE_JIT", True)
        assert not compiled.installed.__wrapped__()
