"""A process that times the library's own cases on request, for `benchmarks.compare`: ``worker.py THREADS``.

Requests and answers are lines of JSON on stdin and stdout. ``{"setup": number}`` prepares a case and warms it up,
``{"calls": n}`` times n calls in a row. This file imports `hrf` from whatever source tree PYTHONPATH names, so it
uses the public names of the library only.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

import hrf
from benchmarks import attention, engines, maps, sampling, summarised
from benchmarks.cases import Case

__all__ = ["CASES"]

WARM_UP = 2
CASES: tuple[Case, ...] = tuple(
    case for module in (maps, attention, sampling, summarised, engines) for case in module.CASES if case.own
)


def seconds(function: Callable[[], Any], calls: int) -> float:
    """Return the mean time per call."""
    start = perf_counter()
    for _ in range(calls):
        function()
    return (perf_counter() - start) / calls


def answer(request: dict[str, int], current: list[Callable[[], Any]]) -> dict[str, Any]:
    """Carry out one request; ``current`` holds the function of the case that is set up."""
    try:
        if "setup" in request:
            current.clear()
            gc.collect()
            current.append(CASES[request["setup"]].setup())
            return {"seconds": [seconds(current[0], 1) for _ in range(WARM_UP)][-1]}
        return {"seconds": seconds(current[0], request["calls"])}
    except Exception as error:  # an older version may lack what a case needs
        return {"error": f"{type(error).__name__}: {error}".partition("\n")[0]}


def main() -> None:
    """Answer requests until stdin ends."""
    channel, sys.stdout = sys.stdout, sys.stderr  # nothing else may write between the answers
    torch.set_num_threads(int(sys.argv[1]))
    print(json.dumps({"hrf": hrf.__file__}), file=channel, flush=True)
    current: list[Callable[[], Any]] = []
    gc.disable()
    with torch.inference_mode():
        for line in sys.stdin:
            print(json.dumps(answer(json.loads(line), current)), file=channel, flush=True)


if __name__ == "__main__":
    main()
