"""Ways to weigh values by name, built from the queries and keys of a trained model: rows of the paper's table and more.

A name's numbers are the paper's: clusters of queries and of keys, m and n of angular hybrids, features of all others. A
positive or trigonometric map with m features has m/2 rows ω, each of which gives two features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Generator, Tensor

import hrf
from hrf_paper.speech.attention import Method, Plain
from hrf_paper.speech.batches import batch_of
from hrf_paper.speech.transducer import ConformerTransducer
from hrf_paper.speech.utterances import Utterance

__all__ = ["METHODS", "install", "vectors"]

Builder = Callable[[Tensor, Tensor, Generator], Method]
_PROJECTIONS = 64  # rows ω of a clustered hybrid
_VECTORS = 4_000  # queries and keys per head that maps are fitted to
_UTTERANCES = 60  # that they are taken from


def _plain(name: Plain) -> Builder:
    return lambda queries, keys, generator: name


def _drawn(kind: Callable[..., hrf.FeatureMap], **sizes: int) -> Builder:
    """Return a builder of maps that are drawn and not fitted."""
    return lambda queries, keys, generator: kind(
        queries.shape[-1], heads=len(queries), generator=generator, **sizes
    )


def _fitted(kind: type[hrf.OptimalPositive] | type[hrf.DenseExponential], features: int) -> Builder:
    """Return a builder of maps with one feature per row ω."""
    return lambda queries, keys, generator: kind(
        queries.shape[-1], heads=len(queries), n_projections=features, generator=generator
    ).fit(queries, keys)


def _clustered(n_queries: int, n_keys: int, **options: Any) -> Builder:
    return lambda queries, keys, generator: hrf.ClusteredHybrid.fit(
        queries,
        keys,
        n_clusters=(n_queries, n_keys),
        n_projections=_PROJECTIONS,
        heads=len(queries),
        generator=generator,
        seed=0,
        **options,
    )


def _paper(n_queries: int, n_keys: int) -> Builder:
    """Return a builder of the paper's clusters: complex matrices from the centres."""
    return _clustered(n_queries, n_keys, base="paper", matrix="complex-diagonal")


METHODS: dict[str, Builder] = {
    "exact": _plain("exact"),
    "uniform": _plain("uniform"),
    "none": _plain("none"),
    "HRF-C (3,3)": _paper(3, 3),
    "HRF-C (2,3)": _paper(2, 3),
    "HRF-C (3,2)": _paper(3, 2),
    "HRF-C (2,2)": _paper(2, 2),
    "HRF-A (16,8)": _drawn(hrf.AngularHybrid, n_projections=16, n_coefficient_projections=8),
    "HRF-A (8,8)": _drawn(hrf.AngularHybrid, n_projections=8, n_coefficient_projections=8),
    "FAVOR+ 432": _drawn(hrf.Positive, n_projections=216),
    "FAVOR+ 256": _drawn(hrf.Positive, n_projections=128),
    "Trig 432": _drawn(hrf.Trigonometric, n_projections=216),
    "Trig 256": _drawn(hrf.Trigonometric, n_projections=128),
    "HRF-C real (3,3)": _clustered(3, 3, base="paper", matrix="real-diagonal"),
    "FAVOR++ 256": _fitted(hrf.OptimalPositive, 256),
    "FAVOR# 256": _fitted(hrf.DenseExponential, 256),
    "shifted (3,3)": _clustered(3, 3, base="shifted"),
    "separable (16,16)": _clustered(16, 16, base="separable"),
    "summarised": lambda queries, keys, generator: hrf.SummarisedAttention(report=hrf.SummaryReport()),
}


def install(model: ConformerTransducer, name: str, utterances: Sequence[Utterance], *, seed: int = 0) -> None:
    """Let all layers weigh values by a method; weights stay as they are.

    Args:
        model: a model, whose layers have any method so far.
        name: a key of `METHODS`.
        utterances: where queries and keys come from, with exact attention.
        seed: of the choice of utterances and of the maps.
    """
    if name not in METHODS:
        raise ValueError(f"there is no method {name!r}; expected one of {', '.join(METHODS)}")
    for layer, (queries, keys) in enumerate(vectors(model, utterances, seed=seed)):
        generator = Generator().manual_seed(1_000 * seed + layer)
        model.attentions[layer].use(METHODS[name](queries, keys, generator))


@torch.no_grad()
def vectors(
    model: ConformerTransducer, utterances: Sequence[Utterance], *, seed: int = 0
) -> list[tuple[Tensor, Tensor]]:
    """Return queries and keys ``(H, N, d)`` of each layer with exact attention, as maps see them, without padding."""
    generator = Generator().manual_seed(seed)
    chosen = torch.randperm(len(utterances), generator=generator)[:_UTTERANCES].tolist()
    batch = batch_of([utterances[i] for i in chosen])
    seen: list[tuple[Tensor, Tensor]] = []

    def keep(query: Tensor, key: Tensor, padding: Tensor) -> None:
        present = ~padding
        found = [x.transpose(1, 2)[present].transpose(0, 1) for x in (query, key)]  # (H, N, d)
        some = torch.randperm(found[0].shape[1], generator=generator)[:_VECTORS]
        seen.append(cast(tuple[Tensor, Tensor], tuple(x[:, some] for x in found)))

    training = model.training
    model.eval()
    for attention in model.attentions:
        attention.use("exact")
        attention.observer = keep
    model.encode(batch.features, batch.frames)
    for attention in model.attentions:
        attention.observer = None
    model.train(training)
    return seen
