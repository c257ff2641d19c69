"""Feature maps of a model inside its checkpoint: the bytes of one file per layer, as a tensor."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

import hrf
from hrf_paper.speech.transducer import ConformerTransducer

__all__ = ["restore_maps", "stored_maps"]


def stored_maps(model: ConformerTransducer) -> dict[str, Tensor]:
    """Return the feature map of each layer as bytes, by the name of the layer."""
    found = {}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "map.safetensors"
        for layer, attention in enumerate(model.attentions):
            if isinstance(attention.method, hrf.FeatureMap):
                attention.method.save(path)
                found[_name(layer)] = torch.from_numpy(np.frombuffer(path.read_bytes(), np.uint8).copy())
    return found


def restore_maps(model: ConformerTransducer, tensors: dict[str, Tensor]) -> bool:
    """Give each layer the map that `stored_maps` returned; return whether there are any."""
    if _name(0) not in tensors:
        return False
    with TemporaryDirectory() as folder:
        path = Path(folder) / "map.safetensors"
        for layer, attention in enumerate(model.attentions):
            path.write_bytes(tensors[_name(layer)].numpy().tobytes())
            attention.use(hrf.load(path))
    return True


def _name(layer: int) -> str:
    return f"map.{layer}"
