"""Experiments, one package per figure or table of the paper.

Each package has the same files: ``measure.py`` (settings, and the work), ``printed.py`` (values printed in the paper),
``tables.py``, ``claims.py`` (statements of the paper, judged by the results), ``figure.py``, and ``__init__.py`` with
the `EXPERIMENT` that holds them together. ``verdicts.py`` has the rule that judges all claims.
"""
