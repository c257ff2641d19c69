"""Clustered data."""

from hrf_paper.experiments.clustering.figure import *  # noqa: F403
from hrf_paper.experiments.clustering.figure import EXPERIMENT

__all__ = ["EXPERIMENT"]
