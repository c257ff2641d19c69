"""The paper's table of word error rates: percent and deviation over 10 runs, LibriSpeech, 17 layers."""

from __future__ import annotations

__all__ = ["GROUPS", "PRINTED"]

# In the order of the paper, best first.
PRINTED = {
    "HRF-C (3,3)": (1.72, 0.02),
    "HRF-C (2,3)": (1.75, 0.03),
    "HRF-C (3,2)": (1.83, 0.03),
    "HRF-C (2,2)": (1.85, 0.04),
    "HRF-A (16,8)": (2.03, 0.08),
    "HRF-A (8,8)": (2.05, 0.05),
    "FAVOR+ 432": (2.65, 0.06),
    "FAVOR+ 256": (2.77, 0.04),
    "Trig 432": (3.12, 0.05),
    "Trig 256": (3.3, 0.06),
}

# Kinds of maps, from the lowest error rate to the highest.
GROUPS = {
    kind: tuple(name for name in PRINTED if name.startswith(kind))
    for kind in ("HRF-C", "HRF-A", "FAVOR+", "Trig")
}
