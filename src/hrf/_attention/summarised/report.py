"""Account of what summarised attention did: exact shares and predicted errors per head."""

from __future__ import annotations

import threading
from typing import NamedTuple

import torch
from torch import Tensor

from hrf.registry import Handled

__all__ = ["SummaryCall", "SummaryReport"]


class SummaryCall(NamedTuple):
    """One call of attention.

    Attributes:
        n_groups: groups of queries per batch item, ``(B,)``; 0 where the item was too short, and was computed exactly.
        n_clusters: clusters of keys per batch item, likewise.
        tolerance: τ per head, ``(B, H)``.
        exact_share: share of pairs that were computed exactly, per head, ``(B, H)``.
        predicted_error: ‖output − exact output‖ / ‖exact output‖ per head, ``(B, H)``, estimated from 128 queries that
            were computed exactly. An error in a single query of L, which is 1/√L at most, can go unseen.
    """

    n_groups: Tensor
    n_clusters: Tensor
    tolerance: Tensor
    exact_share: Tensor
    predicted_error: Tensor


class SummaryReport(Handled):
    """Calls of a `hrf.SummarisedAttention`, in their order; several threads may add to one report.

    Attributes:
        calls: one `SummaryCall` per call of attention (and per batch of packed sequences of similar length).
    """

    def __init__(self) -> None:
        self.calls: list[SummaryCall] = []
        self._lock = threading.Lock()

    def add(self, call: SummaryCall) -> None:
        """Append a call."""
        with self._lock:
            self.calls.append(call)

    @property
    def exact_share(self) -> float:
        """Mean share of exact pairs over calls and heads; 0 without calls."""
        return _mean([call.exact_share for call in self.calls])

    @property
    def predicted_error(self) -> float:
        """Root mean square of the predicted errors over calls and heads; 0 without calls."""
        return _mean([call.predicted_error.square() for call in self.calls]) ** 0.5

    def __repr__(self) -> str:
        return (
            f"SummaryReport(calls={len(self.calls)}, exact_share={self.exact_share:.3g}, "
            f"predicted_error={self.predicted_error:.3g})"
        )


def _mean(tensors: list[Tensor]) -> float:
    return float(torch.cat([t.flatten().double().cpu() for t in tensors]).mean()) if tensors else 0.0
