"""Softmax and Gaussian kernels in linear time, by hybrid random features.

projections, fitting       ω matrices; matrices, shifts and clusters fitted to data
features                   feature maps, from projections (read ``features/__init__.py`` first)
_attention                 `hrf.attention` (read ``_attention/dispatch.py`` first)
sampling, choice           samplers of classes, and single steps of a draw
nn, integrations           layers; Hugging Face Transformers
distributed                attention and sampling over many machines
advice, cli, report, pages `hrf.advise`; the command; tables, numbers and pages that both share
learn                      kernel machines as scikit-learn estimators, on arrays, data frames and Dask collections
kernels, theory            exact kernels and closed-form errors, independent of the code they check
checks, numerics, tuning   argument checks; log scales; block sizes
registry                   classes that files may name; objects in compiled graphs
atomic_write, read_arrays  files that appear whole or not at all; arrays from files

Names are imported when they are first used, so that ``import hrf`` and ``hrf --version`` take no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hrf import catalogue, distributed, fitting, kernels, learn, nn, projections, sampling, theory
    from hrf._attention import (
        AccuracyWarning,
        AttentionState,
        Denominator,
        SummarisedAttention,
        SummaryCall,
        SummaryReport,
        attention,
    )
    from hrf.advice import advise, advise_heads, advise_kernel
    from hrf.features import coefficients
    from hrf.features.base import FeatureMap, load
    from hrf.features.clustered import ClusteredHybrid
    from hrf.features.exponential import Exponential, Positive, Trigonometric
    from hrf.features.gaussian import GaussianKernel
    from hrf.features.hybrid import AngularHybrid, GaussianHybrid, GaussianMixture, Hybrid
    from hrf.features.landmarks import Landmarks
    from hrf.features.optimal import AsymmetricExponential, DenseExponential, OptimalPositive
    from hrf.numerics import Features
    from hrf.projections import Projections

__version__ = "0.1.0"

__all__ = [
    "AccuracyWarning",
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
    "Landmarks",
    "OptimalPositive",
    "Positive",
    "Projections",
    "SummarisedAttention",
    "SummaryCall",
    "SummaryReport",
    "Trigonometric",
    "advise",
    "advise_heads",
    "advise_kernel",
    "attention",
    "catalogue",
    "coefficients",
    "distributed",
    "fitting",
    "kernels",
    "learn",
    "load",
    "nn",
    "projections",
    "sampling",
    "theory",
]

# Public names by module, as imported above for readers and type checkers.
_NAMES = {
    "hrf._attention": (
        "AccuracyWarning",
        "AttentionState",
        "Denominator",
        "SummarisedAttention",
        "SummaryCall",
        "SummaryReport",
        "attention",
    ),
    "hrf.advice": ("advise", "advise_heads", "advise_kernel"),
    "hrf.features": ("coefficients",),
    "hrf.features.base": ("FeatureMap", "load"),
    "hrf.features.clustered": ("ClusteredHybrid",),
    "hrf.features.exponential": ("Exponential", "Positive", "Trigonometric"),
    "hrf.features.gaussian": ("GaussianKernel",),
    "hrf.features.hybrid": ("AngularHybrid", "GaussianHybrid", "GaussianMixture", "Hybrid"),
    "hrf.features.landmarks": ("Landmarks",),
    "hrf.features.optimal": ("AsymmetricExponential", "DenseExponential", "OptimalPositive"),
    "hrf.numerics": ("Features",),
    "hrf.projections": ("Projections",),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}
# Modules that are attributes without an import of their own.
_MODULES = {
    "advice",
    "atomic_write",
    "catalogue",
    "checks",
    "choice",
    "distributed",
    "features",
    "fitting",
    "kernels",
    "learn",
    "nn",
    "numerics",
    "pages",
    "projections",
    "registry",
    "report",
    "sampling",
    "theory",
    "tuning",
}

if not TYPE_CHECKING:

    def __getattr__(name):
        """Import a public name at its first use (PEP 562)."""
        if name in _MODULES:
            return import_module(f"hrf.{name}")
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'hrf' has no attribute {name!r}")
        return globals().setdefault(name, getattr(import_module(_MODULE_OF[name]), name))

    def __dir__():
        return sorted({*globals(), *__all__})
