"""A trained model, read from the checkpoint of its training."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from hrf_paper.resume import load_checkpoint
from hrf_paper.speech.configs import ModelConfig
from hrf_paper.speech.map_files import restore_maps
from hrf_paper.speech.transducer import ConformerTransducer

__all__ = ["TrainedModel", "below", "load_model"]


class TrainedModel(NamedTuple):
    """A model from a checkpoint.

    Attributes:
        model: the model, ready to recognise, with the feature maps it was trained with, or exact attention.
        front_end: where the features come from that it was trained with (`Speech`).
    """

    model: ConformerTransducer
    front_end: str


def load_model(path: Path) -> TrainedModel:
    """Read the model of a checkpoint."""
    tensors, header = load_checkpoint(path)
    sizes: dict[str, Any] = header["training"]["model"]
    model = ConformerTransducer(ModelConfig(**sizes))
    model.load_state_dict(below(tensors, "model"))
    restore_maps(model, tensors)
    return TrainedModel(model.eval(), header["front_end"])


def below(tensors: dict[str, Tensor], group: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a group, without it."""
    return {name.removeprefix(f"{group}."): t for name, t in tensors.items() if name.startswith(f"{group}.")}
