"""Tables of the results, headings first: mean and 95 % interval over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import t as student

from benchmarks.kernel_methods.methods import AUTO, BASELINE

__all__ = ["difference_rows", "error_rows", "interval", "scaling_rows", "time_rows"]

MOST = 100  # larger errors are not written out


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and half of its 95 % interval, by Student's t."""
    half = student.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return float(np.mean(values)), float(half)


def methods_of(result: dict[str, Any]) -> list[str]:
    """List the methods of all sets, in the order of their first set."""
    return list(dict.fromkeys(name for found in result["sets"].values() for name in found["methods"]))


def error_rows(result: dict[str, Any]) -> list[list[str]]:
    """Return one row per method: the test error on every set; the best of equal width are marked in bold."""
    best = {
        name: min(np.mean(m["errors"]) for m in found["methods"].values() if m["width"])
        for name, found in result["sets"].items()
    }
    rows = [["test error", *result["sets"]]]
    for method in methods_of(result):
        cells = [_short(method) if "(exact)" not in method else f"*{method}*"]
        for name, found in result["sets"].items():
            outcome = found["methods"].get(method)
            if outcome is None:
                cells.append("")
                continue
            mean, half = interval(outcome["errors"])
            text = f"{mean:.4f} ± {half:.4f}" if mean < MOST else f"> {MOST}"
            cells.append(f"**{text}**" if outcome["width"] and mean == best[name] else text)
        rows.append(cells)
    return rows


def time_rows(result: dict[str, Any]) -> list[list[str]]:
    """Return one row per method: the median time to fit in milliseconds on every set."""
    rows = [["ms to fit", *result["sets"]]]
    for method in methods_of(result):
        found = [sets["methods"].get(method) for sets in result["sets"].values()]
        cells = ["" if m is None else f"{np.median(m['seconds']) * 1e3:,.0f}" for m in found]
        rows.append([_short(method), *cells])
    return rows


def _short(method: str) -> str:
    """Return the name of a map alone: narrow screens have no room for a call."""
    return method.removeprefix('RandomFeatures(feature_map="').removesuffix('")')


def difference_rows(result: dict[str, Any]) -> list[list[str]]:
    """Return one row per set: "auto" less RBFSampler, pair by pair of seeds, and the maps that "auto" took."""
    rows = [["set", "error, auto less RBFSampler", "auto is", "maps taken"]]
    for name, found in result["sets"].items():
        auto, baseline = found["methods"][AUTO], found["methods"][BASELINE]
        mean, half = interval(np.subtract(auto["errors"], baseline["errors"]).tolist())
        verdict = "better" if mean < -half else "worse" if mean > half else "equal within the interval"
        counts = {chosen: auto["maps"].count(chosen) for chosen in sorted(set(auto["maps"]))}
        chosen = ", ".join(f"{chosen} {count}×" for chosen, count in counts.items())
        rows.append([name, f"{mean:+.4f} ± {half:.4f}", verdict, chosen])
    return rows


def scaling_rows(result: dict[str, Any]) -> list[list[str]]:
    """Return one row per number of rows: time, memory and coefficients of ridge regression on a Dask cluster."""
    rows = [["rows", "s", "CPU s", "CPU µs per row", "peak MB per worker", "coefficients differ by"]]
    for size, found in result["sizes"].items():
        times = f"{found['seconds']:.1f}", f"{found['cpu_seconds']:.1f}"
        per_row = f"{found['cpu_seconds'] / int(size) * 1e6:.1f}"
        compared = "coefficient_difference" in found
        difference = f"{found['coefficient_difference']:.0e}" if compared else "not compared"
        rows.append([f"{int(size):,}", *times, per_row, f"{found['peak_megabytes']:.0f}", difference])
    return rows
