"""Table 1 of the paper: MSE and standard deviation in 10⁻³."""

from __future__ import annotations

__all__ = ["PRINTED", "UNIT"]

UNIT = 1e-3

# In the order of the paper, best first.
PRINTED = {
    "wine": {
        "HRF-ort": (0.70, 0.08),
        "HRF-iid": (0.85, 0.05),
        "ORF-reg": (1.00, 0.04),
        "ORF-Had": (1.10, 0.06),
        "Halton-R": (4.02, 0.10),
    },
    "Boston": {
        "HRF-ort": (0.72, 0.06),
        "HRF-iid": (0.79, 0.08),
        "ORF-reg": (1.05, 0.03),
        "ORF-Had": (1.14, 0.02),
        "Halton-R": (2.53, 0.08),
    },
}
