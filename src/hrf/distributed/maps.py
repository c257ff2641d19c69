"""Feature maps on many ranks: their fingerprints, which have to be equal, and redraws that keep them so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Generator, Tensor

from hrf.checks import generator_of
from hrf.distributed.agreement import digest
from hrf.distributed.ranks import Group, Ranks
from hrf.features.base import FeatureMap

__all__ = ["fingerprint", "raw_bytes", "redraw_"]

Map = TypeVar("Map", bound=FeatureMap)

# Fingerprints of maps whose tensors have not changed since.
_KNOWN: WeakKeyDictionary[FeatureMap, tuple[tuple[object, ...], int]] = WeakKeyDictionary()


def redraw_(
    feature_map: Map, group: Group = None, *, generator: Generator | None = None, seed: int | None = None
) -> Map:
    """Draw every ω anew, in place, the same on every rank: all ranks of the group call this.

    Args:
        feature_map: equal on all ranks, as it is afterwards.
        group: a process group, a `DeviceMesh` with one axis, or ``None`` for the default group.
        generator: on the first rank, the source of the seed that all ranks use; PyTorch's global generator by default.
        seed: seed of a new generator, in place of ``generator``.
    """
    ranks, generator = Ranks(group), generator_of(generator, seed)
    own = torch.randint(2**62, (1,), generator=generator, dtype=torch.long).to(ranks.device)
    return feature_map.redraw_(seed=int(ranks.broadcast_(own, "the seed of a redraw")))


def fingerprint(feature_map: FeatureMap) -> int:
    """Hash the classes, settings and tensors of a map; changes in place are noticed."""
    state = tuple(
        (name, tensor.data_ptr(), tensor._version)
        for name, tensor in feature_map.state_dict(keep_vars=True).items()
    )
    known = _KNOWN.get(feature_map)
    if known is None or known[0] != state:
        known = _KNOWN[feature_map] = state, digest(*_bytes(feature_map))
    return known[1]


def _bytes(feature_map: FeatureMap) -> Iterator[bytes]:
    for name, module in feature_map.named_modules():
        settings = {
            key: value
            for key, value in vars(module).items()
            if isinstance(value, int | float | str) and not key.startswith("_") and key != "training"
        }
        yield f"{name} {type(module).__name__} {settings}".encode()
    for name, tensor in feature_map.state_dict().items():
        yield f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode()
        yield raw_bytes(tensor)


def raw_bytes(tensor: Tensor) -> bytes:
    """Return the content of a tensor."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
