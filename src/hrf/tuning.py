"""Block sizes: how much is computed at a time, in one place.

They change speed and memory, and results only by rounding. They are read at call time, so a test may set them. Sizes of
the compiled core stand in its source. ``python -m benchmarks.tuning`` times all but a few (its ``NOT_TIMED`` says why)
at half, one and two times their value, and keeps the times in ``benchmarks/results/tuning.json``.
"""

from __future__ import annotations

# Features (features/): floats of output per block, written once from a scratch buffer that stays in the cache.
FEATURE_FLOATS = 1 << 21
HYBRID_FLOATS = 1 << 24

# Dense attention (_attention/dense): features per block, and the fewest rows that keep matrix products busy.
DENSE_FLOATS = 1 << 20
DENSE_LEAST_ROWS = 64
# Causal attention without the core: positions per chunk; chunks of clustered maps are longer, since each reads and
# writes a large state.
CAUSAL_CHUNK = 128
CLUSTERED_CHUNKS = 4
# Decoding one token by the core: floats of the states per thread at least.
STEP_FLOATS = 1 << 19

# Attention by rows (_attention/rows.py), tokens at a time: without gradients, forward with them, backward with a graph.
ROWS_INFERENCE = 1 << 17
ROWS_FORWARD = 1 << 14
ROWS_BACKWARD = 1 << 12

# Sign codes (_attention/angular): tokens at a time without and with a graph.
ANGULAR_TOKENS = 1 << 15
ANGULAR_GRAPH_TOKENS = 1 << 14
# Bits per group of sign bits, at least and at most (a group has a state per code), and tokens per code at least.
CODE_BITS = 2, 8
CODE_BLOCK = 64
COMPILED_CODE_TOKENS = 16
# Places per matrix product of blocks by code.
CODE_PLACES = 1 << 12

# Clusters (_attention/clusters): tokens at a time, floats per product, tokens per block at least and at most, and
# floats of features at a time with a map per pair of clusters.
CLUSTER_TOKENS = 1 << 14
CLUSTER_FLOATS = 1 << 18
PAIR_FLOATS = 1 << 22
CLUSTER_BLOCK = 16, 64

# Compiled core (_core): tasks per thread, and tokens per task at least.
TASKS_PER_THREAD = 4
TASK_TOKENS = 1 << 10

# Fitting (fitting/): floats of products of vectors and centres.
FITTING_FLOATS = 1 << 22

# Sampling (sampling/): classes at the top of the tree, children per node, classes per leaf where the features of all
# classes take more bytes than TREE_HELD_BYTES; features and queries at a time; logits of the exact sampler at a time.
TREE_TOP = 4096
TREE_FAN = 4
TREE_LEAF = 4
TREE_HELD_BYTES = 1 << 28
TREE_FLOATS = 1 << 23
TREE_QUERIES = 2048
EXACT_LOGITS = 1 << 26

# Summarised attention (_attention/summarised): weights of keys for groups at a time, and floats of exact pairs.
SUMMARY_FLOATS = 1 << 20
EXACT_FLOATS = 1 << 20
