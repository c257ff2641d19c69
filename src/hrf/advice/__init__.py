"""Which map for this data and this budget: `advise` fits every family and measures it on held-out data."""

from hrf.advice.advisor import advise
from hrf.advice.result import Advice, Candidate

__all__ = ["Advice", "Candidate", "advise"]
