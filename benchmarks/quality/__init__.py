"""Maps against the attention of a trained Transformer: ``python -m benchmarks.quality``.

Queries, keys and values are those of MiniLM-L6 (6 layers × 12 heads, d = 32) on a passage of WikiText-2's
test text (``minilm.py``). Maps that are fitted have seen other text only, passages of the training part;
clustered maps of residuals then move their key centres to the means of the sequence at hand.

``candidates.py`` makes the maps, ``measure.py`` their errors, ``flops.py`` counts operations, ``advisor.py`` asks
whether `hrf.advise` picks well, ``costs.py`` times fitting and advice, ``table.py`` prints.
"""
