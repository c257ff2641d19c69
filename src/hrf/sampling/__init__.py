"""Draw classes for a query with exactly known probabilities: by random features, uniformly, by rank, or exactly."""

from hrf.sampling.base import Sampler, Samples
from hrf.sampling.exact import ExactSoftmaxSampler
from hrf.sampling.fixed import LogUniformSampler, UniformSampler
from hrf.sampling.tree import SoftmaxSampler

__all__ = [
    "ExactSoftmaxSampler",
    "LogUniformSampler",
    "Sampler",
    "Samples",
    "SoftmaxSampler",
    "UniformSampler",
]
