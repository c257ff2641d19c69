"""Closed-form moments, MSEs, relative errors and bounds: pure functions that share no code with estimators.

Functions of vectors take ``x`` and ``y`` of shape ``(..., d)`` and broadcast over the leading axes: for all
pairs of L queries and S keys, pass ``x[..., :, None, :]`` and ``y[..., None, :, :]``. Pass float64.
"""

from hrf.theory.hybrid_errors import (
    Moments,
    angle,
    angular_moments,
    gaussian_hybrid_mse,
    hybrid_covariance,
    pairwise_angle,
)
from hrf.theory.map_errors import (
    Products,
    covariance_of_products,
    exponential_mse,
    optimal_log_relative_mse,
    positive_mse,
    trigonometric_mse,
)
from hrf.theory.orthogonal import (
    Scaled,
    scaled_sum,
)
from hrf.theory.sphere import (
    limit_ratio,
    log_corrected_bound,
    log_limit_ratio,
    log_max_relative_error,
    log_max_relative_error_base,
    log_paper_bound,
    log_sphere_relative_error_angular,
    log_tight_bound,
    max_relative_error,
    paper_bound,
    sphere_relative_error_angular,
    sphere_relative_error_positive,
    sphere_relative_error_trigonometric,
    tight_bound,
    w,
)

__all__ = [
    "Moments",
    "Products",
    "Scaled",
    "angle",
    "angular_moments",
    "covariance_of_products",
    "exponential_mse",
    "gaussian_hybrid_mse",
    "hybrid_covariance",
    "limit_ratio",
    "log_corrected_bound",
    "log_limit_ratio",
    "log_max_relative_error",
    "log_max_relative_error_base",
    "log_paper_bound",
    "log_sphere_relative_error_angular",
    "log_tight_bound",
    "max_relative_error",
    "optimal_log_relative_mse",
    "pairwise_angle",
    "paper_bound",
    "positive_mse",
    "scaled_sum",
    "sphere_relative_error_angular",
    "sphere_relative_error_positive",
    "sphere_relative_error_trigonometric",
    "tight_bound",
    "trigonometric_mse",
    "w",
]
