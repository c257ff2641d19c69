"""Pointwise estimation."""

from hrf_paper.experiments.pointwise.figure import *  # noqa: F403
from hrf_paper.experiments.pointwise.figure import EXPERIMENT

__all__ = ["EXPERIMENT"]
