"""The core under AddressSanitizer and UndefinedBehaviorSanitizer, with its assertions, on small inputs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SANITIZERS = (
    "-O1 -UNDEBUG -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-sanitize=alignment"
)
SCRIPT = """
import sys
from pathlib import Path
import pytest
from hrf import _core as core
core._file = lambda name: Path(sys.argv[1]) / "core.baseline.so"
core.instructions = lambda: "baseline"
sys.exit(pytest.main(["-q", "-x", "-s", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""
# All algorithms, most of them with one thread. The choice of an instruction set would leave the sanitizers.
TESTS = ["tests/core", "tests/properties/test_hostile_values.py", "tests/attention/summarised/test_state.py"]
CHOSEN = (
    "(those_of_the_plan and not 8.0) or (sums_by_the_core and alone) or box or take_turns or survives "
    "or pieces_are_the_whole or a_cropped_state_continues or from_tensors "
    "or any_width or (any_length and 17) or (states_and_their and dtype1) or rules_and_rows"
)


@pytest.mark.slow
def test_no_sanitizer_complains(tmp_path, monkeypatch):
    compiler = shutil.which("g++")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs g++ on Linux")
    import hatch_build

    monkeypatch.setattr(hatch_build, "INSTRUCTIONS", {"baseline": ""})
    assert hatch_build.compile_core(tmp_path, SANITIZERS)
    found = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout
        for name in ("libasan.so", "libubsan.so")
    ]
    environment = os.environ | {
        "LD_PRELOAD": " ".join(path.strip() for path in found),
        "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0",
    }
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), *TESTS, "-k", CHOSEN],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
