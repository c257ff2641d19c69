"""Which engine serves which map. Read this file first.

Reading order:

    function.py      `hrf.attention`: check the inputs, pick an engine here, run it
    operator.py      the same as one operator, for compiled graphs
    inputs.py        checked inputs in one form; masks, padding, packed sequences, dropout
    summarised/      not in the table: function.py sends `SummarisedAttention` there before it looks for an engine
    call.py          what a call fixes beside its tensors; a `Path` is prepare, forward and backward; paths by rows
    dense.py         any map with features, bidirectional; causal.py the same in chunks
    map_kernels.py   the same by kernels: compiled_maps.py by the core, on a CPU; triton/ on an accelerator
    angular.py       angular hybrids by sign code
    clusters.py      clusters, on the sums of cluster_sums.py
    denominator.py   small denominators, and outputs outside the box of the values
    carry.py         what a state holds, and steps of single tokens; state.py decodes with it
    reference.py     the quadratic twin that every engine is tested against

Block sizes are in ``hrf/tuning.py``; ``hrf/_core`` is compiled C++, each function with a twin in PyTorch's operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hrf._attention import angular, carry, clusters, dense
from hrf._attention.call import Call, Path, by_rows
from hrf._attention.causal import in_chunks
from hrf._attention.clusters import Clustered, prepare_clustered
from hrf._attention.dense import Chunks, Dense
from hrf._attention.inputs import check_map
from hrf.features.base import FeatureMap
from hrf.features.clustered import ClusteredHybrid

__all__ = ["ENGINES", "Engine", "engine_for"]


class Engine(NamedTuple):
    """One row of the table.

    Attributes:
        name: of the family.
        serves: whether a map is served; the first row that serves a map is taken.
        bidirectional: every query sees all keys.
        causal: query i sees the keys of a state, if there is one, and keys 0 … i. Decoding uses this path, too.
        chunks: features of the causal path, and of keys and queries that meet elsewhere (`hrf._attention.state`).
        backward: how gradients of the sums are computed; those of features by autograd, or by `FeatureMap.pullback`.
        compiled: which sums of the engine the compiled core serves; it puts outputs in their box for all engines.
        triton: which sums Triton's kernels serve on an accelerator.
    """

    name: str
    serves: Callable[[FeatureMap], bool]
    bidirectional: Path
    causal: Path
    chunks: Callable[[Call], Chunks]
    backward: str
    compiled: str
    triton: str


# Tokens sorted by cluster or code are blocks whose sizes depend on values: an accelerator would have to be waited for.
# There, maps with features attend by their features.


def _by_residual(phi: FeatureMap) -> bool:
    return isinstance(phi, ClusteredHybrid) and not phi.per_pair and (_on_cpu(phi) or not phi.factorised)


def _by_pair(phi: FeatureMap) -> bool:
    return isinstance(phi, ClusteredHybrid) and phi.per_pair and (_on_cpu(phi) or not phi.factorised)


def _by_code(phi: FeatureMap) -> bool:
    return angular.serves(phi) and _on_cpu(phi)


def _on_cpu(phi: FeatureMap) -> bool:
    return all(tensor.is_cpu for tensor in phi.buffers())


def _has_features(phi: FeatureMap) -> bool:
    return phi.factorised


# fmt: off
ENGINES = (
    # A ClusteredHybrid with base separable, shifted or shrunk. Moving centres stay where they were fitted if causal.
    Engine("clustered", _by_residual, by_rows(clusters.stream), in_chunks(prepare_clustered, Clustered),
           Clustered, backward="autograd, rows recomputed; causal by hand", compiled="exact pairs, forward pass",
           triton="none"),
    # A ClusteredHybrid with base paper or moments: causal attention uses its wide features.
    Engine("clustered by pair", _by_pair, by_rows(clusters.stream), in_chunks(prepare_clustered, Dense),
           Dense, backward="autograd, rows recomputed; causal by hand", compiled="exact pairs, forward pass",
           triton="none"),
    # A Hybrid of two isotropic bases with an angular coefficient, on a CPU: causal attention uses its features.
    Engine("angular", _by_code, by_rows(angular.stream), in_chunks(carry.prepare, Dense),
           Dense, backward="autograd, rows recomputed; causal by hand", compiled="bidirectional, forward pass",
           triton="none"),
    # Any other map with features. The core and Triton serve those whose features are functions of affine exponents
    # (`CompiledMaps`, `TritonMaps`).
    Engine("dense", _has_features, dense.PATH, in_chunks(carry.prepare, Dense),
           Dense, backward="by hand", compiled="both passes, for affine exponents; decoding, for real ones",
           triton="both passes and decoding, for affine exponents"),
)
# fmt: on


def engine_for(feature_map: FeatureMap) -> Engine:
    """Return the first engine that serves a map."""
    check_map(feature_map)
    clustered = isinstance(feature_map, ClusteredHybrid) and not feature_map.factorised
    if clustered and any(tensor.is_meta for tensor in feature_map.buffers()):
        raise NotImplementedError(
            "attention with exact pairs or moving centres of a ClusteredHybrid sorts tokens by cluster, which needs "
            "their values; expected tensors on another device than meta"
        )
    for engine in ENGINES:
        if engine.serves(feature_map):
            return engine
    raise NotImplementedError(
        f"attention needs features, and {type(feature_map).__name__} is made of maps without them: a ClusteredHybrid "
        "with exact pairs or moving centres; use the ClusteredHybrid itself, or fit it with exact_share=0 and "
        "recenter=False"
    )
