"""Snippets that run without anything of hrf imported: one process imports torch, and forks for each of them."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os, sys, torch
for code in sys.argv[1:]:
    if not (child := os.fork()):
        exec(code)
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, code
    print(end="\\0", flush=True)
"""


def printed(*snippets: str) -> list[str]:
    """Return what each snippet prints, which finds torch, sys and os imported."""
    command = [sys.executable, "-c", SCRIPT, *snippets]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\0")[:-1]
