"""`hrf.SummarisedAttention` with its default sizes.

FLOPs per token: the table in ``hrf/advice/errors.py``; only products, as for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor
from typing_extensions import override

import hrf
from benchmarks.field.method import Method
from benchmarks.minilm import Attention
from hrf.advice.errors import summary_flops

__all__ = ["Summarised"]


@dataclass(frozen=True)
class Summarised(Method):
    """Summarised attention of a tolerance.

    Attributes:
        tolerance: τ.
        shares: of exact pairs, by the length of the sequence; `measure_share` adds them.
    """

    tolerance: float
    shares: dict[int, float] = field(default_factory=dict)

    @override
    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: int = 0) -> Tensor:
        return hrf.attention(q, k, v, hrf.SummarisedAttention(tolerance=self.tolerance), scale=1.0)

    @override
    def measure_share(self, layers: Sequence[Attention]) -> None:
        report = hrf.SummaryReport()
        method = hrf.SummarisedAttention(tolerance=self.tolerance, report=report)
        for inputs in layers:
            hrf.attention(*inputs, method, scale=1.0)
        self.shares[layers[0].queries.shape[-2]] = report.exact_share

    @override
    def flops(self, length: int, dim: int, value_dim: int) -> float:
        return summary_flops(length, dim, value_dim, self.shares[length])
