"""Borrowed memory: nobody shares it, it comes back, and no more of it is kept than agreed."""

import numpy as np
import pytest

from hrf import tuning

memory = pytest.importorskip("hrf._attention.loops.memory", reason="needs Numba")


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(memory, "_kept", [])


def test_arrays_are_apart_and_aligned():
    with memory.borrowed((3, 5), (7,), (0, 4)) as arrays, memory.borrowed((3, 5)) as others:
        every = [*arrays, *others]
        assert [a.shape for a in every] == [(3, 5), (7,), (0, 4), (3, 5)]
        assert all(a.ctypes.data % 64 == 0 for a in every if a.size)
        for value, array in enumerate(every):
            array[...] = value
        assert all((array == value).all() for value, array in enumerate(every))


def test_memory_is_used_again():
    with memory.borrowed((100,)) as (first,):
        place = first.ctypes.data
    with memory.borrowed((64,)) as (second,):
        assert second.ctypes.data == place


def test_the_smallest_that_fits_is_lent():
    with memory.borrowed((1000,)) as (large,), memory.borrowed((100,)) as (small,):
        places = {1000: large.ctypes.data, 100: small.ctypes.data}
    for size in (90, 900):
        with memory.borrowed((size,)) as (found,):
            assert found.ctypes.data == places[100 if size == 90 else 1000]


def test_memory_comes_back_after_an_error():
    with pytest.raises(ArithmeticError), memory.borrowed((10,)):
        raise ArithmeticError
    assert len(memory._kept) == 1


def test_no_more_is_kept_than_agreed(monkeypatch):
    monkeypatch.setattr(tuning, "KEPT_FLOATS", 100)
    with memory.borrowed((64,)), memory.borrowed((64,)):
        pass
    with memory.borrowed((101,)):
        pass
    assert sum(map(len, memory._kept)) <= 100


def test_old_contents_do_not_reach_outputs(monkeypatch):
    """What an earlier call has left, NaN included, makes no difference."""
    import torch

    import hrf

    q, k, v = torch.randn(3, 1, 2, 300, 12, generator=torch.Generator().manual_seed(0))
    expected = hrf.attention(q, k, v, hrf.SummarisedAttention())
    for kept in memory._kept:
        kept[...] = np.nan
    assert torch.equal(hrf.attention(q, k, v, hrf.SummarisedAttention()), expected)
