"""Memory grows with the inputs, not with the features."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the peak of a process is read as Linux gives it"
)

SCRIPT = """
import torch, hrf
from hrf import tuning

def highest():  # of this program alone, unlike ru_maxrss, which begins with that of the one that started it
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

torch.set_num_threads(1)
for name in ("CLUSTER_TOKENS", "PAIR_FLOATS", "ANGULAR_TOKENS", "ANGULAR_GRAPH_TOKENS"):  # what is mapped at a time
    setattr(tuning, name, getattr(tuning, name) // {shrink})
is_causal, train = {is_causal}, {train}
phi = {phi}


def attend(heads, length):
    qkv = [t.clone().requires_grad_(train) for t in torch.randn(3, 1, heads, length, 64)]
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")
    before = highest()
    out = hrf.attention(*qkv, phi, is_causal=is_causal)
    if train:
        out.sum().backward()
    return highest() - before

for heads, _ in {sizes}:
    attend(heads, 8)  # what the first call loads
for heads, length in {sizes}:
    print(attend(heads, length))
"""


POSITIVE = "hrf.Positive(64, n_projections=128)"
PARTLY_EXACT = (
    "hrf.ClusteredHybrid(*torch.randn(2, 8, 64), base='separable', exact=torch.eye(8, dtype=torch.bool))"
)
RESIDUALS = "base='shifted', feature_map=hrf.Positive(64, n_projections={})"
# Not fitted: what that needs would hide what attention does.
CLUSTERED = "hrf.ClusteredHybrid(*torch.randn(2, 16, 64), {})"
STRUCTURED = {
    "angular": "hrf.AngularHybrid(64, n_projections=16, n_coefficient_projections=8)",
    "separable": CLUSTERED.format("base='separable'"),
    "shifted": CLUSTERED.format(RESIDUALS.format(16)),
}
# And how many tensors like the inputs there may be beside output and gradients, as below.
LONG = {
    "angular": ("hrf.AngularHybrid(64, n_projections=32, n_coefficient_projections=16)", 6),
    "separable": ("hrf.ClusteredHybrid(*torch.randn(2, 128, 64), base='separable')", 6),
    "shifted": (CLUSTERED.format(RESIDUALS.format(64)), 6),
    "recentred": (CLUSTERED.format(RESIDUALS.format(64) + ", recenter=True"), 6),
    "default": (
        CLUSTERED.format(
            RESIDUALS.format(16)
            + ", default=hrf.Positive(64, n_projections=16), served=torch.rand(16, 16) < 0.5"
        ),
        8,
    ),
    "paper": (
        "hrf.ClusteredHybrid(*torch.randn(2, 2, 64), base='paper', feature_map=hrf.Exponential("
        "64, n_projections=64, matrix=torch.full((4, 64), 1 + 0.1j), heads=4))",
        6,
    ),
}


def peaks(
    *sizes: tuple[int, int], phi: str = POSITIVE, shrink: int = 1, is_causal: bool = False, train: bool = True
) -> list[int]:
    """Bytes beyond the inputs, for each number of heads and length."""
    script = SCRIPT.format(sizes=sizes, phi=phi, shrink=shrink, is_causal=is_causal, train=train)
    environment = {
        **os.environ,
        "MALLOC_MMAP_THRESHOLD_": str(1 << 17),
    }  # what is freed is given back at once
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [int(line) for line in run.stdout.split()]


@pytest.mark.slow
@pytest.mark.parametrize("is_causal", [False, True])
def test_65536_tokens_fit_in_less_than_a_gigabyte(is_causal):
    (received,) = peaks((8, 65_536), is_causal=is_causal, train=False)
    assert received < 1 << 30


@pytest.mark.slow
@pytest.mark.parametrize("is_causal", [False, True])
def test_training_holds_no_features(is_causal):
    heads, length = 2, 32_768
    (received,) = peaks((heads, length), is_causal=is_causal)
    # Output, its gradient and three gradients of inputs, a few numbers a row, and the blocks. Features of
    # queries and keys would add twice 256 floats a row, 134 MB.
    assert received < heads * length * (5 * 64 + 16) * 4 + (64 << 20)


@pytest.mark.slow
def test_training_holds_no_products_of_exact_pairs():
    heads, length = 2, 24_576
    (received,) = peaks((heads, length), phi=PARTLY_EXACT, is_causal=True)
    # As above, and the sums of exact pairs, what they are made of, and all their gradients: a dozen more tensors.
    # The products, of about an eighth of the pairs, would add 302 MB.
    assert received < heads * length * (17 * 65 + 64) * 4 + (32 << 20)


@pytest.mark.slow
@pytest.mark.parametrize("phi", STRUCTURED.values(), ids=STRUCTURED)
def test_training_holds_the_graph_of_few_rows(phi):
    few, many, length = 2, 8, 4096
    least, most = peaks((few, length), (many, length), phi=phi)
    # More heads add what they add above: output, gradients, a few numbers a row. Their graphs would add features,
    # codes or distances to centres, and states: another 600 floats a row or more, 59 MB.
    assert most - least < (many - few) * length * (5 * 64 + 16) * 4 + (16 << 20)


@pytest.mark.slow
@pytest.mark.parametrize(("phi", "tensors"), LONG.values(), ids=LONG)
def test_training_holds_no_graph_of_a_long_row(phi, tensors):
    short, long, shrink = 8_192, 16_384, 4  # several spans each, which are shrunk
    least, most = peaks((1, short), (1, long), phi=phi, shrink=shrink)
    # More tokens add output, gradients, and, as there is one row only, what is made of all of it: its sums, its output
    # once more, what the division makes of both, or gradients before they are added to those of all rows; with a
    # default map its sums and the total. Codes or clusters, and where a token is in its block, are a few numbers a
    # token. The graph would add weights, features and all tokens by code or cluster.
    assert most - least < (long - short) * ((5 + tensors) * 65 + 32) * 4
