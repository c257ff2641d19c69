"""Error of a map in each head of a layer: ‖Ô − O‖_F/‖O‖_F for the attention output O, averaged over draws of ω.

Ô is the output of `hrf.attention`: denominators Σ K̂ that are negative, or below a thousandth of the least they can
be, are clamped (`hrf.Denominator`). Where the share of such rows is large, the error is roughly inverse to that floor:
read it as "useless".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Generator, Tensor

import hrf
from benchmarks.minilm import Attention
from benchmarks.quality.candidates import FAMILIES, Candidate, Family, Setting
from benchmarks.quality.flops import attention_flops
from benchmarks.quality.workers import pool
from hrf.advice.errors import attention_outputs, relative_errors

__all__ = ["Outcome", "measure_layers"]


@dataclass(frozen=True)
class Outcome:
    """Errors and costs of one method.

    Attributes:
        draws: draws of ω that were averaged; 0 for methods without randomness.
        width: features per token; per block, for clustered maps.
        errors: error of every measured head, by layer.
        floored: share of rows with a denominator below the floor.
        flops: operations per token of the whole attention.
        exact: share of pairs of tokens that are computed exactly.
    """

    draws: int
    width: int = 0
    errors: dict[int, list[float]] = field(default_factory=dict)
    floored: float = 0.0
    flops: float = 0.0
    exact: float = 0.0

    def layer(self, layer: int) -> float:
        """Return the median over the heads of a layer."""
        return median(self.errors[layer])

    @property
    def overall(self) -> float:
        """The median over all heads."""
        return median(error for errors in self.errors.values() for error in errors)

    @property
    def n_heads(self) -> int:
        """Number of heads measured per layer."""
        return len(next(iter(self.errors.values())))


def merged(parts: Sequence[Outcome]) -> Outcome:
    """Merge the outcomes of one method over layers, and over heads that were measured one by one."""
    errors: dict[int, list[float]] = {}
    for part in parts:
        for layer, found in part.errors.items():
            errors.setdefault(layer, []).extend(found)
    means = (
        sum(getattr(part, name) for part in parts) / len(parts) for name in ("floored", "flops", "exact")
    )
    return Outcome(parts[0].draws, parts[0].width, errors, *means)


def output_errors(phi: hrf.FeatureMap, inputs: Attention, exact: Tensor) -> tuple[Tensor, Tensor]:
    """Return the error of the output per head, and the share of its rows with a denominator that is too small."""
    queries, keys, values = inputs
    outputs, small = attention_outputs(phi, queries, keys, values)
    return relative_errors(outputs, exact), small.double().mean(-1)


def attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Compute exact attention: softmax(QKᵀ)V."""
    return (queries @ keys.mT).softmax(-1) @ values


def block_width(phi: hrf.FeatureMap) -> int:
    """Return the number of features of a map, or of one block of a clustered map."""
    return phi.feature_dim // (phi.n_q * phi.n_k) if isinstance(phi, hrf.ClusteredHybrid) else phi.feature_dim


def measure(candidate: Candidate, setting: Setting, layer: int) -> Outcome:
    """Measure a map in the heads that it is for."""
    inputs = Attention(*(u[candidate.heads] for u in setting.test))
    queries, keys, values = inputs
    phi, exact = candidate.map, attention(*inputs)
    errors, floored = [], []
    for draw in range(max(1, candidate.draws)):
        if draw:
            phi.redraw_(setting.generator)
        error, share = output_errors(phi, inputs, exact)
        errors.append(error)
        floored.append(share)
    share_exact = phi.exact_share(queries, keys) if isinstance(phi, hrf.ClusteredHybrid) else 0.0
    return Outcome(
        candidate.draws,
        block_width(phi),
        {layer: torch.stack(errors).mean(0).tolist()},
        float(torch.stack(floored).mean()),
        attention_flops(phi, values.shape[-1], keys.shape[-2], share_exact),
        share_exact,
    )


def uniform(setting: Setting, layer: int) -> Outcome:
    """Measure attention that ignores queries and keys."""
    values, exact = setting.test.values, attention(*setting.test)
    errors = relative_errors(values.mean(-2, keepdim=True).expand_as(exact), exact)
    return Outcome(0, errors={layer: errors.tolist()}, flops=values.shape[-1])


def measure_layer(layer: int, here: Attention, families: Sequence[Family] = FAMILIES) -> dict[str, Outcome]:
    """Measure methods in a layer on the first passage; maps are fitted to all other passages."""
    test, fit = (Attention(*(u[part] for u in here)) for part in (0, slice(1, None)))
    setting = Setting(fit, test, Generator().manual_seed(layer))
    parts = {"uniform": [uniform(setting, layer)]}
    with torch.inference_mode():
        for candidate in (candidate for family in families for candidate in family(setting)):
            parts.setdefault(candidate.name, []).append(measure(candidate, setting, layer))
    return {name: merged(found) for name, found in parts.items()}


def measure_layers(
    captured: Sequence[Attention], layers: Sequence[int], families: Sequence[Family] = FAMILIES
) -> dict[str, Outcome]:
    """Measure methods in the given layers, counted from 1."""
    with pool() as workers:
        here = [captured[layer - 1] for layer in layers]
        found = list(workers.map(measure_layer, layers, here, [families] * len(layers)))
    return {name: merged([of_layer[name] for of_layer in found]) for name in found[0]}
