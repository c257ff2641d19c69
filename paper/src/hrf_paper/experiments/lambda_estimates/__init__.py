"""Estimates of the angular and the Gaussian coefficient against λ and the closed forms of their second moments."""

from hrf_paper.experiments.experiment import Experiment
from hrf_paper.experiments.lambda_estimates.claims import claims
from hrf_paper.experiments.lambda_estimates.figure import figure
from hrf_paper.experiments.lambda_estimates.measure import Settings, parts
from hrf_paper.experiments.lambda_estimates.tables import tables

__all__ = ["EXPERIMENT"]

EXPERIMENT = Experiment(
    name="lambda",
    title="Estimates of the coefficients",
    source="Lemma 3.2, Theorem F.1",
    full=Settings(),
    quick=Settings(dim=8, draws=5000, angles=8),
    parts=parts,
    tables=tables,
    claims=claims,
    figure=figure,
)
