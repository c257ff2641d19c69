"""Finished parts of a run as files, so that an interrupted run resumes with the missing parts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, MutableMapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from hrf.report import folder, write

__all__ = ["FinishedParts"]


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
