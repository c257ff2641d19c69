"""Speed against peers and against the hardware: ``python -m benchmarks``.

A case is a name and a function to time (``cases.py``). One file per group lists its cases (``maps.py``,
``attention.py``, ``sampling.py``; ``engines.py`` for comparisons only); one runner times them (``runner.py``), and one
report prints and stores the times (``report.py``, ``growth.py``). ``compare.py`` times two source trees against each
other, ``quality/`` measures errors on a trained Transformer, and ``tables.py`` writes the tables of the docs.
"""
