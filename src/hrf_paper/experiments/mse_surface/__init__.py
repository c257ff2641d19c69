"""MSE over angle and length."""

from hrf_paper.experiments.mse_surface.figure import *  # noqa: F403
from hrf_paper.experiments.mse_surface.figure import EXPERIMENT

__all__ = ["EXPERIMENT"]
