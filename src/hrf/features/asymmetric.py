"""FAVOR# for queries and keys that are not alike: dense-exponential features of Ax and of A⁻ᵀy.

exp(xᵀy) = exp((Ax)ᵀ(A⁻ᵀy)) for any invertible A. The A of `hrf.fitting` makes both sides as small as they can be
together; the quadratic form of FAVOR# is then fitted to Ax and A⁻ᵀy.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor
from typing_extensions import Self, override

from hrf.features.base import Side
from hrf.features.flops import Flops
from hrf.features.matrices import matrix_pair
from hrf.features.optimal import DenseExponential
from hrf.fitting import SecondMoments
from hrf.numerics import Features
from hrf.projections import ProjectionKind, Projections

__all__ = ["AsymmetricExponential"]


class AsymmetricExponential(DenseExponential):
    """`DenseExponential` of Ax and A⁻ᵀy. Every estimate is positive; the width is m.

    Args:
        dim: length d of the inputs.
        n_projections: number m of rows ω.
        matrix: A, real, ``(d, d)`` or its diagonal ``(d,)``; with ``heads=H``, a leading axis H.
        projection: one of `hrf.projections.KINDS`, or a `Projections` to share.
        heads: ``None``, or H for one map per head.
        generator: the source of randomness.
        seed: seed of a new generator, in place of ``generator``.

    >>> import torch, hrf
    >>> _ = torch.manual_seed(0)
    >>> x, y = torch.randn(99, 4) * torch.tensor([3, 1, 1, 1.0]), torch.randn(99, 4) / 4
    >>> a = hrf.fitting.fit_matrix(hrf.fitting.SecondMoments.of(x, y), "real-full")
    >>> phi = hrf.AsymmetricExponential(4, n_projections=8, matrix=a, projection="iid").fit(x, y)
    >>> plain = hrf.DenseExponential(4, n_projections=8, projection="iid").fit(x, y)
    >>> bool(phi.relative_error(x, y).median() < plain.relative_error(x, y).median())
    True
    """

    def __init__(
        self,
        dim: int,
        *,
        n_projections: int,
        matrix: Tensor,
        projection: ProjectionKind | Projections = "orthogonal",
        heads: int | None = None,
        generator: Generator | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            dim,
            n_projections=n_projections,
            projection=projection,
            heads=heads,
            generator=generator,
            seed=seed,
        )
        self.query_matrix, self.key_matrix = matrix_pair(matrix, dim, heads)
        if self.query_matrix.has_imag:
            raise ValueError("matrix has imaginary parts; expected a real one")

    def fit(self, queries: Tensor, keys: Tensor) -> Self:
        """Learn a and Q from ``queries (..., L, d)`` and ``keys (..., S, d)``, head by head; A stays."""
        return super().fit(self._turned(queries, "query"), self._turned(keys, "key"))

    def fit_moments(self, moments: SecondMoments) -> Self:
        """Learn a and Q from second moments of queries and keys, ``(..., d, d)`` each."""
        a, b = (self._turned(torch.eye(self.dim, dtype=torch.float64), side).mT for side in ("query", "key"))
        cross = a @ moments.cross @ b.mT
        return self._learn(a @ moments.queries @ a.mT + b @ moments.keys @ b.mT + cross + cross.mT)

    def _turned(self, u: Tensor, side: Side) -> Tensor:
        """Return Ax or A⁻ᵀy."""
        turned, _ = (self.query_matrix if side == "query" else self.key_matrix)(u)
        assert turned is not None
        return turned

    @override
    def scaled(self, x: Tensor, side: Side) -> Features:
        return super().scaled(self._turned(x, side), side)

    @override
    def _log_mse(self, x: Tensor, y: Tensor) -> Tensor:
        return super()._log_mse(self._turned(x, "query"), self._turned(y, "key"))

    @override
    def _flops(self) -> Flops:
        """Count `DenseExponential` and the product with A."""
        return super()._flops().plus(self.query_matrix.flops(self.dim))

    @override
    def config(self) -> dict[str, Any]:
        matrix = self.query_matrix.matrix()
        if matrix is None:  # the identity
            matrix = torch.ones(self.query_matrix.shape)
        return super().config() | {"matrix": matrix}
