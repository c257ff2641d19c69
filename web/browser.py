"""A browser without window, for tests and for ``python -m web.browser``, which times the frames of the explorer."""

from __future__ import annotations

import json
import os
import shutil
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.report import environment
from hrf.report import write

__all__ = ["EXPLORER", "drag", "missing", "opened"]

ROOT = Path(__file__).parents[1]
EXPLORER = (ROOT / "docs" / "explorer" / "index.html").as_uri()
OUT = ROOT / "benchmarks" / "results" / "explorer.json"
# Nothing but the page itself: no sandbox for root, no calls home.
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)


def missing() -> str | None:
    """Say what is missing for a browser, if anything is."""
    try:
        import playwright  # noqa: F401
    except ImportError:
        return "playwright is not installed: make browser"
    return None if _program() else "there is no Chromium: make browser"


def _program() -> str | None:
    found = (os.environ.get("HRF_CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, filter(None, found))), None)


@contextmanager
def opened() -> Iterator[Any]:
    """Start Chromium; pages come from its ``new_page``."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=_program(), args=FLAGS.split())
        yield browser
        browser.close()


def drag(page: Any, label: str) -> None:
    """Drag the slider of this label from one end to the other."""
    box = page.get_by_role("slider", name=label, exact=True).bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 2, y)
    page.mouse.down()
    for step in range(1, 41):
        page.mouse.move(box["x"] + 2 + step * (box["width"] - 4) / 40, y)
    page.mouse.up()


def frames() -> dict[str, Any]:
    """Time every frame while all sliders of the explorer are dragged; milliseconds."""
    views = {
        "angle": ["length r", "projections m", "projections n of the coefficient"],
        "row": ["projections m", "draw"],
        "cost": ["length r"],
        "head": ["tolerance τ"],
    }
    found = {}
    with opened() as browser:
        for width in (400, 1280):
            for view, labels in views.items():
                page = browser.new_page(viewport={"width": width, "height": 1400})
                page.goto(f"{EXPLORER}#view={view}&show=Trigonometric,Positive,AngularHybrid,GaussianHybrid")
                page.evaluate("frames_ms.length = 0")
                for label in labels:
                    drag(page, label)
                times = page.evaluate("frames_ms")
                found[f"{view}, {width} px"] = {
                    "frames": len(times),
                    "median": round(statistics.median(times), 1),
                    "largest": round(max(times), 1),
                }
                page.close()
    return found


def main() -> None:
    """Write and print the times."""
    found = {"environment": environment(), "milliseconds": frames()}
    write(OUT, (json.dumps(found, indent=1, ensure_ascii=False) + "\n").encode())
    for name, times in found["milliseconds"].items():
        print(
            f"{name:16}  {times['frames']:3} frames  median {times['median']:5} ms  largest {times['largest']:5} ms"
        )


if __name__ == "__main__":
    main()
