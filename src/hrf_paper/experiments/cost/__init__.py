"""Cost of wide features."""

from hrf_paper.experiments.cost.figure import *  # noqa: F403
from hrf_paper.experiments.cost.figure import EXPERIMENT

__all__ = ["EXPERIMENT"]
