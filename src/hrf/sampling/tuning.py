"""Sizes and limits of the samplers, and where they come from."""

from __future__ import annotations

__all__ = [
    "BLOCK",
    "FAN",
    "HEADROOM",
    "HELD",
    "LEAF",
    "LOGITS",
    "QUERIES",
    "SMALLEST",
    "TOP",
    "UNIFORM_SHARE",
]

# The tree. One product of a query with all nodes of the top level replaces the first walks down.
TOP = 4096  # nodes of the top level, at most
FAN = 4  # children per node below the top

# Leaves of one class hold the features of all classes: draws are 4 to 8 times as fast as with leaves of 4
# (docs/speed.md, 10,000 to 1,000,000 classes), and memory grows with the number of features.
HELD = 1 << 28  # bytes that the features of all classes may take; beyond that, leaves are larger
LEAF = 4  # classes per leaf then

# Scratch memory.
BLOCK = 1 << 23  # features at a time: 32 MB in float32
LOGITS = 1 << 26  # logits of the exact sampler at a time: 256 MB in float32
QUERIES = 2048  # queries at a time

# Numbers.
HEADROOM = 20.0  # a new class may exceed the common log scale by this much before all nodes are scaled again
SMALLEST = 1e-20  # features of queries below this become 0; the largest is about 1
UNIFORM_SHARE = 0.1  # share of uniform draws, for maps whose estimates can be negative
