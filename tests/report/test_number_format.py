from __future__ import annotations

import math

import pytest

from hrf.report import count, number


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (1e-14, "0"), (-1e-14, "0"), (3.72e-6, "3.7e-6"), (0.0098, "9.8e-3"), (0.00996, "0.010"),
     (0.0885, "0.088"), (0.9996, "1.00"), (5.625, "5.62"), (9.996, "10.0"), (99.96, "100"), (9999.4, "9999"),
     (9999.6, "1.0e4"), (4.9e12, "4.9e12")],
)  # fmt: skip
def test_number(value, text):
    assert number(value) == text
    assert len(text) <= 6
    if text != "0":
        assert number(-value) == f"-{text}"


def test_large_numbers_are_written_out_on_request():
    assert number(9999.6, grouped=True) == "10,000"
    assert number(-1234567.8, grouped=True) == "-1,234,568"
    assert number(0.0098, grouped=True) == number(0.0098)


@pytest.mark.parametrize(("value", "text"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")])
def test_numbers_that_are_not_finite(value, text):
    assert number(value) == number(value, grouped=True) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (9999, "9999"), (10_000, "10k"), (999_499, "999k"), (999_500, "1.0M")]
)
def test_count(value, text):
    assert count(value) == text
