"""Models and data that the tests of hrf.learn share."""

from __future__ import annotations

import numpy as np

from hrf.learn import (
    KernelClassifier,
    KernelGaussianProcess,
    KernelKMeans,
    KernelPCA,
    KernelRidge,
    RandomFeatures,
)

ROWS, COLUMNS = 400, 3

# Models on fixed features, which are fast and whose kernel is known.
FIXED = {"gamma": 0.3, "feature_map": "trigonometric", "random_state": 0}
MODELS = {
    "features": RandomFeatures(n_components=64, **FIXED),
    "landmarks": RandomFeatures(n_components=64, **FIXED | {"feature_map": "landmarks"}),
    "ridge": KernelRidge(n_features=64, **FIXED),
    "ridge on landmarks": KernelRidge(n_features=64, **FIXED | {"feature_map": "landmarks"}),
    "process": KernelGaussianProcess(n_features=64, **FIXED),
    "logistic": KernelClassifier(n_features=64, **FIXED),
    "hinge": KernelClassifier(loss="squared_hinge", n_features=64, **FIXED),
    "pca": KernelPCA(n_features=64, **FIXED),
    "k-means": KernelKMeans(n_clusters=3, n_features=64, **FIXED),
}


def rows(n: int = ROWS, seed: int = 0) -> np.ndarray:
    """Three clusters, far enough from each other that k-means has one answer."""
    generator = np.random.default_rng(seed)
    centres = 3 * np.eye(3, COLUMNS)[np.arange(n) % 3]
    return centres + 0.4 * generator.normal(size=(n, COLUMNS))


def targets(name: str, x: np.ndarray) -> np.ndarray | None:
    """Numbers for regression, texts for classification, nothing otherwise."""
    y = np.sin(x[:, 0]) + 0.1 * np.random.default_rng(1).normal(size=len(x))
    if name in ("ridge", "ridge on landmarks", "process"):
        return y
    return np.where(y > 0.5, "high", "low") if name in ("logistic", "hinge") else None


def output(model, x):
    """What a fitted model says about rows."""
    for method in ("transform", "decision_function", "predict"):
        if hasattr(model, method):
            return getattr(model, method)(x)
    raise AssertionError(f"{model} says nothing")
