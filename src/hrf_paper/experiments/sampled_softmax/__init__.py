"""Language models trained with drawn words."""

from hrf_paper.experiments.sampled_softmax.figure import *  # noqa: F403
from hrf_paper.experiments.sampled_softmax.figure import EXPERIMENT

__all__ = ["EXPERIMENT"]
