"""Angular hybrids against quasi-Monte Carlo features on wine and Boston data, beside the paper's Table 1."""

from hrf_paper.experiments.experiment import Experiment
from hrf_paper.experiments.uci.claims import claims
from hrf_paper.experiments.uci.figure import figure
from hrf_paper.experiments.uci.measure import Settings, parts
from hrf_paper.experiments.uci.tables import tables

__all__ = ["EXPERIMENT"]

EXPERIMENT = Experiment(
    name="uci",
    title="Hybrids against quasi-Monte Carlo features on wine and Boston",
    source="Section 4.1, Table 1",
    full=Settings(),
    quick=Settings(features=128, radii=(0.5, 1.0, 1.5), pairs=20, draws=20),
    parts=parts,
    tables=tables,
    claims=claims,
    figure=figure,
    needs=("sklearn",),
)
