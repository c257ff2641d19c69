"""Run the property tests on new random cases until the time is up or one fails: ``make fuzz FUZZ_MINUTES=60``.

Every round starts a process of its own, so that a crash is a failure, too. A failing case is printed with the lines
that reproduce it, and is kept in ``.hypothesis``: the next run starts with it.
"""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["main"]

_ROOT = Path(__file__).parents[1]


def _round(seed: int) -> int:
    """Run all properties once, with new cases by seed; return the exit code."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "--no-header",
        "-p",
        "no:cacheprovider",
        "--tb=short",
    ]
    command += [f"--hypothesis-seed={seed}", "tests/properties"]
    environment = os.environ | {"HRF_PROFILE": "fuzz"}
    return subprocess.run(command, cwd=_ROOT, env=environment, check=False).returncode


def main() -> None:
    """Fuzz for some minutes; exit with the code of the round that failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="when to start no more rounds")
    minutes = parser.parse_args().minutes
    start, rounds = time.monotonic(), 0
    while (passed := (time.monotonic() - start) / 60) < minutes:
        rounds, seed = rounds + 1, secrets.randbelow(2**32)
        print(f"round {rounds}, {passed:.1f} of {minutes:g} minutes, seed {seed}", flush=True)
        if code := _round(seed):
            print(
                f"round {rounds} failed: HRF_PROFILE=fuzz pytest -x tests/properties --hypothesis-seed={seed}"
            )
            sys.exit(code)
    print(f"{rounds} rounds, {(time.monotonic() - start) / 60:.1f} minutes, nothing found")


if __name__ == "__main__":
    main()
