"""Closed-form moments, MSEs, relative errors and bounds: pure functions that share no code with estimators.

Functions of vectors take ``x`` and ``y`` of shape ``(..., d)`` and broadcast over the leading axes: for all
pairs of L queries and S keys, pass ``x[..., :, None, :]`` and ``y[..., None, :, :]``. Pass float64.
"""

from hrf.theory.bases import (
    positive_log_mse,
    positive_mse,
    positive_relative_error,
    trigonometric_log_mse,
    trigonometric_mse,
    trigonometric_relative_error,
)
from hrf.theory.bounds import (
    corrected_bound,
    limit_ratio,
    log_corrected_bound,
    log_limit_ratio,
    log_max_relative_error,
    log_max_relative_error_base,
    log_paper_bound,
    log_tight_bound,
    log_w,
    max_relative_error,
    max_relative_error_base,
    paper_bound,
    tight_bound,
    w,
)
from hrf.theory.coefficients import (
    Moments,
    angle,
    angular_moments,
    gaussian_moments,
    pairwise_angle,
)
from hrf.theory.exponential import (
    Products,
    covariance_of_products,
    exponential_covariance,
    exponential_log_mse,
    exponential_mse,
    shifted_sum,
)
from hrf.theory.hybrid import (
    angular_hybrid_log_mse,
    angular_hybrid_mse,
    bipolar_log_mse,
    gaussian_hybrid_log_mse,
    gaussian_hybrid_mse,
    hybrid_covariance,
)
from hrf.theory.optimal import (
    optimal_log_mse,
    optimal_log_relative_mse,
    optimal_mse,
)
from hrf.theory.orthogonal import (
    angular_pair_covariance,
    orthogonal_excess,
    orthogonal_share,
)
from hrf.theory.scaled import (
    Scaled,
    complement,
    scaled_sum,
)
from hrf.theory.sphere import (
    angular_same_length_log_mse,
    angular_same_length_mse,
    log_sphere_relative_error_angular,
    log_sphere_relative_error_positive,
    log_sphere_relative_error_trigonometric,
    sphere_relative_error_angular,
    sphere_relative_error_positive,
    sphere_relative_error_trigonometric,
)

__all__ = [
    "Moments",
    "Products",
    "Scaled",
    "angle",
    "angular_hybrid_log_mse",
    "angular_hybrid_mse",
    "angular_moments",
    "angular_pair_covariance",
    "angular_same_length_log_mse",
    "angular_same_length_mse",
    "bipolar_log_mse",
    "complement",
    "corrected_bound",
    "covariance_of_products",
    "exponential_covariance",
    "exponential_log_mse",
    "exponential_mse",
    "gaussian_hybrid_log_mse",
    "gaussian_hybrid_mse",
    "gaussian_moments",
    "hybrid_covariance",
    "limit_ratio",
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
    "max_relative_error",
    "max_relative_error_base",
    "optimal_log_mse",
    "optimal_log_relative_mse",
    "optimal_mse",
    "orthogonal_excess",
    "orthogonal_share",
    "pairwise_angle",
    "paper_bound",
    "positive_log_mse",
    "positive_mse",
    "positive_relative_error",
    "scaled_sum",
    "shifted_sum",
    "sphere_relative_error_angular",
    "sphere_relative_error_positive",
    "sphere_relative_error_trigonometric",
    "tight_bound",
    "trigonometric_log_mse",
    "trigonometric_mse",
    "trigonometric_relative_error",
    "w",
]
