"""Expectations without randomness, and ties between the page and the tests of the errata.

Expectations over ω are Gauss–Hermite sums in the plane and expectations over sign bits are enumerated.
`shown` ties each number on the page to the number that a test computes.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import torch

import hrf
from hrf import coefficients
from theory.references import gauss_hermite

PAGE = (Path(__file__).parents[2] / "docs" / "errata.md").read_text(encoding="utf-8")
PARTS = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
SECTIONS = {int(part.split(".")[0]): part for part in PARTS if part[0].isdigit()}
TYPOS = PARTS[-1]
OMEGA, WEIGHT = gauss_hermite(40)


def vector(*entries):
    return torch.tensor(entries, dtype=torch.float64)


# A pair of different lengths, and two centres with one coordinate of equal signs, one of opposite.
X, Y = vector(1.2, 0.0), vector(-0.2, 0.3)
QUERY_CENTRE, KEY_CENTRE = vector(0.5, 0.4), vector(0.2, -0.3)
# The paper's complex diagonal for those centres, i√(r_j/r_i) and √(−r_j/r_i): A r_i + A⁻¹ r_j = 0.
CENTRED = torch.tensor([1j * math.sqrt(0.4), math.sqrt(0.75)], dtype=torch.complex128)


def shown(where, value, text):
    """Assert that the value rounds to the text, and that the text stands in its section of the page."""
    decimals = len(text.partition(".")[2])
    assert f"{float(value):.{decimals}f}".replace("-", "−") == text
    section = SECTIONS.get(where, TYPOS)
    assert re.search(rf"(?<![\d.]){re.escape(text)}(?!\.?\d)", section), f"{text} is not in section {where}"


def close(value, expected, tolerance=1e-9):
    return math.isclose(float(value), float(expected), rel_tol=tolerance, abs_tol=1e-13)


def differ(value, other):
    """Whether two numbers differ by more than a hundredth, far beyond rounding."""
    return abs(value - other) > 0.01 * max(abs(value), abs(other))


def mean(values):
    """Mean over ω ~ N(0, I) in the plane, of values at the nodes."""
    return (WEIGHT.to(values.dtype) * values).sum()


def at_nodes(make, x, y, **arguments):
    """Estimates of a map with one projection per head, at one node of the rule per head: ``(nodes,)``."""
    phi = make(2, n_projections=1, projection="iid", heads=len(OMEGA), **arguments).double()
    phi.projection.omega.copy_(OMEGA.unsqueeze(1))
    return phi.estimate(x.expand(1, 1, 2), y.expand(1, 1, 2)).flatten()


def bits(q, n):
    """Values and probabilities of the share λ̂ of n sign bits that differ, each with probability q."""
    k = torch.arange(n + 1, dtype=torch.float64)
    ways = vector(*(math.comb(n, int(j)) for j in k))
    return k / n, ways * q**k * (1 - q) ** (n - k)


def gaussian_coefficient(x, y, **arguments):
    """Values and probabilities of the bipolar Gaussian λ̂ with n = 1, at the nodes."""
    inner = hrf.Trigonometric(2, n_projections=1, projection="iid", heads=len(OMEGA))
    lam = coefficients.Gaussian.bipolar(inner, **arguments).double()
    inner.projection.omega.copy_(OMEGA.unsqueeze(1))
    return lam.estimate(x.expand(1, 1, 2), y.expand(1, 1, 2)).flatten(), WEIGHT


def bipolar_mse(coefficient, x, y, *, shared):
    """E(λ̂K̂⁺⁺ + (1 − λ̂)K̂^trig − SM)² with m = 1: all values of λ̂ against all nodes of ω."""
    lam, chance = coefficient
    kernel = (x @ y).exp()
    positive, trigonometric = (at_nodes(base, x, y) - kernel for base in (hrf.Positive, hrf.Trigonometric))
    if shared:
        errors = lam[:, None] * positive + (1 - lam)[:, None] * trigonometric
        return chance @ errors.square() @ WEIGHT
    between = 2 * lam * (1 - lam) * mean(positive) * mean(trigonometric)
    squares = lam**2 * mean(positive**2) + (1 - lam) ** 2 * mean(trigonometric**2)
    return chance @ (squares + between)


def printed_features(u, matrix, square):
    """exp(−square(Au)/2) exp(ωᵀAu) at the nodes, with either meaning of the square."""
    u = matrix * u.to(matrix)
    return torch.exp(OMEGA.to(u) @ u - square(u) / 2)


def bilinear(u):
    return (u * u).sum()


def hermitian(u):
    return u.abs().square().sum()
