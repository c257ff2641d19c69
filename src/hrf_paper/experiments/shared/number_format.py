"""Numbers as short texts."""

from __future__ import annotations

__all__ = ["ROUNDING", "count", "number"]

# A number below this is rounding error and shows as 0.
ROUNDING = 1e-12


def number(value: float, *, grouped: bool = False) -> str:
    """Format with two to three digits, in at most six characters."""
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
    """Format a count in at most five characters."""
    if value < 10_000:
        return f"{value}"
    return f"{value / 1e3:.0f}k" if value < 999_500 else f"{value / 1e6:.1f}M"
