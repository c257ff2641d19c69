"""How long the first call takes: ``python -m benchmarks.start``. Every engine runs in a fresh process of its own.

Prints seconds to import hrf beyond PyTorch, and of the first and the second call of each engine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from statistics import median

from rich.console import Console

from hrf.report import table

__all__ = ["main"]

ENGINES = {
    "Positive": "hrf.Positive(64, n_projections=128)",
    "Trigonometric": "hrf.Trigonometric(64, n_projections=128)",
    "AngularHybrid": "hrf.AngularHybrid(64, n_projections=16, n_coefficient_projections=8)",
    "ClusteredHybrid": "hrf.ClusteredHybrid.fit(q[0], q[0], heads=8, n_clusters=(16, 16), base='separable')",
    "SummarisedAttention": "hrf.SummarisedAttention()",
}
SCRIPT = """
from time import perf_counter as now
import torch
start = now()
import hrf
imported = now() - start
q = torch.randn(1, 8, 1024, 64) / 8
method = {method}
times = []
for _ in range(2):
    start = now()
    hrf.attention(q, q, q, method, is_causal={causal})
    times.append(now() - start)
print(imported, *times)
"""
ROUNDS = 5


def measured(method: str, causal: bool) -> list[float]:
    """Return the medians of the seconds to import, of the first and of the second call."""
    script = SCRIPT.format(method=method, causal=causal)
    # Installers write bytecode; processes that may not would compile the library's sources each time.
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    options = {"capture_output": True, "text": True, "check": True, "env": own}
    runs = [subprocess.run([sys.executable, "-c", script], **options).stdout for _ in range(ROUNDS)]
    return [median(column) for column in zip(*(map(float, run.split()) for run in runs), strict=True)]


def main() -> None:
    """Print the table."""
    rows = []
    for name, method in ENGINES.items():
        for causal in (False, True):
            if causal and name == "ClusteredHybrid":
                continue  # quadratic
            imported, first, second = measured(method, causal)
            label = f"{name}, causal" if causal else name
            rows.append((label, f"{imported:.2f}", f"{first:.3f}", f"{second:.3f}"))
    columns = ("engine, 1,024 tokens", "import hrf, s", "first call, s", "second call, s")
    Console().print(table(columns, rows))


if __name__ == "__main__":
    main()
