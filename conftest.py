"""Set the environment before torch and Numba are imported, and spare the garbage collector.

Numba keys its cache on the text of one file alone; here the cache folder depends on the text of all loops.
"""

from __future__ import annotations

import gc
import getpass
import hashlib
import os
import tempfile
from pathlib import Path

HRF = Path(__file__).parent / "src" / "hrf"
SOURCES = [*sorted((HRF / "_attention" / "loops").glob("*.py")), HRF / "tuning.py"]
TEXT = b"".join(
    path.read_bytes()
    for path in (*SOURCES, Path(__file__).parent / "tests" / "attention" / "loops" / "test_functions.py")
)
FOLDER = Path(tempfile.gettempdir()) / f"hrf-{getpass.getuser()}-{hashlib.sha256(TEXT).hexdigest()[:16]}"

os.environ.setdefault("NUMBA_CACHE_DIR", str(FOLDER))

# Some virtual machines announce AMX without granting it, and oneDNN then dies of an illegal instruction in bfloat16
# products. It reads this variable when torch is imported, so it has to be set before.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


def pytest_collection_finish() -> None:
    """Keep modules and collected tests, about 800,000 objects, out of the garbage collector's full passes."""
    gc.freeze()
