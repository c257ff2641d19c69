"""Judge stored results again, without running anything: ``python -m hrf_paper.restate docs/results``.

Claims and verdicts of every ``NAME.json`` in a directory are recomputed from the results stored in it; results,
settings and versions stay as they are. ``--figures`` draws ``NAME.png`` from the stored results, too.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hrf.report import write
from hrf_paper.experiments.experiment import VERDICTS, Experiment, Results
from hrf_paper.experiments.registry import EXPERIMENTS
from hrf_paper.runner import drawing, judged, to_json

__all__ = ["main", "restate", "stored_results", "stored_settings"]


def restate(place: Path, *, figures: bool = False) -> list[Path]:
    """Recompute claims and verdicts of all experiments in a directory; return the files that were written."""
    written = []
    for name, experiment in EXPERIMENTS.items():
        path = place / f"{name}.json"
        if not path.exists():
            continue
        data = json.loads(path.read_text(encoding="utf-8"))
        settings, results = stored_settings(experiment, data), stored_results(data)
        plain, measured = judged(experiment.claims(settings, results))
        data |= {"title": experiment.title, "source": experiment.source, "claims": plain}
        data["timings"]["claims"] = measured
        write(path, to_json(data))
        written.append(path)
        if figures:
            write(path.with_suffix(".png"), drawing(experiment, settings, results))
            written.append(path.with_suffix(".png"))
    return written


def stored_settings(experiment: Experiment[Any], data: dict[str, Any]) -> Any:
    """Return the settings of a stored run; a ``ValueError`` if the experiment has no such settings."""
    sizes: tuple[dict[str, bool], ...] = ({}, {"quick": True}, {"full": True})
    for size in sizes:
        settings = replace(experiment.settings(**size), seed=data["settings"]["seed"])
        if json.loads(json.dumps(asdict(settings))) == data["settings"]:
            return settings
    raise ValueError(f"the stored settings of {experiment.name} are none of its settings; run it again")


def stored_results(data: dict[str, Any]) -> Results:
    """Return the results of all parts, with their timings."""
    timings = data["timings"]["parts"]
    return {name: part | {"timings": timings[name]} for name, part in data["results"].items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 2 if a file cannot be judged."""
    parser = argparse.ArgumentParser(
        prog="python -m hrf_paper.restate",
        description="Recompute claims and verdicts from stored results, without running the experiments.",
    )
    parser.add_argument("place", type=Path, help="directory with NAME.json of hrf reproduce")
    parser.add_argument("--figures", action="store_true", help="draw NAME.png again, too")
    arguments = parser.parse_args(argv)
    try:
        written = restate(arguments.place, figures=arguments.figures)
    except (ValueError, OSError) as error:
        print(f"hrf: {error}", file=sys.stderr)
        return 2
    for path in written:
        print(path)
    verdicts = [verdict for path in written if path.suffix == ".json" for verdict in _verdicts(path)]
    print(", ".join(f"{text}: {verdicts.count(verdict)}" for verdict, text in VERDICTS.items()))
    return 0


def _verdicts(path: Path) -> list[str]:
    data = json.loads(path.read_text(encoding="utf-8"))
    return [claim["verdict"] for claim in (*data["claims"], *data["timings"]["claims"])]


if __name__ == "__main__":
    sys.exit(main())
