"""Kernel machines in linear time, as scikit-learn estimators on arrays, data frames and Dask collections.

rows.py, dask_rows.py  data, block by block, and sums over blocks for normal equations
random_features.py     checks of data, and the transformer
linear_models.py       the base of all models, ridge regression, principal components
newton.py              Newton's method with conjugate gradients, for wide maps and classifiers
gaussian_process.py, kmeans.py, classifier.py  the other models
storage.py             estimators in files, without pickle
"""

from hrf.learn.classifier import KernelClassifier
from hrf.learn.gaussian_process import KernelGaussianProcess
from hrf.learn.kmeans import KernelKMeans
from hrf.learn.linear_models import KernelPCA, KernelRidge
from hrf.learn.random_features import RandomFeatures
from hrf.learn.rows import progress
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
