"""Errors of maps on the attention of a trained Transformer: ``python -m benchmarks.quality``.

Queries, keys and values come from MiniLM-L6 (6 layers × 12 heads, d = 32) on a passage of WikiText-2's test text
(``minilm.py``). Fitted maps have seen passages of the training text only; clustered maps of residuals then move their
key centres to the means of the sequence at hand.

``candidates.py`` builds the maps, ``measure.py`` measures their errors, ``flops.py`` counts operations, ``advisor.py``
judges the picks of `hrf.advise`, ``costs.py`` times fitting and advice, ``table.py`` prints.
"""
