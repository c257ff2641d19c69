"""Measure all parts that are not measured yet, in the order of their weight, and write ``kernel_methods.json``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import torch

from benchmarks import report
from benchmarks.kernel_methods.data import SETS
from benchmarks.kernel_methods.measure import (
    FAMILIES,
    SEARCHED_WIDTHS,
    best_setting,
    measured,
)
from benchmarks.kernel_methods.methods import (
    AUTO,
    BASELINES,
    CURVES,
    EXACT,
    MAPS,
    METHODS,
    TRIGONOMETRIC,
    Setting,
)
from hrf.report import folder, write

SEEDS = 5
WIDTHS, WIDE, MAP_WIDTH = (256, 512, 1024), (2048, 4096, 8192, 16384), 512


class Part(NamedTuple):
    """One fit; width 0 for exact methods; ``alone`` in a process of its own, to measure memory."""

    name: str
    method: str
    width: int
    seed: int
    alone: bool = False

    @property
    def key(self) -> str:
        """Name of the part in the file."""
        return "|".join(map(str, self[:4]))


def parts(sets: Sequence[str]) -> Iterator[Part]:
    """Yield all fits, the most important first."""
    for width in WIDTHS:
        yield from (Part(n, m, width, s) for s in range(SEEDS) for n in sets for m in CURVES)
    yield from (Part(n, m, WIDE[0], 0) for n in sets for m in CURVES)
    for name in ("bike", "letter", "elevators"):
        yield Part(name, EXACT[0], 0, 0, alone=True)
    yield Part("letter", EXACT[2], 0, 0, alone=True)
    for name, width in (("bike", 2048), ("letter", 2048), ("letter", 4096), ("kin40k", 4096)):
        yield Part(name, LANDMARKS, width, 0, alone=True)
    yield from (Part("kin40k", LEVERAGE, width, 0, alone=True) for width in (WIDE[2], 9216))
    yield Part("kin40k", EXACT[1], 0, 0, alone=True)
    yield Part("kin40k", EXACT[3], MAP_WIDTH, 0, alone=True)
    yield from (Part(n, m, WIDE[0], s) for s in (1, 2) for n in sets for m in CURVES)
    yield from (Part(n, m, MAP_WIDTH, s) for s in range(2) for n in sets for m in MAPS)
    yield from (Part(n, m, WIDE[1], 0) for n in sets for m in (TRIGONOMETRIC, AUTO))
    yield from (Part(n, m, MAP_WIDTH, s) for s in range(2, SEEDS) for n in sets for m in MAPS)
    yield from (Part(n, m, WIDE[0], s) for s in range(3, SEEDS) for n in sets for m in CURVES)
    yield from (Part(n, m, WIDE[1], s) for s in range(1, 3) for n in sets for m in (AUTO, TRIGONOMETRIC))
    yield Part("kin40k", TRIGONOMETRIC, WIDE[2], 0, alone=True)
    yield Part("kin40k", TRIGONOMETRIC, WIDE[3], 0, alone=True)


LANDMARKS, LEVERAGE = (
    f'hrf KernelRidge(feature_map="{name}")' for name in ("landmarks", "landmarks-leverage")
)


def setting_of(part: Part, searches: dict[str, Any]) -> Setting:
    """Return γ and penalty: of the family of the method, at the widest width searched that is not wider."""
    random = part.method in (TRIGONOMETRIC, BASELINES[0]) or MAPS.get(part.method, "landmarks") in _RANDOM
    width = max(w for w in SEARCHED_WIDTHS if w <= (part.width or SEARCHED_WIDTHS[-1]))
    found = searches[f"{part.name}|{'random' if random else 'landmarks'}|{width}"]
    return Setting(found["gamma"], found["alpha"], part.width, part.seed)


_RANDOM = ("trigonometric", "positive", "optimal-positive", "dense-exponential", "centred")


def run(sets: Sequence[str], path: Path, seconds: float) -> None:
    """Measure until the CPU seconds are spent, and write after every part."""
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    result = {"searches": {}, "parts": {}} | result | {"environment": report.environment()}
    spent = 0.0

    def keep(name: str, key: str, value: Any) -> None:
        result[name][key] = value
        print(f"{spent:.0f} s", key, value, flush=True)
        write(
            folder(path.parent) / path.name,
            (json.dumps(result, indent=0, ensure_ascii=False) + "\n").encode(),
        )

    for width in SEARCHED_WIDTHS:
        for key in (f"{name}|{family}|{width}" for name in sets for family in FAMILIES):
            if key not in result["searches"]:
                start = process_time()
                name, family, _ = key.split("|")
                found = best_setting(name, family, width)
                spent += process_time() - start
                keep("searches", key, found)
    for part in parts(sets):
        if part.key in result["parts"] or part.method not in METHODS or part.name not in sets:
            continue
        if spent > seconds:
            print("The time is spent; call again for the rest.")
            return
        setting, start = setting_of(part, result["searches"]), process_time()
        if part.alone:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                outcome = pool.submit(measured, part.method, setting, part.name).result()
            spent += outcome.seconds
        else:
            outcome = measured(part.method, setting, part.name)
            spent += process_time() - start
        numbers = [round(value, 5) if isinstance(value, float) else value for value in outcome]
        keep("parts", part.key, [*numbers[:2], numbers[2] if part.alone else None, numbers[3]])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 2 if data are missing."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernel_methods",
        description="Test error over fit time of kernel methods, on all rows of five sets.",
        epilog="Data are read from $HRF_DATA, by default ../shared/data. Parts that are in the file are kept.",
    )
    parser.add_argument("--sets", nargs="+", choices=SETS, default=[*SETS], help="default: all")
    parser.add_argument(
        "--seconds", type=float, default=2400, help="CPU seconds to spend (default: %(default)s)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("results"),
        help="folder for kernel_methods.json (default: %(default)s)",
    )
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    try:
        run(args.sets, args.out / "kernel_methods.json", args.seconds)
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
