"""Policies that sweep balls into bowls, with the paper's attention (paper, section on robotics and its appendix)."""

from __future__ import annotations

from hrf_paper.experiments.experiment import Experiment
from hrf_paper.experiments.sweeping.claims import claims
from hrf_paper.experiments.sweeping.figure import figure
from hrf_paper.experiments.sweeping.measure import FULL, QUICK, SCALED, parts
from hrf_paper.experiments.sweeping.tables import tables
from hrf_paper.manipulation import NEEDS

__all__ = ["EXPERIMENT"]

EXPERIMENT = Experiment(
    name="sweeping",
    title="Two arms that sweep balls into bowls, by vision",
    source="Section on robotics, its figure on the right, and its appendix",
    full=FULL,
    scaled=SCALED,
    quick=QUICK,
    parts=parts,
    tables=tables,
    claims=claims,
    figure=figure,
    needs=NEEDS,
)
