"""What the paper says about its sweeping robot."""

from __future__ import annotations

__all__ = ["DIVERGED", "FEWER_FLOPS", "IMAGE_SIZE", "LEARNING_RATES"]

FEWER_FLOPS = 3.0  # of HRF (8,8) against FAVOR+ 256, at the same quality
DIVERGED = 5  # other settings of regular features, all of which gave NaN
LEARNING_RATES = (1e-3, 1e-4, 1e-5)  # curves are means over them
IMAGE_SIZE = 500
