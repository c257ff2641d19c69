"""Coefficients λ(x, y) of hybrids (paper, Sec. 2.2 and 2.4), each linearised as λ̂ = a + ρ₁(x)ᵀρ₂(y).

A hybrid leans on a base where its coefficient is large. Signs that the paper writes with an
imaginary unit stand on the key side.
"""

from hrf.features.coefficients.angular import Angular
from hrf.features.coefficients.base import Coefficient
from hrf.features.coefficients.from_feature_map import FromFeatureMap
from hrf.features.coefficients.gaussian import Gaussian
from hrf.features.coefficients.indicator import Indicator

__all__ = ["Angular", "Coefficient", "FromFeatureMap", "Gaussian", "Indicator"]
