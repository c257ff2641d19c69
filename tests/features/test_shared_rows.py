"""Hybrids of exponential maps on the same ω: their covariance in closed form against Monte Carlo."""

from __future__ import annotations

import math

import pytest
from torch import Generator

import hrf
from features.registry import COMPLEX_FULL, DIM, REAL_DIAGONAL, REAL_FULL, M, N, X, Y
from hrf import coefficients

DRAWS = 20_000
MATRICES = {"real": (REAL_DIAGONAL, REAL_FULL), "complex": (REAL_FULL, COMPLEX_FULL)}


def hybrid(
    matrices: str,
    antithetic: tuple[bool, bool],
    kind: str,
    *,
    heads: int | None = None,
    share: bool = True,
    seed: int = 0,
) -> hrf.Hybrid:
    """Two exponential maps with different matrices, mixed by the angle."""
    generator = Generator().manual_seed(seed)
    omegas = [hrf.Projections(kind, M, DIM, heads=heads, generator=generator) for _ in range(2 - share)]
    bases = [
        hrf.Exponential(
            DIM,
            n_projections=M,
            matrix=a if heads is None else a.expand(heads, *a.shape),
            antithetic=flag,
            projection=omega,
            heads=heads,
        )
        for a, flag, omega in zip(MATRICES[matrices], antithetic, (omegas[0], omegas[-1]), strict=True)
    ]
    angular = coefficients.Angular(DIM, n_projections=N, projection=kind, heads=heads, generator=generator)
    return hrf.Hybrid(bases, [angular]).double()


@pytest.mark.stat
@pytest.mark.parametrize("kind", ["iid", "orthogonal"])
@pytest.mark.parametrize("antithetic", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("matrices", MATRICES)
def test_two_matrices_on_the_same_rows_have_the_predicted_mse(matrices, antithetic, kind):
    many = hybrid(matrices, antithetic, kind, heads=DRAWS, seed=1)
    squares = (many.estimate(X.unsqueeze(0), Y.unsqueeze(0)) - hrf.kernels.softmax(X, Y)).square()
    tolerance = 5 * squares.std(0) / math.sqrt(DRAWS) + 1e-13
    for share in (True, False):
        mse = hybrid(matrices, antithetic, kind, share=share).mse(X, Y)
        # Without the covariance of the bases the prediction is wrong, so this test depends on it.
        assert ((squares.mean(0) - mse).abs() <= tolerance).all() == share
