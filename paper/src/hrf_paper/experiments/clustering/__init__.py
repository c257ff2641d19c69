"""Complex exponential estimators for clustered data, beside the paper's table."""

from hrf_paper.experiments.clustering.claims import claims
from hrf_paper.experiments.clustering.figure import figure
from hrf_paper.experiments.clustering.measure import Settings, parts
from hrf_paper.experiments.clustering.tables import tables
from hrf_paper.experiments.experiment import Experiment

__all__ = ["EXPERIMENT"]

EXPERIMENT = Experiment(
    name="clustering",
    title="Estimators for clustered data",
    source="Appendix H (Figure 6 and its table)",
    full=Settings(),
    quick=Settings(n_points=100, sizes=(20, 50), data_draws=2, stride=1),
    parts=parts,
    tables=tables,
    claims=claims,
    figure=figure,
    needs=("sklearn",),
)
