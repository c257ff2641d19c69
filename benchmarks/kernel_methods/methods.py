"""The methods: transformers of equal width before one ridge regression, and exact methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sklearn.kernel_approximation import Nystroem, RBFSampler

from hrf.advice.kernel_advisor import NAMES
from hrf.learn import RandomFeatures

__all__ = ["AUTO", "BASELINE", "EXACT", "TRANSFORMERS"]

# Called with γ, the width and a seed.
Maker = Callable[[float, int, int], Any]

AUTO, BASELINE = 'RandomFeatures(feature_map="auto")', "RBFSampler"


def _named(name: str) -> Maker:
    return lambda gamma, width, seed: RandomFeatures(
        gamma=gamma, feature_map=name, n_components=width, random_state=seed
    )


TRANSFORMERS: dict[str, Maker] = {
    AUTO: _named("auto"),
    **{f'RandomFeatures(feature_map="{name}")': _named(name) for name in NAMES},
    BASELINE: lambda gamma, width, seed: RBFSampler(gamma=gamma, n_components=width, random_state=seed),
    "Nystroem": lambda gamma, width, seed: Nystroem(gamma=gamma, n_components=width, random_state=seed),
}
EXACT = ("KernelRidge (exact)", "SVC (exact)")
