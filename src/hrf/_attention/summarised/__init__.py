"""Summarised attention: groups of queries read tilted summaries of clusters of keys, and a few keys exactly.

Nothing is fitted and nothing is drawn: everything comes from the sequence at hand. Reading order:

    method.py      `hrf.SummarisedAttention`: sizes, tolerance; report.py: the account it gives
    engine.py      from the inputs of `hrf.attention` to heads of similar length, and back
    heads.py       the tensors of all heads: scaled queries, keys and values, with padding
    tree.py        balanced trees: which queries form a group, which keys a cluster
    statistics.py  means, spreads of groups, distances in clusters
    plan.py        which keys each group meets exactly
    read.py        the output, given a plan: a differentiable function of queries, keys and values
    exact_pairs.py sums over exact pairs, in blocks of groups with similar numbers of them
    prediction.py  error by the log-normal model, and a tolerance for a target error

A plan is data (two trees and a list of pairs); any plan gives a valid output, so a compiled loop may make plans of its
own, and is compared with read.py on the plan that it made.
"""
