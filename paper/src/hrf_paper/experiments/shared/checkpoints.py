"""Checkpoints of trainings: tensors as safetensors, the rest as JSON in the header, written atomically."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from hrf.report import folder, write

__all__ = ["checkpoint_folder", "load_checkpoint", "save_checkpoint"]

_HEADER = "training"


def checkpoint_folder() -> Path:
    """Return the folder of checkpoints: ``$HRF_CHECKPOINTS``, or ``~/.cache/hrf/checkpoints``."""
    return Path(os.environ.get("HRF_CHECKPOINTS") or Path.home() / ".cache" / "hrf" / "checkpoints")


def save_checkpoint(path: Path, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    """Write tensors, and a header that JSON can hold."""
    folder(path.parent)
    # A copy of each: safetensors refuses tensors that share memory.
    copies = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    write(path, save(copies, metadata={_HEADER: json.dumps(header)}))


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the output of `save_checkpoint`; a ``ValueError`` if the file is damaged or not a checkpoint."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            return tensors, json.loads(file.metadata()[_HEADER])
    except (SafetensorError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a checkpoint ({error}); remove it to train anew") from error
