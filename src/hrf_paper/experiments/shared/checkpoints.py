"""Trainings in files: safetensors for the tensors, JSON in the header for the rest, written whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

__all__ = ["checkpoint_folder", "load_checkpoint", "save_checkpoint"]

_HEADER = "training"


def checkpoint_folder() -> Path:
    """Where trainings are kept: ``$HRF_CHECKPOINTS``, or ``~/.cache/hrf/checkpoints``."""
    return Path(os.environ.get("HRF_CHECKPOINTS") or Path.home() / ".cache" / "hrf" / "checkpoints")


def save_checkpoint(path: Path, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    """Write tensors and what JSON can hold."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        # A copy of each: safetensors refuses tensors that share memory.
        copies = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
        save_file(copies, draft, metadata={_HEADER: json.dumps(header)})
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_checkpoint` wrote; a ``ValueError`` if the file is damaged or something else."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            return tensors, json.loads(file.metadata()[_HEADER])
    except (SafetensorError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a checkpoint ({error}); remove it to train anew") from error
