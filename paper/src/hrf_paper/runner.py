"""Run experiments one after another; the files of each appear when it is done, whole or not at all."""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from PIL import Image

from hrf.report import folder, png, progress, write
from hrf_paper.experiments.experiment import VERDICTS, Claim, Experiment, Results, run, versions
from hrf_paper.experiments.registry import EXPERIMENTS
from hrf_paper.report import experiment_page, index_page, show, show_reused
from hrf_paper.requirements import require, run_command
from hrf_paper.resume import FinishedParts, only_run

_PIXELS = 1760  # width of a figure


def reproduce(
    experiments: Sequence[Experiment[Any]], *, quick: bool, seed: int, out: Path, full: bool = False
) -> None:
    """Run the experiments, print their findings and write their files to ``out``.

    Args:
        experiments: the experiments to run.
        quick: whether to use their small settings.
        seed: the seed of everything random.
        out: a directory, made if it is missing. It keeps the finished parts of an interrupted run.
        full: whether to use the paper's settings where the default settings are smaller.
    """
    for experiment in experiments:
        require(f"the experiment {experiment.name}", experiment.needs)
    settings = [replace(e.settings(quick=quick, full=full), seed=seed) for e in experiments]
    # Data is loaded before the work begins, so that a missing file costs no time.
    parts = [e.parts(s) for e, s in zip(experiments, settings, strict=True)]
    with only_run(folder(out)):
        for experiment, chosen, work in zip(experiments, settings, parts, strict=True):
            identity = {"name": experiment.name, "settings": asdict(chosen), "versions": versions()}
            finished = FinishedParts(out, identity)
            with _told_what_is_kept(experiment.name, len(work), finished):
                if reused := [name for name in work if name in finished]:
                    show_reused(experiment.name, reused, len(work))
                with progress("parts") as advance:
                    results = run(work, advance, finished)
                _publish(experiment, chosen, results, out)
            finished.clear()


@contextmanager
def _told_what_is_kept(name: str, total: int, finished: FinishedParts) -> Iterator[None]:
    """Let Ctrl-C say which parts are kept, and how to resume."""
    try:
        yield
    except KeyboardInterrupt as stop:
        kept = f"{finished.place} keeps {len(finished)} of {total} parts of {name}"
        found = kept if len(finished) else f"no part of {name} was finished"
        raise KeyboardInterrupt(f"interrupted: {found}; run the same command again to resume") from stop


def _publish(experiment: Experiment[Any], settings: Any, results: Results, out: Path) -> None:
    """Write numbers, figure and pages, and print tables, claims and paths."""
    claims, tables = experiment.claims(settings, results), experiment.all_tables(settings, results)
    data = record(experiment, settings, results, claims)
    image = drawing(experiment, settings, results)
    files = {
        f"{experiment.name}.json": to_json(data),
        f"{experiment.name}.png": image,
        f"{experiment.name}.html": experiment_page(data, tables, image).encode(),
    }
    for name, content in files.items():
        write(out / name, content)
    write(out / "index.html", index_page(out).encode())
    show(experiment, claims, tables, [out / name for name in files])


def record(
    experiment: Experiment[Any], settings: Any, results: Results, claims: Sequence[Claim]
) -> dict[str, Any]:
    """Collect a run for JSON. Measured times stand under ``timings``; the rest depends on the seed alone."""
    seed = f" --seed {settings.seed}" if settings.seed else ""
    known = experiment.by_option(settings.seed)
    option = next((option for option, given in known.items() if given == settings), "")
    plain, measured = judged(claims)
    return {
        "experiment": experiment.name,
        "title": experiment.title,
        "source": experiment.source,
        "command": f"hrf reproduce {experiment.name}{option}{seed}",
        "settings": asdict(settings),
        "versions": versions(),
        "claims": plain,
        "results": {name: _without_timings(part) for name, part in results.items()},
        "timings": {
            "claims": measured,
            "parts": {name: part["timings"] for name, part in results.items()},
        },
    }


def judged(claims: Sequence[Claim]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the claims for JSON: claims that depend on the seed alone, and claims about measured times."""
    stored = [asdict(claim) for claim in claims]
    return [c for c in stored if not c["measured"]], [c for c in stored if c["measured"]]


def to_json(data: dict[str, Any]) -> bytes:
    """Encode a record as the content of its file."""
    return (json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def drawing(experiment: Experiment[Any], settings: Any, results: Results) -> bytes:
    """Draw the figure as a PNG with 256 colours, which is a third as large as with all."""
    buffer = io.BytesIO()
    figure = experiment.figure(settings, results)
    content = png(figure, dpi=round(_PIXELS / figure.get_figwidth()))
    image = Image.open(io.BytesIO(content)).convert("RGB")
    image.quantize(256, dither=Image.Dither.NONE).save(buffer, "png", optimize=True)
    return buffer.getvalue()


def _without_timings(part: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key != "timings"}


# Judge stored results again, without running anything: ``python -m hrf_paper.runner docs/results``.
#
# Claims and verdicts of every ``NAME.json`` in a directory are recomputed from the results stored in it; results,
# settings and versions stay as they are. ``--figures`` draws ``NAME.png`` from the stored results, too.


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
    for settings in experiment.by_option(data["settings"]["seed"]).values():
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
        prog="python -m hrf_paper.runner",
        description="Recompute claims and verdicts from stored results, without running the experiments.",
    )
    parser.add_argument("place", type=Path, help="directory with NAME.json of hrf reproduce")
    parser.add_argument("--figures", action="store_true", help="draw NAME.png again, too")
    parser.set_defaults(run=_restate)
    return run_command(parser, argv)


def _restate(arguments: argparse.Namespace) -> None:
    written = restate(arguments.place, figures=arguments.figures)
    for path in written:
        print(path)
    verdicts = [verdict for path in written if path.suffix == ".json" for verdict in _verdicts(path)]
    print(", ".join(f"{text}: {verdicts.count(verdict)}" for verdict, text in VERDICTS.items()))


def _verdicts(path: Path) -> list[str]:
    data = json.loads(path.read_text(encoding="utf-8"))
    return [claim["verdict"] for claim in (*data["claims"], *data["timings"]["claims"])]


if __name__ == "__main__":
    sys.exit(main())
