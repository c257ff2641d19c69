"""Set the environment before torch is imported, and spare the garbage collector."""

from __future__ import annotations

import gc
import os

# Some virtual machines announce AMX without granting it, and oneDNN then dies of an illegal instruction in bfloat16
# products. It reads this variable when torch is imported, so it has to be set before.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# Triton's kernels are tested in its interpreter where there is no accelerator; Triton looks when it is imported.
if os.environ.get("HRF_TEST_DEVICE", "cpu") == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_finish() -> None:
    """Keep modules and collected tests, about 800,000 objects, out of the garbage collector's full passes."""
    gc.freeze()
