"""Numbers beyond the range of float64, and the covariance of orthogonal rows.

Numbers held as mantissa · exp(exponent), so that e^{10000} and exact zeros fit in one tensor.

The variances of random features grow like exp(‖x‖² + ‖y‖²): beyond norms of 20 they overflow float64,
while at the points where an estimator is exact they are zero. A signed mantissa next to an exponent
keeps both ends, and lets covariances (which may be negative) be added before a logarithm is taken.

>>> import torch
>>> huge = Scaled(torch.tensor(2.0), torch.tensor(1000.0))
>>> none = Scaled(torch.tensor(0.0), torch.tensor(5000.0))
>>> scaled_sum(huge, none).log()
tensor(1000.6932)

Covariance of two orthogonal projections, rows of one Haar block (derived here).

Orthogonal projections come in blocks of d rows: directions from a Haar matrix, each length an
independent χ_d variable, the last block cut short. Every row alone is still N(0, I), so an estimator
that averages m rows keeps its mean, and its variance gains ``orthogonal_share`` times the covariance of
the terms of two different rows of a block. The library needs two such covariances: of exponential
terms (``orthogonal_excess``) and of products of signs (``angular_pair_covariance``).
"""

from __future__ import annotations

import math
from functools import reduce
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

__all__ = ["Scaled", "scaled_sum"]


class Scaled(NamedTuple):
    """The number mantissa · exp(exponent); the mantissa carries the sign."""

    mantissa: Tensor
    exponent: Tensor

    @classmethod
    def plain(cls, number: Tensor) -> Scaled:
        """Hold an ordinary number."""
        return cls(number, torch.zeros_like(number))

    @classmethod
    def exp(cls, exponent: Tensor) -> Scaled:
        """Hold the exponential of a number, which itself may overflow."""
        return cls(torch.ones_like(exponent), exponent)

    def times(self, factor: Scaled | Tensor | float) -> Scaled:
        """Multiply by another number."""
        if isinstance(factor, Scaled):
            return Scaled(self.mantissa * factor.mantissa, self.exponent + factor.exponent)
        return Scaled(self.mantissa * factor, self.exponent)

    def times_exp(self, exponent: Tensor) -> Scaled:
        """Multiply by exp(exponent), which itself may overflow."""
        return Scaled(self.mantissa, self.exponent + exponent)

    def log(self) -> Tensor:
        """Return the logarithm of max(number, 0): −inf where the number is zero, or negative by rounding."""
        return self.mantissa.clamp_min(0).log() + self.exponent

    def value(self) -> Tensor:
        """Return the ordinary number; infinite where the dtype cannot hold it, exactly 0 where the mantissa is 0."""
        return torch.where(self.mantissa == 0, 0.0, self.mantissa * self.exponent.exp())


def scaled_sum(*terms: Scaled) -> Scaled:
    """Add the terms, on the largest exponent of all terms that are not zero."""
    # The exponent of a zero means nothing: left in, it could flush every other term to zero.
    exponents = [torch.where(term.mantissa == 0, -math.inf, term.exponent) for term in terms]
    largest = reduce(torch.maximum, exponents)
    largest = torch.where(largest.isneginf(), 0.0, largest)
    mantissas = [t.mantissa * (e - largest).exp() for t, e in zip(terms, exponents, strict=True)]
    return Scaled(reduce(torch.add, mantissas), largest)


def complement(*numbers: Scaled) -> Scaled:
    """Return 1 − Σ numbers, the weight that is left for a last base."""
    one = Scaled.plain(torch.ones_like(numbers[0].mantissa))
    return scaled_sum(one, *(number.times(-1) for number in numbers))


_LARGEST = (
    160.0  # limit of max(|α| + |β|, 2|γ|); beyond it the excess counts as zero, see `orthogonal_excess`
)
_TERMS = 48  # terms of the Fourier series of the angular covariance, where it converges that fast
_CHUNK = 1 << 13  # elements per pass of the series: bounds the memory of its rows


def orthogonal_share(n_rows: int, dim: int) -> float:
    """Return f = Σ_blocks b(b − 1)/m²: the share of ordered pairs of rows that are orthogonal (b rows per block).

    >>> orthogonal_share(8, 4), orthogonal_share(5, 4), orthogonal_share(7, 1)
    (0.375, 0.48, 0.0)
    """
    blocks, rest = divmod(n_rows, dim)
    return (blocks * dim * (dim - 1) + rest * (rest - 1)) / n_rows**2


def orthogonal_excess(alpha: Tensor, beta: Tensor, gamma: Tensor, dim: int) -> Tensor:
    """E[exp(ω₁ᵀa − a²/2) exp(ω₂ᵀb − b²/2)] − 1 for orthogonal rows ω₁ ⟂ ω₂ of R^d (derived here).

    For independent rows this is zero. It depends on the complex vectors a, b only through their
    bilinear products α = aᵀa, β = bᵀb, γ = aᵀb. The 2 × 2 matrix-argument ₀F₁ of the pair of
    directions and the moments of χ_d give, with c = d/2,

        E[e^{ω₁ᵀa + ω₂ᵀb}] = Σ_k w_k ((αβ − γ²)/4)^k Φ₂(c + k, c + k; c + 2k; α/2, β/2)

    with w_k = (c)_k² / ((c − ½)_k (c)_{2k} k!) and Humbert's Φ₂. Each Φ₂ is an inverse Laplace transform
    at 1, so the factor e^{−(α+β)/2} only shifts its variable. One power series remains, whose
    terms of degree 0 and 1 are 1 and 0:

        1 + excess = Σ_J [s^J] G(s) / (c)_J,    S = (α + β)/2,  P = αβ/4,  Q(s) = 1 + Ss + Ps²,
        G(s) = ((1 + Ss)/Q(s))^c ₂F₁(c, c; c − ½; (P − γ²/4) s²/Q(s)).

    Pfaff's transformation leaves smaller terms: with Γ = γ²/4 and R(s) = 1 + Ss + Γs² = Q(s) + (Γ − P)s²,

        G(s) = ((1 + Ss)/R(s))^c  Σ_k (c)_k (−½)_k / ((c − ½)_k k!) · ((Γ − P) s²/R(s))^k.

    Nothing cancels near zero, and the rounding error stays below 1e-15 of √(V_A V_B), the variances that
    the excess corrects. For a = b the sum is e^{−α} ₁F₁(d; d/2; α/2) − 1.

    Where max(|α| + |β|, 2|γ|) exceeds 160 the result is 0. There the larger relative variance of the two
    estimators' rows is at least about e^{80}/4, and the excess is below 1e-12 of it. The exception is odd d
    with a = b imaginary, where the excess falls like |α|^{−d}: 2e-5 of the variance for d = 3, 1e-7 for d = 5.

    Args:
        alpha: aᵀa, real or complex, of any shape.
        beta: bᵀb, broadcast against ``alpha``.
        gamma: aᵀb, broadcast against ``alpha``.
        dim: d, at least 2.

    Returns:
        The excess, real if every coefficient is real, else complex.
    """
    if dim < 2:
        raise ValueError(f"orthogonal rows need dim >= 2, got dim={dim}")
    far = torch.maximum(alpha.abs() + beta.abs(), 2 * gamma.abs()) > _LARGEST
    alpha, beta, gamma = (torch.where(far, 0.0, value) for value in (alpha, beta, gamma))
    product = gamma * gamma / 4
    coefficients = [(alpha + beta) / 2, product, product - alpha * beta / 4]
    if not any(value.is_complex() and bool(value.imag.any()) for value in coefficients):
        coefficients = [value.real for value in coefficients]
    columns = torch.stack(coefficients).reshape(3, far.numel())
    starts = range(0, max(columns.shape[1], 1), _CHUNK)
    return torch.cat([_excess_series(columns[:, i : i + _CHUNK], dim / 2) for i in starts]).reshape(far.shape)


def _excess_series(coefficients: Tensor, c: float) -> Tensor:
    """Σ_{J≥2} [s^J] G(s)/(c)_J for stacked S, Γ and Γ − P, ``(3, E) -> (E,)``."""
    half_sum, product, gap = coefficients.unbind()
    square, both, mixed = half_sum.square(), product * half_sum, bool(gap.any())
    # The terms of degrees J−1, J−2, J−3, each (rows, E), row k for the k-th power of the gap: G = 1 + 0·s + …
    newest = torch.zeros_like(half_sum)[None]
    middle = torch.ones_like(newest)
    oldest = torch.zeros_like(newest)
    total = torch.zeros_like(half_sum)
    peak = total.abs()
    tolerance = torch.finfo(half_sum.dtype).eps / 16
    degree, negligible = 2, 0
    while negligible < 3:
        n1 = c + degree - 1
        n2 = n1 * (c + degree - 2)
        # Row 0 is ((1 + Ss)/R)^c: its logarithmic derivative gives a recurrence of three terms.
        factor = torch.add((degree - 2) * square, product, alpha=degree - 2 + 2 * c)
        head = half_sum * newest[0] * (2 * (1 - degree) / (n1 * degree))
        head = head.addcmul(factor, middle[0], value=-1 / (n2 * degree))
        rows = head.addcmul(both, oldest[0], value=-1 / (n2 * degree))[None]
        if mixed:
            # Row k times R is row k−1 times s² (and constants).
            k = torch.arange(1, len(middle) + 1, dtype=total.abs().dtype, device=total.device)[:, None]
            upper = gap * middle * ((c + k - 1) * (k - 1.5) / ((c + k - 1.5) * k * n2))
            upper[: len(newest) - 1].addcmul_(half_sum, newest[1:], value=-1 / n1)
            upper[: len(middle) - 1].addcmul_(product, middle[1:], value=-1 / n2)
            rows = torch.cat([rows, upper])
        total = total + rows.sum(0)
        size = rows.abs().sum(0)
        peak = torch.maximum(peak, size)
        negligible = 0 if bool((size > tolerance * peak).any()) else negligible + 1
        newest, middle, oldest = rows, newest, middle
        degree += 1
    return total


def angular_pair_covariance(theta: Tensor, dim: int) -> Tensor:
    """C(θ, d) = E[s₁s₂] − (1 − 2θ/π)², sᵢ = sgn(τᵢᵀx) sgn(τᵢᵀy), for directions τ₁ ⟂ τ₂ (derived here).

    Given τ₁, the projection of τ₂ on the plane of x and y is an angular central Gaussian whose doubled angle
    is wrapped Cauchy. With s of density (d − 2)s^{d−3} on [0, 1] and w = (1 − s)/(1 + s),

        C = (8/π²) Σ_k (−1)^k sin²(kθ)/k² E[w^k] = (4/π²) E[Li₂(−w) − Re Li₂(−w e^{2iθ})],

    which is −(2θ/π)² for d = 2 and −(4/π²)θ²/(d − 1) for small θ; C is symmetric about θ = π/2. It is
    negative: orthogonal directions improve the estimate of the angle.

    >>> angular_pair_covariance(torch.tensor([0.0, torch.pi / 2, torch.pi], dtype=torch.float64), 2)
    tensor([-0., -1., -0.], dtype=torch.float64)
    """
    if dim < 2:
        raise ValueError(f"orthogonal rows need dim >= 2, got dim={dim}")
    fold = torch.minimum(theta, math.pi - theta)
    small_angle = -4 / math.pi**2 * fold.square() / (dim - 1)
    if dim == 2:
        return small_angle
    from scipy.special import roots_jacobi, spence  # SciPy takes a second to import

    # s = t^{power/(d−2)}: with t of density power·t^{power−1} the logarithm of Li₂ at s = 0 is smooth enough
    # for 64 nodes when d is small, and the weight does not overflow when d is large.
    power = min(2 * (dim - 2), 64)
    nodes, weights = roots_jacobi(64, 0, power - 1)
    weights = weights / weights.sum()
    s = ((1 + nodes) / 2) ** (power / (dim - 2))
    w = (1 - s) / (1 + s)
    k = np.arange(1, _TERMS + 1)
    series = (-1.0) ** k / k**2 * (w[:, None] ** k * weights[:, None]).sum(0)
    if abs(series[-1]) < 1e-17 * abs(series[0]):  # in many dimensions few terms of the series matter
        terms = (float(c) * (n * fold).sin().square() for n, c in zip(k.tolist(), series, strict=True) if c)
        return 8 / math.pi**2 * sum(terms, torch.zeros_like(fold))
    phase = np.exp(2j * fold.double().cpu().numpy()[..., None])
    gain = (spence(1 + w + 0j) - spence(1 + w * phase)).real @ weights  # Li₂(v) = spence(1 − v)
    covariance = torch.as_tensor(4 / math.pi**2 * gain, dtype=theta.dtype, device=theta.device)
    # Below 1e-4 the difference of dilogarithms is pure rounding, and the first term of the series is enough.
    return torch.where(fold < 1e-4, small_angle, covariance)
