"""Arguments of all maps: seeds and generators, mistakes of newcomers, and counts of operations."""

from __future__ import annotations

import inspect
from functools import partial

import pytest
import torch
from torch import Generator
from torch.utils.flop_counter import FlopCounterMode

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

FITS_OF_CLUSTERS = ["GaussianMixture.fit", "ClusteredHybrid.fit"]  # fits with random starts


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


@pytest.mark.parametrize("name", FITS_OF_CLUSTERS)
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
def test_a_seed_determines_a_whole_fit_and_refits_keep_the_draw(base):
    first, second = (hrf.ClusteredHybrid.fit(POINTS, POINTS, base=base, seed=2, **CLUSTERS) for _ in range(2))
    assert all(torch.equal(first.state_dict()[name], t) for name, t in second.state_dict().items())
    assert torch.equal(drawn(first.refit_(POINTS[:30], POINTS[10:]))[0], drawn(second)[0])


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


# Mistakes get one sentence each.


def test_clusters_are_counted_on_both_sides():
    with pytest.raises(TypeError, match="n_clusters is 2; expected clusters of queries and of keys"):
        hrf.ClusteredHybrid.fit(torch.ones(9, 4), torch.ones(9, 4), n_clusters=2, n_projections=4)


CLASSES = {
    kind
    for module in (hrf, hrf.coefficients, hrf.nn, hrf.sampling, hrf.projections)
    for kind in (getattr(module, name) for name in module.__all__)
    if isinstance(kind, type) and not issubclass(kind, Warning)
}


def test_errors_about_arguments_name_the_class_that_was_called():
    for kind in CLASSES:
        with pytest.raises(TypeError, match="unheard_of") as caught:
            kind(unheard_of=1)
        assert str(caught.value).startswith(f"{kind.__name__}.__")


def test_a_missing_form_of_the_error_names_the_map():
    x = torch.zeros(1, 4)
    for kind in (hrf.Positive, hrf.Trigonometric, hrf.OptimalPositive, hrf.DenseExponential):
        phi = kind(4, n_projections=4, projection="sobol")
        with pytest.raises(
            NotImplementedError, match=f"^no closed form .* the MSE of {kind.__name__} with 'sobol'"
        ):
            phi.mse(x, x)


# Counts of operations.


DIM, M, N = 6, 5, 3

FULL = torch.eye(DIM) + 0.1

CENTERS = torch.randn(4, DIM, generator=torch.Generator().manual_seed(0))


def angular(**options):
    return hrf.AngularHybrid(DIM, n_projections=M, n_coefficient_projections=N, **options)


COUNTED = {
    "positive": lambda: hrf.Positive(DIM, n_projections=M),
    "trigonometric": lambda: hrf.Trigonometric(DIM, n_projections=M),
    "diagonal": lambda: hrf.Exponential(DIM, n_projections=M, matrix=torch.arange(1.0, 7)),
    "full": lambda: hrf.Exponential(DIM, n_projections=M, matrix=FULL),
    "complex": lambda: hrf.Exponential(DIM, n_projections=M, matrix=FULL * (1 + 1j)),
    "shifted": lambda: hrf.Exponential(DIM, n_projections=M, query_shift=torch.ones(DIM)),
    "FAVOR++": lambda: hrf.OptimalPositive(DIM, n_projections=M),
    "FAVOR#": lambda: hrf.DenseExponential(DIM, n_projections=M),
    "gaussian kernel": lambda: hrf.GaussianKernel(hrf.Positive(DIM, n_projections=M)),
    "angular": angular,
    "angular apart": lambda: angular(share_projections=False),
    "gaussian hybrid": lambda: hrf.GaussianHybrid(
        DIM, n_projections=M, n_coefficient_projections=N, sigma=1.0, radius=1.0
    ),
    "sign bits": lambda: hrf.coefficients.Angular(DIM, n_projections=N),
    "indicator": lambda: hrf.coefficients.Indicator(CENTERS, CENTERS, pair=(0, 1)),
}


def counted(phi, length: int) -> int:
    with FlopCounterMode(display=False) as counter:
        phi.scaled_queries(torch.ones(length, DIM))
    return counter.get_total_flops()


@pytest.mark.parametrize("name", COUNTED)
def test_products_are_those_that_pytorch_counts(name):
    phi = COUNTED[name]()
    # Two lengths, so that work that does not depend on the vectors drops out.
    assert phi._flops().products == counted(phi, 3) - counted(phi, 2) > 0


@pytest.mark.parametrize("base", ["separable", "shifted"])
def test_products_of_a_clustered_map(base):
    x, y = torch.randn(2, 60, DIM, generator=torch.Generator().manual_seed(0)) / 2
    phi = hrf.ClusteredHybrid.fit(x, y, n_clusters=(4, 4), n_projections=M, base=base)
    assert phi._flops().products == counted(phi, 3) - counted(phi, 2)


def test_the_papers_formulas():
    d = DIM
    assert hrf.Positive(d, n_projections=M).flops() == 2 * M * (d + 2)
    assert angular().flops() == 2 * d * (M + N) + 8 * M + N + 4 * M * N
    # For each feature d products and d − 1 sums for ωᵀBu, a sum for ωᵀ𝐀ω, an exponential, and its scale.
    for kind in (hrf.OptimalPositive, hrf.DenseExponential):
        assert kind(d, n_projections=M).flops() == M * (d + (d - 1) + 1 + 1 + 1)
