"""Random arrays for tests of compiled loops."""

from __future__ import annotations

import numpy as np

KINDS = [np.float32, np.float64]
GROUPS = [[3], [2, 2, 1], [1], [5, 4]]  # of bits


def random(*shape, kind=np.float64, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(kind)
