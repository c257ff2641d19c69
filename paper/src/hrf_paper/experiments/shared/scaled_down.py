"""Settings in which a run is smaller than the paper's."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hrf_paper.experiments.experiment import Table

__all__ = ["scaled_down"]


def scaled_down(settings: Any, full: Any) -> list[Table]:
    """List the settings that differ from the full settings, the seed aside; no table if none differs."""
    ours, theirs = _flat(asdict(settings)), _flat(asdict(full))
    rows = [
        (name, *(_text(side[name]) if name in side else "" for side in (theirs, ours)))
        for name in dict.fromkeys([*theirs, *ours])
        if theirs.get(name) != ours.get(name) and name != "seed"
    ]
    return [Table("Scaled down for a CPU", ("setting", "--full", "this run"), rows)] if rows else []


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


def _text(value: Any) -> str:
    if value is None:
        return "all"
    return (", ".join(map(str, value)) or "none") if isinstance(value, list | tuple) else str(value)
