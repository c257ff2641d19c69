"""MSE over angle and length of trigonometric features, positive features and their angular hybrid (paper, Figure 1)."""

from hrf_paper.experiments.experiment import Experiment
from hrf_paper.experiments.mse_surface.claims import claims
from hrf_paper.experiments.mse_surface.figure import figure
from hrf_paper.experiments.mse_surface.measure import Settings, parts
from hrf_paper.experiments.mse_surface.tables import tables

__all__ = ["EXPERIMENT"]

EXPERIMENT = Experiment(
    name="mse-surface",
    title="MSE over angle and length",
    source="Figure 1",
    full=Settings(),
    quick=Settings(n_radii=10, n_angles=16, draws=5000),
    parts=parts,
    tables=tables,
    claims=claims,
    figure=figure,
)
