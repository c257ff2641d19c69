"""Feature maps: the estimators of the paper and of later work, behind one contract. Read ``base.py`` first.

base.py                    the contract: queries, keys, scaled, estimate, mse, save
exponential.py             Exponential, Positive, Trigonometric; exponential_features.py computes their features
optimal.py, asymmetric.py  FAVOR++ and FAVOR#
hybrid.py                  Hybrid, AngularHybrid, GaussianHybrid; composition.py is the composition lemma
coefficients/              λ of hybrids: Angular, Gaussian, Indicator, FromFeatureMap
clustered.py               ClusteredHybrid: cluster_features.py has its features, cluster_estimates.py its estimates
and errors, cluster_fit.py fits it to data
mixture.py, gaussian.py    soft borders between clusters; the Gaussian kernel from any softmax map
storage.py, encoding.py    reading and writing files; heads.py restricts a map to some heads
flops.py, products.py      cost of a map; inner products that errors depend on
"""

# Files name classes (`hrf.registry`), so all maps and coefficients are defined as soon as one of them is.
from hrf.features import asymmetric, clustered, coefficients, exponential, gaussian, hybrid, mixture, optimal

__all__ = [
    "asymmetric",
    "clustered",
    "coefficients",
    "exponential",
    "gaussian",
    "hybrid",
    "mixture",
    "optimal",
]
