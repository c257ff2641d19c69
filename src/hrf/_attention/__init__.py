"""The engines behind `hrf.attention`; ``dispatch.py`` says which serves which map and in what order to read."""

from hrf._attention.denominator import Denominator
from hrf._attention.function import attention
from hrf._attention.inputs import AccuracyWarning
from hrf._attention.state import AttentionState
from hrf._attention.summarised.method import SummarisedAttention, SummaryCall, SummaryReport

__all__ = [
    "AccuracyWarning",
    "AttentionState",
    "Denominator",
    "SummarisedAttention",
    "SummaryCall",
    "SummaryReport",
    "attention",
]
