"""Experiments, one package per figure or table of the paper.

A package has ``measure.py`` (settings, and the work), ``tables.py``, ``claims.py`` (statements of the paper, judged by
the results), ``figure.py``, and ``__init__.py`` with the `EXPERIMENT` that holds them together; ``printed.py`` holds
values that the paper prints, where it prints any. ``ptb_metrics`` and ``wikitext2_metrics`` only configure
``softmax_metrics``. ``verdicts.py`` has the rule that judges all claims.
"""
