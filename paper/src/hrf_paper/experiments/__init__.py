"""Experiments, one file per figure or table of the paper.

A file holds, from top to bottom: values that the paper prints, where it prints any; settings and the measurement;
tables; claims (statements of the paper, judged by the results); the figure; and the `EXPERIMENT` that ties them all
together. Speech and softmax metrics keep settings and measurement in a second file, ``*_measure.py``.
``experiment.py`` has the contract of an experiment and the rule that judges all claims.
"""
