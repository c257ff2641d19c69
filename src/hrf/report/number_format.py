"""Numbers as short texts."""

from __future__ import annotations

import math

__all__ = ["ROUNDING", "count", "number"]

# A number below this is rounding error and shows as 0.
ROUNDING = 1e-12


def number(value: float, *, grouped: bool = False) -> str:
    """Format with two to three digits, in at most six characters and a sign.

    Args:
        value: any number.
        grouped: write large numbers out, with commas between thousands, instead of as powers of ten.

    >>> [number(value) for value in (0, 3.72e-6, 0.0885, 5.625, 99.96, 12345, -0.5)]
    ['0', '3.7e-6', '0.088', '5.62', '100', '1.2e4', '-0.500']
    >>> number(12345, grouped=True)
    '12,345'
    """
    if not math.isfinite(value):
        return f"{value}"
    if value < 0:
        text = number(-value, grouped=grouped)
        return text if text == "0" else f"-{text}"
    if value <= ROUNDING:
        return "0"
    if 0.00995 <= value < 9999.5:
        decimals = 3 if value < 0.9995 else 2 if value < 9.995 else 1 if value < 99.95 else 0
        return f"{value:.{decimals}f}"
    if grouped and value >= 9999.5:
        return f"{value:,.0f}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def count(value: int) -> str:
    """Format a count in at most five characters up to a billion: thousands as k, millions as M.

    >>> [count(value) for value in (9999, 12345, 1234567)]
    ['9999', '12k', '1.2M']
    """
    if value < 10_000:
        return f"{value}"
    return f"{value / 1e3:.0f}k" if value < 999_500 else f"{value / 1e6:.1f}M"
