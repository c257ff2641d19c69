"""A Conformer-Transducer with the paper's attention: word error rates (paper, table of the section on speech)."""

from __future__ import annotations

from hrf_paper.experiments.experiment import Experiment
from hrf_paper.experiments.speech.claims import claims
from hrf_paper.experiments.speech.figure import figure
from hrf_paper.experiments.speech.measure import parts
from hrf_paper.experiments.speech.settings import FULL, QUICK, SCALED
from hrf_paper.experiments.speech.tables import tables

__all__ = ["EXPERIMENT"]

EXPERIMENT = Experiment(
    name="speech",
    title="Word error rates of a Conformer-Transducer",
    source="Section on speech models, its table",
    full=FULL,
    scaled=SCALED,
    quick=QUICK,
    parts=parts,
    tables=tables,
    claims=claims,
    figure=figure,
    needs=("jiwer",),
)
