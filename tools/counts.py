"""Count files, lines, tests and words: ``python -m tools.counts``.

Lines are all lines of Python files; words are those of README.md and of the pages below ``docs``, without results.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import median

__all__ = ["counts"]

_ROOT = Path(__file__).parents[1]
_FOLDERS = ("src/hrf", "paper/src", "tests", "paper/tests", "benchmarks", "examples", "tools")


def counts() -> dict[str, int]:
    """Return all counts by name."""
    found = {}
    for folder in _FOLDERS:
        sizes = [
            len(path.read_text(encoding="utf-8").splitlines()) for path in (_ROOT / folder).rglob("*.py")
        ]
        found[f"{folder}, files"] = len(sizes)
        found[f"{folder}, lines"] = sum(sizes)
        found[f"{folder}, median lines"] = round(median(sizes))
    names = Counter(path.name for path in (_ROOT / "src" / "hrf").rglob("*.py"))
    found["src/hrf, file names that repeat"] = sum(
        n > 1 for name, n in names.items() if name != "__init__.py"
    )
    pages = [_ROOT / "README.md", *(_ROOT / "docs").glob("*.md")]
    found["words of README and docs"] = sum(len(path.read_text(encoding="utf-8").split()) for path in pages)
    return found


if __name__ == "__main__":
    for name, number in counts().items():
        print(f"{number:8,}  {name}")
