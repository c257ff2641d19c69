"""Families of maps for the heads of a layer, each 256 features wide (per block, if clustered).

Clustered maps of residuals share their clusters, so that they differ in the base alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from torch import Generator

import hrf
from benchmarks.minilm import Attention
from hrf import catalogue
from hrf.fitting import fit_residuals, samples

__all__ = ["FAMILIES", "POSITIVE", "SEPARABLE", "SHIFTED", "Candidate", "Family", "Setting", "plain_maps"]

WIDTH = 256  # features of a plain map, and of one block of a clustered map
DRAWS = 5  # of ω; the error is their mean
EXACT_SHARE = 0.1

POSITIVE = "positive (FAVOR+)"
SHIFTED, SEPARABLE = "clustered 16×16, shifted", "clustered 64×64, separable"


class Setting(NamedTuple):
    """Data of one layer, to fit to and to measure on.

    Attributes:
        fit: queries and keys ``(N, H, L, d)`` of the passages to fit to.
        test: queries, keys and values ``(H, L, d)`` to measure on.
        generator: the source of ω.
    """

    fit: Attention
    test: Attention
    generator: Generator


class Candidate(NamedTuple):
    """A map for all heads of a layer, or for a slice of the heads, and the number of draws of ω to average."""

    name: str
    map: hrf.FeatureMap
    draws: int = DRAWS
    heads: slice = slice(None)


Family = Callable[[Setting], Iterator[Candidate]]


def plain_maps(setting: Setting) -> Iterator[Candidate]:
    """Yield maps without clusters."""
    queries, keys, _ = setting.fit
    heads, dim = queries.shape[-3], queries.shape[-1]
    common: dict[str, Any] = {"heads": heads, "generator": setting.generator}
    half = WIDTH // 2  # ω and −ω, or cosine and sine
    named = {
        "trigonometric": f"Trig {half}",
        POSITIVE: f"FAVOR+ {half}",
        "FAVOR++": f"FAVOR++ {WIDTH}",
        "FAVOR#": f"FAVOR# {WIDTH}",
        "angular hybrid": f"HRF-A ({WIDTH // 32}, 7)",
    }
    for name, sized in named.items():
        yield Candidate(name, catalogue.build(sized, dim, queries=queries, keys=keys, **common))
    fit = partial(hrf.Exponential.fit, queries, keys, n_projections=half, **common)
    yield Candidate("centred", fit(matrix=None))
    yield Candidate("fitted (centred, full A)", fit(matrix="real-full"))


def residual_maps(setting: Setting, n: int) -> Iterator[Candidate]:
    """Yield clustered maps with features of the residuals, without and with exact pairs.

    ``shifted`` and ``shrunk`` use the features of FAVOR#; one more row has positive features instead.
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
    """Yield clustered maps with one matrix A per pair of clusters; their key centres do not move.

    Args:
        setting: the layer.
        n: clusters of queries, and of keys.
        kinds: kinds of the diagonal A: ``real``, or ``complex``, whose estimates have signs.
        heads: heads to measure, one by one, where all at once are too many.
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


# 4,096 maps per head take seconds each, so two heads per layer stand for all.
FAMILIES: tuple[Family, ...] = (
    plain_maps,
    partial(pair_maps, n=16, kinds=("complex", "real")),
    partial(residual_maps, n=16),
    partial(pair_maps, n=64, kinds=("real",), heads=(0, 6)),
    partial(residual_maps, n=64),
)
