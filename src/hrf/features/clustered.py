"""One base for each pair of clusters (paper, Sec. 2.4 and the zero-one mixtures of its appendix).

A query belongs to the nearest of n_q centres rᵢ, a key to the nearest of n_k centres rⱼ, and the pair (i, j)
decides how exp(xᵀy) is estimated; λ is the indicator of the pair. With residuals x' = x − rᵢ, y' = y − rⱼ,

    exp(xᵀy) = exp(xᵀrⱼ + rᵢᵀy') · exp(x'ᵀy'),

where the first factor is exact and separable. The bases:

=============  ==========================================================================  =========
base           estimate for a pair of clusters                                             unbiased
=============  ==========================================================================  =========
``paper``      complex exponential with Aᵢⱼ from the two centres                            yes
``moments``    complex exponential with Aᵢⱼ from the second moments of the two clusters     yes
``shifted``    exp(xᵀrⱼ + rᵢᵀy') K̂(x', y'), one A for all residuals (not in the paper)       yes
``separable``  exp(xᵀrⱼ + rᵢᵀy'): one feature, no variance                                  no
``shrunk``     exp(xᵀrⱼ + rᵢᵀy') (1 + s (K̂(x', y') − 1)), 0 ≤ s ≤ 1, between the last two    no
=============  ==========================================================================  =========
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from typing_extensions import Self

from hrf import kernels
from hrf.features.base import FeatureMap, Features, Side
from hrf.features.exponential import Exponential
from hrf.features.grouping import Groups, gather_rows
from hrf.fitting.clusters import assign

__all__ = ["BASES", "ClusteredHybrid"]

BASES = ("paper", "moments", "shifted", "separable", "shrunk")


class ClusteredHybrid(FeatureMap):
    """A base estimator for each pair of a query cluster and a key cluster. `fit` makes one from data.

    Args:
        query_centers: ``(n_q, d)``, or ``(H, n_q, d)`` with heads.
        key_centers: ``(n_k, d)``, or ``(H, n_k, d)``.
        base: one of `BASES`.
        feature_map: what estimates: for ``paper`` and ``moments`` an `Exponential` with a head for every pair
            of clusters (of every head), row by row; for ``shifted`` and ``shrunk`` one map of the residuals;
            ``None`` for ``separable``.
        shrinkage: s, a number or ``(H,)``; only for ``shrunk``.
        exact: pairs of clusters that are computed exactly, ``(n_q, n_k)`` or ``(H, n_q, n_k)`` booleans.
        default: a map for the pairs that are not ``served``.
        served: pairs of clusters that the base serves, booleans like ``exact``; ``None`` is all.
        recenter: move the key centres to the means of the keys at hand. Better, at linear cost; features then
            depend on all keys, so `queries` and `keys` are not defined (use `at` to fix the centres).
    """

    query_centers: Tensor
    key_centers: Tensor
    shrinkage: Tensor | None
    exact: Tensor | None
    served: Tensor | None
