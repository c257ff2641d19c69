"""Feature maps: the estimators of the paper and of later work, behind one contract. Read ``base.py`` first.

base.py          the contract: queries, keys, scaled, estimate, mse, save, load; a map restricted to some heads
files.py         maps as bytes, and back
exponential.py   Exponential, Positive, Trigonometric; exponential_features.py computes their features
optimal.py       FAVOR++ and FAVOR#
hybrid.py        the composition lemma; Hybrid, AngularHybrid, GaussianHybrid, GaussianMixture
coefficients.py  λ of hybrids: Angular, Gaussian, Indicator, FromFeatureMap
clustered.py     ClusteredHybrid and its fit; cluster_features.py has its features, estimates and errors
landmarks.py     the exact kernel at points of the data
gaussian.py      the Gaussian kernel from any softmax map
flops.py         cost of a map
"""

# Files name classes (`hrf.registry`), so all maps and coefficients are defined as soon as one of them is.
from hrf.features import clustered, coefficients, exponential, gaussian, hybrid, landmarks, optimal

__all__ = ["clustered", "coefficients", "exponential", "gaussian", "hybrid", "landmarks", "optimal"]
