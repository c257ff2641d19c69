"""Wine and Boston."""

from hrf_paper.experiments.uci.figure import *  # noqa: F403
from hrf_paper.experiments.uci.figure import EXPERIMENT

__all__ = ["EXPERIMENT"]
