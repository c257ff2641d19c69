"""Closed-form moments, MSEs, relative errors and bounds: pure functions that share no code with estimators.

Errors and bounds are logarithms: they grow like the exponential of a squared norm.

Functions of vectors take ``x`` and ``y`` of shape ``(..., d)`` and broadcast over the leading axes: for all
pairs of L queries and S keys, pass ``x[..., :, None, :]`` and ``y[..., None, :, :]``. Pass float64.
"""

from hrf.theory.hybrid_errors import (
    Moments,
    angle,
    angular_hybrid_log_mse,
    angular_moments,
    gaussian_hybrid_log_mse,
    hybrid_covariance,
    pairwise_angle,
)
from hrf.theory.map_errors import (
    Products,
    covariance_of_products,
    exponential_log_mse,
    optimal_log_mse,
    optimal_log_relative_mse,
    positive_log_mse,
    trigonometric_log_mse,
)
from hrf.theory.orthogonal import Scaled, scaled_sum
from hrf.theory.sphere import (
    log_corrected_bound,
    log_limit_ratio,
    log_max_relative_error,
    log_max_relative_error_base,
    log_paper_bound,
    log_sphere_relative_error_angular,
    log_sphere_relative_error_positive,
    log_sphere_relative_error_trigonometric,
    log_tight_bound,
    log_w,
)

__all__ = [
    "Moments",
    "Products",
    "Scaled",
    "angle",
    "angular_hybrid_log_mse",
    "angular_moments",
    "covariance_of_products",
    "exponential_log_mse",
    "gaussian_hybrid_log_mse",
    "hybrid_covariance",
    "log_corrected_bound",
    "log_limit_ratio",
    "log_max_relative_error",
    "log_max_relative_error_base",
    "log_paper_bound",
    "log_sphere_relative_error_angular",
    "log_sphere_relative_error_positive",
    "log_sphere_relative_error_trigonometric",
    "log_tight_bound",
    "log_w",
    "optimal_log_mse",
    "optimal_log_relative_mse",
    "pairwise_angle",
    "positive_log_mse",
    "scaled_sum",
    "trigonometric_log_mse",
]
