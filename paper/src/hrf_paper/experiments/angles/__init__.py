"""Relative error ε = √MSE / K of every estimator over the angle θ of x and y, at one feature width.

On the sphere ‖x‖ = ‖y‖ = r the softmax kernel is K = exp(r² cos θ), and ε depends on θ alone (paper,
Lemma 3.4): trigonometric features are exact at θ = 0 and positive features at θ = π. Lines show the closed form of
each map, dots the error over a number of draws.
"""

from hrf_paper.experiments.angles.claims import claims
from hrf_paper.experiments.angles.figure import figure
from hrf_paper.experiments.angles.measure import Settings, parts
from hrf_paper.experiments.angles.tables import tables
from hrf_paper.experiments.experiment import Experiment

__all__ = ["EXPERIMENT"]

EXPERIMENT = Experiment(
    name="angles",
    title="Relative error of every estimator over the angle",
    source="Section 3 (Lemma 3.4)",
    full=Settings(),
    quick=Settings(dim=16, features=128, draws=200),
    parts=parts,
    tables=tables,
    claims=claims,
    figure=figure,
)
