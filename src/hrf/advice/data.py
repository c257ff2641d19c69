"""Queries, keys and values that `advise` was given: checked, scaled and split."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from hrf.advice.errors import Objective, Problem
from hrf.checks import not_finite

__all__ = ["Data", "as_vectors"]

_LEAST = 4  # two vectors to fit to and two to measure on
_LONGEST = 1e7  # logits of longer vectors have no correct decimals in float64


class Data(NamedTuple):
    """Queries ``(N, d)``, keys ``(S, d)`` and perhaps values ``(S, d_v)``, in float64 on the CPU."""

    queries: Tensor
    keys: Tensor
    values: Tensor | None

    @classmethod
    def checked(cls, queries: Any, keys: Any, values: Any, scale: float) -> Data:
        """Convert tensors or arrays, multiply queries and keys by √scale; errors say what is wrong with them."""
        q, k = (as_vectors(u, name) * math.sqrt(scale) for u, name in ((queries, "queries"), (keys, "keys")))
        v = None if values is None else as_vectors(values, "values")
        if q.shape[-1] != k.shape[-1]:
            raise ValueError(
                f"queries have {q.shape[-1]} columns, keys {k.shape[-1]}; expected the same number"
            )
        if v is not None and len(v) != len(k):
            raise ValueError(
                f"the numbers of keys and values are {len(k)} and {len(v)}; expected one value per key"
            )
        for name, vectors in (("queries", q), ("keys", k)):
            if len(vectors) < _LEAST:
                raise ValueError(f"the number of {name} is {len(vectors)}; expected {_LEAST} or more")
            if (longest := float(torch.linalg.vector_norm(vectors, dim=-1).max())) > _LONGEST:
                raise ValueError(
                    f"the longest of the {name} has norm {longest:.1e} (with the root of scale); expected at most "
                    f"{_LONGEST:.0e}, as random features are for norms of about 1: scale the columns (StandardScaler), "
                    "or divide all by one number"
                )
        return cls(q, k, v)

    @property
    def dim(self) -> int:
        """Length d of queries and keys."""
        return self.queries.shape[-1]

    @property
    def value_dim(self) -> int:
        """Length of the values; without values, the length of the keys."""
        return (self.keys if self.values is None else self.values).shape[-1]

    def halves(self, seed: int) -> tuple[Data, Data]:
        """Split into two halves by a shuffle that depends on the number of vectors and the seed alone."""
        (q, other_q), (k, other_k) = _halves(self.queries, seed), _halves(self.keys, seed)
        v, other_v = (None, None) if self.values is None else _halves(self.values, seed)
        return Data(q, k, v), Data(other_q, other_k, other_v)

    def problem(self, objective: Objective, n_queries: int, n_keys: int) -> Problem:
        """Pose the problem on the first queries and keys."""
        values = None if self.values is None else self.values[:n_keys]
        return Problem(self.queries[:n_queries], self.keys[:n_keys], values, objective)


def _halves(vectors: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    order = torch.randperm(len(vectors), generator=Generator().manual_seed(seed))
    return vectors[order[: len(vectors) // 2]], vectors[order[len(vectors) // 2 :]]


def as_vectors(given: Any, name: str) -> Tensor:
    """Convert to rows in float64 on the CPU, or say what is wrong with them."""
    tensor = given.detach().cpu() if isinstance(given, Tensor) else torch.tensor(np.asarray(given))
    if tensor.is_complex() or tensor.ndim != 2 or not tensor.numel():
        raise ValueError(
            f"{name} have shape {tuple(tensor.shape)} and {tensor.dtype}; expected real numbers (N, d)"
        )
    tensor = tensor.double()
    if bad := not_finite(tensor):
        raise ValueError(f"{name} have {bad}; expected finite values")
    return tensor
