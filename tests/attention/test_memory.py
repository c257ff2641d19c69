"""Memory grows with the inputs, not with the features: peaks of one process that attends in turn."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read as Linux gives it"),
]

SCRIPT = """
import json, sys, torch, hrf
from hrf import tuning

def highest():  # of this program alone, unlike ru_maxrss, which begins with that of the one that started it
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

torch.set_num_threads(1)
# Spans of a long row, shrunk so that short rows have several.
for name in ("CLUSTER_TOKENS", "PAIR_FLOATS", "ANGULAR_TOKENS", "ANGULAR_GRAPH_TOKENS"):
    setattr(tuning, name, getattr(tuning, name) // 8)


def attend(phi, heads, length, is_causal, train):
    qkv = [t.clone().requires_grad_(train) for t in torch.randn(3, 1, heads, length, 64)]
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")
    before = highest()
    out = hrf.attention(*qkv, phi, is_causal=is_causal)
    if train:
        out.sum().backward()
    return highest() - before

found = {}
for name, (code, sizes, is_causal, train) in json.loads(sys.argv[1]).items():
    torch.manual_seed(0)
    phi = eval(code)
    for heads, _ in sizes:
        attend(phi, heads, 8, is_causal, train)  # what the first call loads
    found[name] = [attend(phi, heads, length, is_causal, train) for heads, length in sizes]
print(json.dumps(found))
"""

POSITIVE = "hrf.Positive(64, n_projections=128)"
# Not fitted: what that needs would hide what attention does.
CLUSTERED = "hrf.ClusteredHybrid(*torch.randn(2, 16, 64), {})"
SHIFTED = "base='shifted', feature_map=hrf.Positive(64, n_projections={})"
EXACT = "hrf.ClusteredHybrid(*torch.randn(2, 8, 64), base='separable', exact=torch.eye(8, dtype=torch.bool))"
DEFAULT = ", default=hrf.Positive(64, n_projections=16), served=torch.rand(16, 16) < 0.5"
PAPER = (
    "hrf.ClusteredHybrid(*torch.randn(2, 2, 64), base='paper', feature_map=hrf.Exponential("
    "64, n_projections=64, matrix=torch.full((4, 64), 1 + 0.1j), heads=4))"
)
LONG = {
    "angular": "hrf.AngularHybrid(64, n_projections=32, n_coefficient_projections=16)",
    "separable": "hrf.ClusteredHybrid(*torch.randn(2, 128, 64), base='separable')",
    "shifted": CLUSTERED.format(SHIFTED.format(64)),
    "recentred": CLUSTERED.format(SHIFTED.format(64) + ", recenter=True"),
    "default": CLUSTERED.format(SHIFTED.format(16) + DEFAULT),
    "paper": PAPER,
}
ROW = 16_384
SHORT, TWICE = 4_096, 8_192
# Name: the map, numbers of heads and lengths, causal, with a backward pass.
CASES = {
    "inference": (POSITIVE, [(2, 65_536)], False, False),
    "causal inference": (POSITIVE, [(2, 65_536)], True, False),
    "training": (POSITIVE, [(2, ROW)], False, True),
    "causal training": (POSITIVE, [(2, ROW)], True, True),
    "exact pairs": (EXACT, [(1, ROW)], True, True),
    **{
        f"heads, {name}": (LONG[name], [(2, 2048), (8, 2048)], False, True) for name in ("angular", "shifted")
    },
    **{f"long rows, {name}": (code, [(1, SHORT), (1, TWICE)], False, True) for name, code in LONG.items()},
    # Last, since the core keeps memory for the next call, which would hide some of what others take.
    "summaries": ("hrf.SummarisedAttention()", [(1, SHORT), (1, TWICE)], False, True),
    "causal summaries": ("hrf.SummarisedAttention()", [(1, SHORT), (1, TWICE)], True, True),
}


@pytest.fixture(scope="module")
def peaks() -> dict[str, list[int]]:
    """Bytes beyond the inputs, for each case and each of its sizes; what is freed is given back at once."""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 17)}
    command = [sys.executable, "-c", SCRIPT, json.dumps(CASES)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


@pytest.mark.parametrize("name", ["inference", "causal inference"])
def test_65536_tokens_of_a_head_fit_in_an_eighth_of_a_gigabyte(name, peaks):
    assert peaks[name][0] < 2 * (1 << 27)


@pytest.mark.parametrize("name", ["training", "causal training"])
def test_training_holds_no_features(name, peaks):
    # Output, its gradient and three gradients of inputs, a few numbers per row, and the blocks. Features of
    # queries and keys would add twice 256 floats per row, 67 MB.
    assert peaks[name][0] < 2 * ROW * (5 * 64 + 16) * 4 + (40 << 20)


@pytest.mark.parametrize("name", ["summaries", "causal summaries"])
def test_training_with_summaries_holds_no_matrix_of_pairs(name, peaks):
    # Lists of exact pairs and of opened clusters grow a little faster than the length; pairs would grow fourfold, and
    # take a quarter of a gigabyte.
    least, most = peaks[name]
    assert most < 2.5 * least
    assert most < TWICE**2 * 4 / 2


def test_training_holds_no_products_of_exact_pairs(peaks):
    # As above, and the sums of exact pairs, what they are made of, and all their gradients: a dozen more tensors.
    # The products, of about an eighth of the pairs, would add 134 MB.
    assert peaks["exact pairs"][0] < ROW * (17 * 65 + 64) * 4 + (32 << 20)


@pytest.mark.parametrize("name", ["angular", "shifted"])
def test_training_holds_the_graph_of_few_rows(name, peaks):
    least, most = peaks[f"heads, {name}"]
    # More heads add what they add above: output, gradients, a few numbers per row. Their graphs would add features,
    # codes or distances to centres, and states: another 600 floats per row or more, 29 MB.
    assert most - least < 6 * 2048 * (5 * 64 + 16) * 4 + (12 << 20)


@pytest.mark.parametrize("name", LONG)
def test_training_holds_no_graph_of_a_long_row(name, peaks):
    least, most = peaks[f"long rows, {name}"]
    # More tokens add output, gradients, and, as there is one row only, what is made of all of it: its sums, its output
    # once more, what the division makes of both, or gradients before they are added to those of all rows; with a
    # default map its sums and the total. Codes or clusters, and where a token is in its block, are a few numbers per
    # token. The graph would add weights, features and all tokens by code or cluster.
    tensors = 5 + (8 if name == "default" else 6)
    assert most - least < (TWICE - SHORT) * (tensors * 65 + 32) * 4
