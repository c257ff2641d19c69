"""Compiled loops are kept on disk by the text of all of them: Numba looks at that of each file alone."""

from __future__ import annotations

import getpass
import hashlib
import os
import tempfile
from pathlib import Path

SOURCES = sorted((Path(__file__).parents[1] / "src" / "hrf" / "compiled").glob("*.py"))
TEXT = b"".join(path.read_bytes() for path in (*SOURCES, Path(__file__).with_name("test_compiled.py")))
FOLDER = Path(tempfile.gettempdir()) / f"hrf-{getpass.getuser()}-{hashlib.sha256(TEXT).hexdigest()[:16]}"

os.environ.setdefault("NUMBA_CACHE_DIR", str(FOLDER))
