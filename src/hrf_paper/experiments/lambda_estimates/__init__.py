"""Estimates of the coefficients."""

from hrf_paper.experiments.lambda_estimates.figure import *  # noqa: F403
from hrf_paper.experiments.lambda_estimates.figure import EXPERIMENT

__all__ = ["EXPERIMENT"]
