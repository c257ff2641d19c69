"""Interrupted work resumes: one run per directory, finished parts of experiments, checkpoints of trainings."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim import Optimizer

from hrf.report import folder, write

# One run at a time per directory.

_NAME = ".lock"


@contextmanager
def only_run(place: Path) -> Iterator[None]:
    """Hold the lock of a directory while the block runs; a ``ValueError`` names the process that has it.

    The lock is on an open file, so that the system releases it when a process ends, however it ends: a file that is
    left behind locks nobody out. The file holds the number of the process. Windows has no such locks.
    """
    if sys.platform == "win32":
        yield
        return
    descriptor = _locked(place / _NAME)
    try:
        os.truncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        (place / _NAME).unlink(missing_ok=True)
        os.close(descriptor)


def _locked(path: Path) -> int:
    """Open and lock the file, again if another run removed it in between."""
    import fcntl

    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.read(descriptor, 20).decode(errors="replace").strip()
            os.close(descriptor)
            raise ValueError(
                f"process {owner or '(unknown)'} is running experiments in {path.parent}; wait for it, or choose "
                "another directory with --out"
            ) from error
        except OSError:
            return descriptor  # this file system has no locks
        with suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        os.close(descriptor)


# Finished parts of a run as files, so that an interrupted run resumes with the missing parts.


class FinishedParts(MutableMapping[str, Any]):
    """Results of parts by name, one file per part, in one directory per ``identity`` of a run."""

    def __init__(self, place: Path, identity: dict[str, Any]) -> None:
        text = json.dumps(identity, sort_keys=True)
        self.place = place / ".parts" / sha256(text.encode()).hexdigest()[:16]

    def _path(self, name: str) -> Path:
        return self.place / f"{sha256(name.encode()).hexdigest()[:16]}.json"

    def __getitem__(self, name: str) -> Any:
        path = self._path(name)
        if not path.exists():
            raise KeyError(name)
        return _content(path)["part"]

    def __setitem__(self, name: str, part: Any) -> None:
        folder(self.place)
        content = {"name": name, "part": part}
        write(self._path(name), json.dumps(content | {"sha256": _digest(content)}).encode())

    def __delitem__(self, name: str) -> None:
        self._path(name).unlink()

    def __iter__(self) -> Iterator[str]:
        for path in self.place.glob("*.json"):
            yield _content(path)["name"]

    def __len__(self) -> int:
        return len(list(self.place.glob("*.json")))

    def clear(self) -> None:
        """Remove the parts of this run, and the directory of all runs if no other run is in it."""
        shutil.rmtree(self.place, ignore_errors=True)
        if self.place.parent.is_dir() and not any(self.place.parent.iterdir()):
            self.place.parent.rmdir()


def _digest(content: dict[str, Any]) -> str:
    """Return the digest of a name and a part, the same before and after JSON."""
    return sha256(json.dumps(json.loads(json.dumps(content)), sort_keys=True).encode()).hexdigest()


def _content(path: Path) -> dict[str, Any]:
    """Read the file of a part; a ``ValueError`` names a damaged file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or set(content) != {"name", "part", "sha256"}:
            raise ValueError("no name, part and digest")
        if content.pop("sha256") != _digest(content):
            raise ValueError("the content was changed")
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is damaged or was edited: remove it, and the same command computes this part again"
        ) from error
    return content


# Checkpoints of trainings: tensors as safetensors, the rest as JSON in the header, written atomically.

_HEADER = "training"


def checkpoint_folder() -> Path:
    """Return the folder of checkpoints: ``$HRF_CHECKPOINTS``, or ``~/.cache/hrf/checkpoints``."""
    return Path(os.environ.get("HRF_CHECKPOINTS") or Path.home() / ".cache" / "hrf" / "checkpoints")


def checkpoint_path(kind: str, identity: Any) -> Path:
    """Return the path of the checkpoint of everything that a training depends on, which JSON can hold."""
    digest = sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    return checkpoint_folder() / f"{kind}-{digest}.safetensors"


def state_tensors(**owners: nn.Module | Optimizer) -> dict[str, Tensor]:
    """Return the states of modules and optimisers as tensors, each below the name of its owner."""
    found: dict[str, Tensor] = {}
    for owner, held in owners.items():
        if isinstance(held, nn.Module):
            found |= {f"{owner}.{name}": tensor for name, tensor in held.state_dict().items()}
        else:
            for place, moments in held.state_dict()["state"].items():
                found |= {f"{owner}.{place}.{name}": tensor for name, tensor in moments.items()}
    return found


def restore_state(tensors: dict[str, Tensor], **owners: nn.Module | Optimizer) -> None:
    """Give owners the states that `state_tensors` returned."""
    for owner, held in owners.items():
        own = {
            name.removeprefix(f"{owner}."): t for name, t in tensors.items() if name.startswith(f"{owner}.")
        }
        if isinstance(held, nn.Module):
            held.load_state_dict(own)
        else:
            moments: dict[int, dict[str, Tensor]] = {}
            for name, tensor in own.items():
                place, _, key = name.partition(".")
                moments.setdefault(int(place), {})[key] = tensor
            held.load_state_dict(held.state_dict() | {"state": moments})


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
