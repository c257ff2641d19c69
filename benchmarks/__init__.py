"""Speed against peers and against the hardware: ``python -m benchmarks``.

A case is a name and a function to time (``cases.py``); a file a group lists its cases (``maps.py``);
one runner times them (``runner.py``) and one report prints and stores what it found (``report.py``).
"""
