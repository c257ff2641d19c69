"""Softmax and Gaussian kernels in linear time, by hybrid random features.

projections, fitting       ω matrices; matrices, shifts and clusters fitted to data
features                   feature maps, from projections (read ``features/__init__.py`` first)
_attention                 `hrf.attention` (read ``_attention/dispatch.py`` first)
sampling, nn, integrations samplers of classes; layers; Hugging Face Transformers
advice, cli, report        `hrf.advise`; the command; tables, numbers and pages that both share
kernels, theory            exact kernels and closed-form errors, independent of the code they check
checks, numerics, tuning   argument checks; log scales; block sizes
registry, atomic_write     classes that files may name; files that appear whole or not at all
read_arrays                arrays from files
"""

from hrf import fitting, kernels, nn, projections, sampling, theory
from hrf._attention import AttentionState, Denominator, attention
from hrf.advice import advise
from hrf.features import coefficients
from hrf.features.asymmetric import AsymmetricExponential
from hrf.features.base import FeatureMap
from hrf.features.clustered import ClusteredHybrid
from hrf.features.exponential import Exponential, Positive, Trigonometric
from hrf.features.gaussian import GaussianKernel
from hrf.features.hybrid import AngularHybrid, GaussianHybrid, Hybrid
from hrf.features.mixture import GaussianMixture
from hrf.features.optimal import DenseExponential, OptimalPositive
from hrf.features.storage import load
from hrf.numerics import Features
from hrf.projections import Projections

__version__ = "0.1.0"

__all__ = [
    "AngularHybrid",
    "AsymmetricExponential",
    "AttentionState",
    "ClusteredHybrid",
    "Denominator",
    "DenseExponential",
    "Exponential",
    "FeatureMap",
    "Features",
    "GaussianHybrid",
    "GaussianKernel",
    "GaussianMixture",
    "Hybrid",
    "OptimalPositive",
    "Positive",
    "Projections",
    "Trigonometric",
    "advise",
    "attention",
    "coefficients",
    "fitting",
    "kernels",
    "load",
    "nn",
    "projections",
    "sampling",
    "theory",
]
