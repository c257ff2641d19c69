"""The largest relative error."""

from hrf_paper.experiments.max_relative_error.figure import *  # noqa: F403
from hrf_paper.experiments.max_relative_error.figure import EXPERIMENT

__all__ = ["EXPERIMENT"]
