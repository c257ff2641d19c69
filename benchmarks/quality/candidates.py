"""What is compared: families of maps for the heads of a layer, each 256 features wide (a block, if clustered).

Clustered maps of residuals share their clusters, so that the base alone makes the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from torch import Generator

import hrf
from benchmarks.minilm import Attention
from hrf.fitting import fit_residuals, samples

__all__ = ["FAMILIES", "POSITIVE", "SEPARABLE", "SHIFTED", "Candidate", "Setting"]

WIDTH = 256  # features of a plain map, and of a block of a clustered one
DRAWS = 5  # of ω; the error is their mean
EXACT_SHARE = 0.1

POSITIVE = "positive (FAVOR+)"
SHIFTED, SEPARABLE = "clustered 16×16, shifted", "clustered 64×64, separable"


class Setting(NamedTuple):
    """One layer: what maps are fitted to, and what they are measured on.

    Attributes:
        fit: queries and keys ``(N, H, L, d)`` of the passages to fit to.
        test: queries, keys and values ``(H, L, d)``.
        generator: the source of ω.
    """

    fit: Attention
    test: Attention
    generator: Generator


class Candidate(NamedTuple):
    """A map for all heads of a layer, or for a slice of them, and how many draws of ω to average."""

    name: str
    map: hrf.FeatureMap
    draws: int = DRAWS
    heads: slice = slice(None)


Family = Callable[[Setting], Iterator[Candidate]]


def plain_maps(setting: Setting) -> Iterator[Candidate]:
    """Maps without clusters."""
    queries, keys, _ = setting.fit
    heads, dim = queries.shape[-3], queries.shape[-1]
    common: dict[str, Any] = {"heads": heads, "generator": setting.generator}
    half = WIDTH // 2  # ω and −ω, or cosine and sine
    yield Candidate("trigonometric", hrf.Trigonometric(dim, n_projections=half, **common))
    yield Candidate(POSITIVE, hrf.Positive(dim, n_projections=half, **common))
    yield Candidate("FAVOR++", hrf.OptimalPositive(dim, n_projections=WIDTH, **common).fit(queries, keys))
    yield Candidate("FAVOR#", hrf.DenseExponential(dim, n_projections=WIDTH, **common).fit(queries, keys))
    angular = hrf.AngularHybrid(dim, n_projections=WIDTH // 32, n_coefficient_projections=7, **common)
    yield Candidate("angular hybrid", angular)
    fit = partial(hrf.Exponential.fit, queries, keys, n_projections=half, **common)
    yield Candidate("centred", fit(matrix=None))
    yield Candidate("fitted (centred, full A)", fit(matrix="real-full"))


def residual_maps(setting: Setting, n: int) -> Iterator[Candidate]:
    """Clustered maps whose features are those of the residuals, without and with exact pairs.

    Those of ``shifted`` and ``shrunk`` are FAVOR#'s; a row more has positive features instead.
    """
    queries, keys, _ = setting.fit
    heads = queries.shape[-3]
    x, y = samples(queries, heads, "queries"), samples(keys, heads, "keys")
    fit = partial(
        hrf.ClusteredHybrid.fit,
        queries,
        keys,
        clusters=fit_residuals(x, y, (n, n), "real-full"),
        recenter=True,
        heads=heads,
        generator=setting.generator,
    )
    dense: dict[str, Any] = {"n_projections": WIDTH, "features": "dense"}
    half = WIDTH // 2
    yield Candidate(f"clustered {n}×{n}, shifted, positive", fit(base="shifted", n_projections=half))
    for ending, share in (("", 0.0), (" + exact pairs", EXACT_SHARE)):
        for base in ("shifted", "separable", "shrunk"):
            random = base != "separable"
            phi = fit(base=base, exact_share=share, **(dense if random else {}))
            yield Candidate(f"clustered {n}×{n}, {base}{ending}", phi, draws=DRAWS if random else 0)


def pair_maps(
    setting: Setting, n: int, kinds: Sequence[str], heads: Sequence[int] | None = None
) -> Iterator[Candidate]:
    """Clustered maps with an A for each pair of clusters. The centres decide nothing else, so they stay.

    Args:
        setting: the layer.
        n: clusters of queries, and of keys.
        kinds: of the diagonal A: ``real``, or ``complex``, whose estimates have signs.
        heads: the only ones to measure, one after the other, where all at once are too many.
    """
    queries, keys, _ = setting.fit
    n_heads = queries.shape[-3]
    for base in ("paper", "moments"):
        for kind in kinds:
            signs = 4 if kind == "complex" else 2  # ω and −ω, and each as cosine and sine
            for part in [slice(None)] if heads is None else [slice(head, head + 1) for head in heads]:
                phi = hrf.ClusteredHybrid.fit(
                    queries[..., part, :, :],
                    keys[..., part, :, :],
                    n_clusters=(n, n),
                    n_projections=WIDTH // signs,
                    base=base,
                    matrix=f"{kind}-diagonal",
                    heads=n_heads if heads is None else 1,
                    generator=setting.generator,
                )
                yield Candidate(f"clustered {n}×{n}, {base}, {kind} A", phi, draws=1, heads=part)


# 4,096 maps a head take seconds each, so two heads of a layer stand for all.
FAMILIES: tuple[Family, ...] = (
    plain_maps,
    partial(pair_maps, n=16, kinds=("complex", "real")),
    partial(residual_maps, n=16),
    partial(pair_maps, n=64, kinds=("real",), heads=(0, 6)),
    partial(residual_maps, n=64),
)
