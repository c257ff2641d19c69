"""`hrf.SummarisedAttention`, the choices of the method, and `hrf.SummaryReport`, the account it gives."""

from __future__ import annotations

import copy
import math
import threading
from os import PathLike
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from hrf import pages
from hrf.checks import check_count, check_positive
from hrf.registry import Handled

__all__ = ["SummarisedAttention", "SummaryCall", "SummaryReport"]


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

    def save_page(self, path: str | PathLike[str]) -> None:
        """Write a page to look at: error and exact share of every head of every call, worst heads first."""
        if not self.calls:
            raise ValueError(
                "the report has no calls; expected one or more calls of attention before it is written"
            )
        sentences = [
            f"{len(self.calls)} calls of attention, in their order. Errors are relative errors of the output, "
            "estimated from 128 queries per head that were computed exactly.",
            f"Root mean square of the errors: {self.predicted_error:.3g}; exact pairs: {self.exact_share:.1%}.",
        ]
        errors = [call.predicted_error.double().square().mean(0).sqrt().tolist() for call in self.calls]
        shares = [call.exact_share.double().mean(0).tolist() for call in self.calls]
        names = [f"call {place}" for place in range(len(self.calls))]
        page = pages.heads_page("Summarised attention", sentences, names, errors, shares, row_name="call")
        pages.save(page, Path(path))

    def __repr__(self) -> str:
        return (
            f"SummaryReport(calls={len(self.calls)}, exact_share={self.exact_share:.3g}, "
            f"predicted_error={self.predicted_error:.3g})"
        )


def _mean(tensors: list[Tensor]) -> float:
    return float(torch.cat([t.flatten().double().cpu() for t in tensors]).mean()) if tensors else 0.0


SHORTEST = 256  # without sizes given, fewer queries or keys are computed exactly


class SummarisedAttention:
    """Softmax attention by summaries, with exact pairs where a summary would err: nothing is fitted or drawn.

    Queries of each head are cut into groups and keys into clusters, all of the same size. A group of queries reads a
    summary of each cluster (mass, mean key and mean value under the weights of the mean query), and computes some keys
    exactly: key j if its share of the group's mass, times the relative standard deviation √expm1(γ d²) of what the
    summary would get wrong (log-normal, with γ d² the variance of the logit), is at least τ/S · ⁴√(S/512), for S keys
    and τ the ``tolerance``. A single query computes all keys of a cluster exactly if the summary has a share
    of the query's own mass that, times the same deviation for this query, is at least τ/16. Give an instance to
    `hrf.attention` in place of a feature map.

    With ``is_causal``, keys of a block are summarised for queries that come later, in cells of the block's own queries;
    the last 1,024 tokens or less, and the first 16, are computed exactly. Outputs do not change with later tokens, not
    by one bit. Up to 1,024 tokens, causal attention is exact.

    On an accelerator, where the compiled core does not run, attention is exact.

    Gradients are exact for groups, cells, clusters and exact pairs held fixed.

    Args:
        n_groups: groups of queries per head, a power of two; ``None`` is 2^⌈1 + log₂(L)/2⌉ for L queries: 64 at 512 and
            1,024, 128 at 4,096, so that the time of summaries per token grows with √L. Exact pairs come on top: their
            share depends on the data, and falls with the length: on text from 7 % at 512 tokens to 4 % at 4,096. A
            sequence with fewer queries than groups or fewer keys than clusters is computed exactly; without sizes
            given, also one of fewer than 256 queries or keys.
        n_clusters: clusters of keys per head, by the same rule from the number of keys.
        tolerance: τ. 0 is exact attention, ``math.inf`` has no exact pair; ``"auto"`` picks τ per head, for
            ``target_error``.
        target_error: relative error of each head's output to stay below, with ``tolerance="auto"``. The largest τ
            is searched whose error, estimated as in a `hrf.SummaryReport`, is low enough; this computes attention
            seven times, and causal attention thirteen times, with one τ for all heads that depends on all tokens.
        rotary: of queries and keys with rotary embeddings, in planes (k, k + half): angles in radians per position,
            ``(half,)``, or the base θ of θ^(−2k/d). Causal attention is right without it, and faster with it.
        report: where to add an account of each call, which takes several times as long as the attention itself.

    >>> import torch, hrf
    >>> q, k, v = torch.randn(3, 1, 4, 1000, 16)
    >>> report = hrf.SummaryReport()
    >>> method = hrf.SummarisedAttention(tolerance=0.5, report=report)
    >>> hrf.attention(q, k, v, method).shape
    torch.Size([1, 4, 1000, 16])
    >>> report.calls[0].exact_share.shape
    torch.Size([1, 4])
    """

    def __init__(
        self,
        n_groups: int | None = None,
        n_clusters: int | None = None,
        tolerance: float | Literal["auto"] = 1.0,
        *,
        target_error: float | None = None,
        rotary: float | Tensor | None = None,
        report: SummaryReport | None = None,
    ) -> None:
        self.n_groups = _power_of_two("n_groups", n_groups)
        self.n_clusters = _power_of_two("n_clusters", n_clusters)
        if tolerance == "auto":
            if target_error is None:
                raise ValueError("tolerance is 'auto' without a target_error; expected one, such as 0.01")
            check_positive("target_error", target_error)
        elif target_error is not None:
            raise ValueError(
                f"target_error is {target_error} with tolerance {tolerance}; expected tolerance='auto'"
            )
        elif isinstance(tolerance, str) or not tolerance >= 0:
            raise ValueError(f"tolerance is {tolerance!r}; expected 'auto', or a number that is not negative")
        if isinstance(rotary, (int, float)):
            check_positive("rotary", rotary)
        elif rotary is not None and not isinstance(rotary, Tensor):
            raise TypeError(
                f"rotary is {rotary!r}; expected angles per position, a base such as 10000.0, or None"
            )
        self.tolerance, self.target_error, self.rotary, self.report = tolerance, target_error, rotary, report

    def __repr__(self) -> str:
        aim = "" if self.target_error is None else f", target_error={self.target_error:g}"
        sizes = f"n_groups={self.n_groups}, n_clusters={self.n_clusters}"
        return f"SummarisedAttention({sizes}, tolerance={self.tolerance!r}{aim})"

    def with_rotary(self, angles: Tensor | None) -> SummarisedAttention:
        """Return the method for queries and keys with these rotary angles."""
        other = copy.copy(self)
        other.rotary = angles
        return other

    def with_report(self, report: SummaryReport) -> SummarisedAttention:
        """Return the method with a report of its own."""
        other = copy.copy(self)
        other.report = report
        return other

    def angles(self, dim: int) -> Tensor | None:
        """Return the rotary angles per position for heads of ``dim`` dimensions, if there are any."""
        if self.rotary is None or isinstance(self.rotary, Tensor):
            if self.rotary is not None and (self.rotary.ndim != 1 or 2 * len(self.rotary) > dim):
                raise ValueError(
                    f"rotary has shape {tuple(self.rotary.shape)}; expected (half,), at most {dim // 2} angles for "
                    f"{dim} dimensions"
                )
            return self.rotary
        half = dim // 2
        return self.rotary ** (-torch.arange(half, dtype=torch.double) / half)

    def sizes(self, queries: int, keys: int) -> tuple[int, int]:
        """Return the numbers of groups and clusters for numbers of queries and keys; (0, 0) is exact attention."""
        given = self.n_groups is not None and self.n_clusters is not None
        if not given and min(queries, keys) < SHORTEST:
            return 0, 0
        groups, clusters = self.n_groups or grown(queries), self.n_clusters or grown(keys)
        return (groups, clusters) if queries >= groups and keys >= clusters else (0, 0)


def grown(length: int) -> int:
    """Return 2^⌈1 + log₂(length)/2⌉, 2√length rounded up to a power of two."""
    return 1 << math.ceil(1 + math.log2(length) / 2)


def _power_of_two(name: str, value: int | None) -> int | None:
    if value is None:
        return None
    count = check_count(name, value)
    if count & (count - 1):
        raise ValueError(f"{name} is {count}; expected a power of two: a tree halves the sequence")
    return count
