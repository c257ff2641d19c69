"""Causal summarised attention: later queries read summaries of finished blocks of keys, and open them where needed.

Reading order:

    sizes.py    blocks, clusters, nodes
    cells.py    cells of past queries, which later queries are read from
    nodes.py    summaries of clusters of keys, and of nodes above them, per cell
    blocks.py   a finished block: cells, clusters, summaries
    descent.py  queries descend the trees of blocks, and meet some keys exactly
    levels.py   a whole sequence
    engine.py   from the inputs of `hrf.attention` to tokens, and back
    state.py    decoding
"""
