"""`seed` in place of `generator`, wherever ω is drawn."""

from __future__ import annotations

import inspect
from functools import partial

import pytest
import torch
from torch import Generator

import hrf
from hrf.features.base import Linearised
from hrf.projections import Projections, draw

POINTS = torch.randn(40, 4, generator=Generator().manual_seed(3), dtype=torch.float64)
SIZES = {"n_projections": 6}
BOTH = SIZES | {"n_coefficient_projections": 3}
CLUSTERS = SIZES | {"n_clusters": (2, 2)}

MAKERS = {
    "draw": partial(draw, "orthogonal", 6, 4),
    "Projections": partial(Projections, "orthogonal", 6, 4),
    "Exponential": partial(hrf.Exponential, 4, **SIZES),
    "Exponential.fit": partial(hrf.Exponential.fit, POINTS, POINTS, **SIZES),
    "Positive": partial(hrf.Positive, 4, **SIZES),
    "Trigonometric": partial(hrf.Trigonometric, 4, **SIZES),
    "OptimalPositive": partial(hrf.OptimalPositive, 4, **SIZES),
    "DenseExponential": partial(hrf.DenseExponential, 4, **SIZES),
    "AsymmetricExponential": partial(hrf.AsymmetricExponential, 4, matrix=torch.ones(4), **SIZES),
    "Angular": partial(hrf.coefficients.Angular, 4, **SIZES),
    "AngularHybrid": partial(hrf.AngularHybrid, 4, **BOTH),
    "GaussianHybrid": partial(hrf.GaussianHybrid, 4, sigma=1.0, radius=1.0, **BOTH),
    "GaussianMixture.fit": partial(hrf.GaussianMixture.fit, POINTS, POINTS, **BOTH),
    "ClusteredHybrid.fit": partial(hrf.ClusteredHybrid.fit, POINTS, POINTS, **CLUSTERS),
    "Positive.redraw_": lambda **source: hrf.Positive(4, **SIZES).redraw_(**source),
    "Projections.redraw_": lambda **source: Projections("orthogonal", 6, 4).redraw_(**source),
}
CLUSTERED = ["GaussianMixture.fit", "ClusteredHybrid.fit"]  # fits with random starts


def drawn(made) -> list[torch.Tensor]:
    """List every ω of what a maker returned."""
    if isinstance(made, torch.Tensor):
        return [made]
    return [part.omega for part in made.modules() if isinstance(part, Projections)]


@pytest.mark.parametrize("name", MAKERS)
def test_a_seed_is_a_new_generator_with_it(name):
    make = MAKERS[name]
    expected = drawn(make(generator=Generator().manual_seed(5)))
    received = drawn(make(seed=5))
    assert len(received) == len(expected) > 0
    assert all(torch.equal(a, b) for a, b in zip(received, expected, strict=True))
    assert not torch.equal(drawn(make(seed=6))[0], expected[0])


@pytest.mark.parametrize("name", [name for name in MAKERS if name not in CLUSTERED])
def test_both_are_refused(name):
    with pytest.raises(ValueError, match=r"^generator and seed are both given; expected one of them$"):
        MAKERS[name](generator=Generator(), seed=0)


@pytest.mark.parametrize("name", CLUSTERED)
def test_with_both_a_seed_is_of_the_clusters_and_a_generator_of_projections(name):
    make = MAKERS[name]
    both = drawn(make(generator=Generator().manual_seed(5), seed=1))
    alone = drawn(make(generator=Generator().manual_seed(5)))
    assert all(torch.equal(a, b) for a, b in zip(both, alone, strict=True))


@pytest.mark.parametrize("name", MAKERS)
def test_other_sources_are_refused(name):
    with pytest.raises(TypeError, match=r"^generator is 0; expected a torch\.Generator .*seed=0\)$"):
        MAKERS[name](generator=0)
    with pytest.raises(TypeError, match=r"^seed is 0\.5; expected a whole number$"):
        MAKERS[name](seed=0.5)


@pytest.mark.parametrize("base", ["shifted", "shrunk", "moments"])
def test_a_seed_determines_a_whole_fit(base):
    first, second = (
        hrf.ClusteredHybrid.fit(POINTS, POINTS, base=base, seed=2, **CLUSTERS).state_dict() for _ in range(2)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_fit_by_seed_can_be_refitted():
    phi = hrf.ClusteredHybrid.fit(POINTS, POINTS, seed=2, **CLUSTERS)
    before = drawn(phi)[0].clone()
    assert torch.equal(drawn(phi.refit_(POINTS[:30], POINTS[10:]))[0], before)


def public_functions():
    """Yield every constructor and classmethod of a map or coefficient that users can import."""
    for module in (hrf, hrf.coefficients):
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, Linearised):
                yield kind.__init__
                yield from (m for name, m in inspect.getmembers(kind, inspect.ismethod) if name[0] != "_")
                yield kind.redraw_


def test_wherever_a_generator_is_taken_so_is_a_seed():
    functions = [f for f in public_functions() if "generator" in inspect.signature(f).parameters]
    assert len(functions) > 10
    for function in functions:
        assert "seed" in inspect.signature(function).parameters, function
