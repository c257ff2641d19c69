"""Cost of Θ(mn)-wide features by the angular hybrid and by a base: operations and seconds.

The hybrid with m rows ω and n sign bits is 4m(n + 1) wide; the base beside it has as many features, from half as
many rows. Operations are O(nd + md + mn) against O(mnd).
"""

from hrf_paper.experiments.cost.claims import claims
from hrf_paper.experiments.cost.figure import figure
from hrf_paper.experiments.cost.measure import Settings, parts
from hrf_paper.experiments.cost.tables import tables
from hrf_paper.experiments.experiment import Experiment

__all__ = ["EXPERIMENT"]

EXPERIMENT = Experiment(
    name="cost",
    title="What wide features cost",
    source="Section 3, appendix on computational gains",
    full=Settings(),
    quick=Settings(dims=(64, 256), sizes=(4, 8, 16), vectors=128),
    parts=parts,
    tables=tables,
    claims=claims,
    figure=figure,
)
