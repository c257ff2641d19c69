"""Summarised attention: groups of queries read tilted summaries of clusters of keys, and a few keys exactly.

Nothing is fitted and nothing is drawn: everything comes from the sequence at hand. Reading order:

    method.py      `hrf.SummarisedAttention`: sizes, tolerance; `SummaryReport`: the account it gives
    engine.py      from the inputs of `hrf.attention` to heads of similar length, and back; the compiled core
    plan.py        groups, clusters, and which keys each group computes exactly
    read.py        the output, given a plan; which clusters single queries open
    prediction.py  the error, measured on a few queries that are computed exactly

A plan is data (two trees and a list of pairs); any plan gives a valid output, so the compiled core may make plans of
its own, and is compared with read.py on the plan that it made.
"""
