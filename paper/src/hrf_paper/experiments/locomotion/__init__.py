"""A quadruped on stepping stones, with attention in its policy (paper, section on robotics, figure on the left)."""

from __future__ import annotations

from hrf_paper.experiments.experiment import Experiment
from hrf_paper.experiments.locomotion.claims import claims
from hrf_paper.experiments.locomotion.figure import figure
from hrf_paper.experiments.locomotion.measure import FULL, QUICK, SCALED, parts
from hrf_paper.experiments.locomotion.tables import tables

__all__ = ["EXPERIMENT"]

EXPERIMENT = Experiment(
    name="locomotion",
    title="Implicit attention of a quadruped on stepping stones",
    source="Section on robotics, figure on the left, and its appendix",
    full=FULL,
    scaled=SCALED,
    quick=QUICK,
    parts=parts,
    tables=tables,
    claims=claims,
    figure=figure,
    needs=("gymnasium", "numba", "pybullet"),
)
