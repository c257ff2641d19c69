"""Pointwise estimation of the softmax kernel on a sphere: quantiles of estimates, relative errors over θ.

Exact errors stand beside the errors of the draws. They differ where a few rare, huge estimates dominate the error:
for positive features at small angles, and never for trigonometric features, whose estimates are bounded.
"""

from hrf_paper.experiments.experiment import Experiment
from hrf_paper.experiments.pointwise.claims import claims
from hrf_paper.experiments.pointwise.figure import figure
from hrf_paper.experiments.pointwise.measure import Settings, parts
from hrf_paper.experiments.pointwise.tables import tables

__all__ = ["EXPERIMENT"]

EXPERIMENT = Experiment(
    name="pointwise",
    title="Pointwise estimation of the softmax kernel",
    source="Section 4.1 (Figure 2), Appendix G",
    full=Settings(),
    quick=Settings(dim=16, features=64, draws=1000, angles=8, radii=(1.0, 1.5)),
    parts=parts,
    tables=tables,
    claims=claims,
    figure=figure,
)
