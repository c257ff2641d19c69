"""Run experiments one after another; files of each appear when it is done, whole or not at all."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from PIL import Image

from hrf.report import folder, png, progress, write
from hrf_paper.experiments.experiment import Claim, Experiment, Results, run, versions
from hrf_paper.page import experiment_page, index_page
from hrf_paper.resume import Kept
from hrf_paper.terminal import show

__all__ = ["record", "reproduce"]


def reproduce(
    experiments: Sequence[Experiment[Any]], *, quick: bool, seed: int, out: Path, full: bool = False
) -> None:
    """Run the experiments, print what they say and write their files to ``out``.

    Args:
        experiments: which.
        quick: with their small settings.
        seed: of everything random.
        out: a directory, made if it is missing. Parts of a run that is interrupted are kept in it.
        full: with the paper's settings, where the ones for a CPU are smaller.
    """
    settings = [replace(e.settings(quick=quick, full=full), seed=seed) for e in experiments]
    # Data that are missing are missed before any work is done.
    parts = [e.parts(s) for e, s in zip(experiments, settings, strict=True)]
    folder(out)
    for experiment, chosen, work in zip(experiments, settings, parts, strict=True):
        kept = Kept(out, {"name": experiment.name, "settings": asdict(chosen), "versions": versions()})
        with progress("parts") as advance:
            results = run(work, advance, kept)
        claims, tables = experiment.claims(chosen, results), experiment.tables(chosen, results)
        data = record(experiment, chosen, results, claims)
        drawing = _small(png(experiment.figure(chosen, results), dpi=120))
        text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        files = {
            f"{experiment.name}.json": text.encode(),
            f"{experiment.name}.png": drawing,
            f"{experiment.name}.html": experiment_page(data, tables, drawing).encode(),
        }
        for name, content in files.items():
            write(out / name, content)
        write(out / "index.html", index_page(out).encode())
        kept.clear()
        show(experiment, claims, tables, [out / name for name in files])


def record(
    experiment: Experiment[Any], settings: Any, results: Results, claims: Sequence[Claim]
) -> dict[str, Any]:
    """All of a run for JSON. What a clock measured stands under ``timings``; the rest is of the seed alone."""
    sizes = {"": {}, " --quick": {"quick": True}, " --full": {"full": True}}
    size = next(
        o for o, s in sizes.items() if replace(experiment.settings(**s), seed=settings.seed) == settings
    )
    seed = f" --seed {settings.seed}" if settings.seed else ""
    stored = [asdict(claim) for claim in claims]
    return {
        "experiment": experiment.name,
        "title": experiment.title,
        "source": experiment.source,
        "command": f"hrf reproduce {experiment.name}{size}{seed}",
        "settings": asdict(settings),
        "versions": versions(),
        "claims": [claim for claim in stored if not claim["measured"]],
        "results": {name: _without_timings(part) for name, part in results.items()},
        "timings": {
            "claims": [claim for claim in stored if claim["measured"]],
            "parts": {name: part["timings"] for name, part in results.items()},
        },
    }


def _without_timings(part: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key != "timings"}


def _small(drawing: bytes) -> bytes:
    """A PNG with 256 colours, a third as large."""
    buffer = io.BytesIO()
    image = Image.open(io.BytesIO(drawing)).convert("RGB")
    image.quantize(256, dither=Image.Dither.NONE).save(buffer, "png", optimize=True)
    return buffer.getvalue()
