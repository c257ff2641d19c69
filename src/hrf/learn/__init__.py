"""Kernel machines in linear time, as scikit-learn estimators on arrays, data frames and Dask collections.

Read in this order: ``random_features.py`` (the transformer), ``rows.py`` (data, block by block), ``sums.py`` (normal
equations), ``base.py`` and ``ridge.py`` (a model), then the others. ``storage.py`` saves them without pickle.
"""

from hrf.learn.classifier import KernelClassifier
from hrf.learn.gaussian_process import KernelGaussianProcess
from hrf.learn.kmeans import KernelKMeans
from hrf.learn.pca import KernelPCA
from hrf.learn.progress import progress
from hrf.learn.random_features import RandomFeatures
from hrf.learn.ridge import KernelRidge
from hrf.learn.storage import load

__all__ = [
    "KernelClassifier",
    "KernelGaussianProcess",
    "KernelKMeans",
    "KernelPCA",
    "KernelRidge",
    "RandomFeatures",
    "load",
    "progress",
]
