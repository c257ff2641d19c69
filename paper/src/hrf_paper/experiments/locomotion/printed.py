"""What the paper says about the step-stone task; it prints curves, and no numbers but these."""

from __future__ import annotations

__all__ = ["FEWER_FLOPS", "RUNS"]

FEWER_FLOPS = 3.0  # of the hybrid with m = n = 8 against FAVOR+ with m = 256
RUNS = 5
