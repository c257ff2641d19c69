"""Typos that change a formula."""

from __future__ import annotations

import math

import torch

from errata.tools import (
    OMEGA,
    X,
    Y,
    bipolar_mse,
    bits,
    close,
    differ,
    hermitian,
    mean,
    printed_features,
    shown,
    vector,
)
from hrf import theory


def test_typo_root_in_the_limit():
    """√(θ − π) is not a real number below π; with √(π − θ) the printed limit is right."""
    theta = torch.tensor([math.pi - 1e-6], dtype=torch.float64)
    error = theory.sphere_relative_error_angular(theta, 1.0, 3, 4)
    assert (theta - math.pi).sqrt().isnan().all()
    assert close(error / (math.pi - theta).sqrt(), theory.limit_ratio(1.0, 3, 4), 1e-4)


def test_typo_factor_of_the_relative_error():
    """ε_θ = e^{r²} √h/√(2m): with e^{2r²} it is e^{r²} too large."""
    r, m, n, theta = 1.2, 3, 4, 0.8

    def a(angle):
        q = angle / math.pi
        square = (1 - math.exp(-4 * r**2 * math.cos(angle / 2) ** 2)) ** 2
        return q * (q - q / n + 1 / n) * math.exp(2 * r**2 * math.cos(angle)) * square

    root = math.sqrt((a(theta) + a(math.pi - theta)) / (2 * m))
    x, y = vector(r, 0), r * vector(math.cos(theta), math.sin(theta))
    exact = bipolar_mse(bits(theta / math.pi, n), x, y, shared=True).sqrt() / (x @ y).exp() / math.sqrt(m)
    assert close(exact, math.exp(r**2) * root)
    assert close(math.exp(2 * r**2) * root / exact, math.exp(r**2))


def test_typo_scale_of_the_building_blocks():
    """ξ without exp(±‖u‖²/2) builds the Gaussian kernel or exp(‖x + y‖²/2) instead of the softmax kernel."""
    x, y = OMEGA @ X, OMEGA @ Y
    trigonometric = x.sin() * y.sin() + x.cos() * y.cos()
    positive = (x.exp() * y.exp() + (-x).exp() * (-y).exp()) / 2
    half_squares = (X @ X + Y @ Y) / 2
    for printed, factor in ((trigonometric, half_squares.exp()), (positive, (-half_squares).exp())):
        assert differ(mean(printed), (X @ Y).exp())
        assert close(mean(printed * factor), (X @ Y).exp())
    shown("typos", (X @ Y).exp(), "0.7866")
    shown("typos", mean(trigonometric), "0.3588")
    shown("typos", mean(positive), "1.7246")


def test_typo_sign_of_the_key():
    """Ψ(x)ᵀΨ(y) fires at x = y; λ needs Ψ(x)ᵀΨ(−y)."""
    one = torch.ones(2, dtype=torch.complex128)
    query, key, minus = (printed_features(u, one, lambda u: 2 * hermitian(u)).real for u in (X, Y, -Y))
    lam = torch.exp(-(X + Y).square().sum() / 2)
    assert close(mean(query * minus), lam)
    assert differ(mean(query * key), lam)
    shown("typos", lam, "0.5798")
    shown("typos", mean(query * key), "0.3588")


def test_typo_unit_of_perplexity():
    """2 to the cross entropy is the perplexity if the entropy is in bits; losses come in nats."""
    classes = 10_000
    nats = torch.nn.functional.cross_entropy(torch.zeros(1, classes, dtype=torch.float64), torch.tensor([7]))
    assert close(nats.exp(), classes)
    assert close(2 ** (nats / math.log(2)), classes)
    assert differ(2**nats, classes)
    shown("typos", 2**nats, "592.4")
