"""Exponents of real exponential maps as one affine function of the inputs, for loops that map few vectors.

With u = A(x − a), the features are exp(±ωᵀu) and their log weight is xᵀb − aᵀb/2 − ‖u‖²/2 − log(2m)/2: ωᵀu, u and xᵀb
are affine in x.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import TypeIs

from hrf.features.base import FeatureMap, Side
from hrf.features.exponential_features import ExponentialFeatures

__all__ = ["Affine", "is_real"]


class Affine(NamedTuple):
    """The columns of ``x @ matrix + offset``, in float64: ωᵀu, and unless u = x, the entries of u and xᵀb.

    Attributes:
        matrix: ``(H or 1, d, m)``, or ``(H or 1, d, m + d + 1)``.
        offset: ``(H or 1, ·)``; it has one more entry, the last: the constant of the log weight.
    """

    matrix: Tensor
    offset: Tensor

    @classmethod
    def of(cls, phi: ExponentialFeatures) -> tuple[Affine, Affine]:
        """Return the functions of queries and of keys, which are one object if they are the same."""
        if not phi.isotropic:
            return _shifted(phi, "query"), _shifted(phi, "key")
        omega = phi.projection.omega.detach().double()
        offset = _joined([omega.new_zeros(1, phi.n_projections), _log(phi)], phi.heads)
        both = cls(_joined([omega.mT], phi.heads), offset[:, 0])
        return both, both


def is_real(feature_map: FeatureMap) -> TypeIs[ExponentialFeatures]:
    """Return whether a map has features exp(±ωᵀu) and no others."""
    return isinstance(feature_map, ExponentialFeatures) and feature_map.only_pairs


def _shifted(phi: ExponentialFeatures, side: Side) -> Affine:
    omega, none = phi.projection.omega.detach().double(), torch.zeros(1, phi.dim, dtype=torch.float64)
    shifts = [none if s is None else s.detach().double() for s in (phi.query_shift, phi.key_shift)]
    (own, other), a = (shifts, phi.query_matrix) if side == "query" else (shifts[::-1], phi.key_matrix)
    (linear, _), (moved, _) = a(torch.eye(phi.dim, dtype=torch.float64)), a(-own)
    constant = _log(phi) - (own * other).sum(-1, keepdim=True) / 2
    offset = _joined([moved @ omega.mT, moved, torch.zeros_like(constant), constant], phi.heads)
    return Affine(_joined([linear @ omega.mT, linear, other.mT], phi.heads), offset[:, 0])


def _log(phi: ExponentialFeatures) -> Tensor:
    return torch.full((1, 1), -math.log(phi.n_terms) / 2, dtype=torch.float64)


def _joined(parts: Sequence[Tensor], heads: int | None) -> Tensor:
    """Concatenate columns ``(rows, ·)`` or ``(H, rows, ·)``: ``(H or 1, rows, ·)``."""
    return torch.cat([part.expand(heads or 1, *part.shape[-2:]) for part in parts], -1).contiguous()
