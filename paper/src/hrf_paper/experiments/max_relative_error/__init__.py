"""Largest relative error on a sphere of radius r: exact, the bound of Theorem 3.5, and two bounds that hold.

All errors here are shares of W(r)/√(2m), the largest error of the trigonometric and the positive estimator: m
drops out, and r can be as large as one likes. The theorem promises a share of the order 1/r for every number
n of coefficient projections; the exact share falls like 1/√r once r is larger than n, and exceeds the bound.
"""

from hrf_paper.experiments.experiment import Experiment
from hrf_paper.experiments.max_relative_error.claims import claims
from hrf_paper.experiments.max_relative_error.figure import figure
from hrf_paper.experiments.max_relative_error.measure import Settings, parts
from hrf_paper.experiments.max_relative_error.tables import tables

__all__ = ["EXPERIMENT"]

EXPERIMENT = Experiment(
    name="max-relative-error",
    title="The largest relative error, and where its bound fails",
    source="Lemma 3.4, Theorem 3.5",
    full=Settings(),
    quick=Settings(n_radii=61, draws=4000),
    parts=parts,
    tables=tables,
    claims=claims,
    figure=figure,
)
