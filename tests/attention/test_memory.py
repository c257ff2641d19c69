"""Memory grows with the inputs, not with the features."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource, torch, hrf

torch.set_num_threads(1)
is_causal, train = {is_causal}, {train}
phi = {phi}
hrf.attention(*torch.randn(3, 1, 8, 8, 64), phi, is_causal=is_causal)  # what the first call loads
qkv = [t.clone().requires_grad_(train) for t in torch.randn(3, 1, {heads}, {length}, 64)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
out = hrf.attention(*qkv, phi, is_causal=is_causal)
if train:
    out.sum().backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


POSITIVE = "hrf.Positive(64, n_projections=128)"
PARTLY_EXACT = (
    "hrf.ClusteredHybrid(*torch.randn(2, 8, 64), base='separable', exact=torch.eye(8, dtype=torch.bool))"
)


def peak(phi: str = POSITIVE, **settings) -> int:
    """Bytes beyond the inputs."""
    script = SCRIPT.format(phi=phi, **settings)
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return int(run.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("is_causal", [False, True])
def test_65536_tokens_fit_in_less_than_a_gigabyte(is_causal):
    assert peak(is_causal=is_causal, train=False, heads=8, length=65_536) < 1 << 30


@pytest.mark.slow
@pytest.mark.parametrize("is_causal", [False, True])
def test_training_holds_no_features(is_causal):
    heads, length = 2, 32_768
    received = peak(is_causal=is_causal, train=True, heads=heads, length=length)
    # Output, its gradient and three gradients of inputs, a few numbers a row, and the blocks. Features of
    # queries and keys would add twice 256 floats a row, 134 MB.
    assert received < heads * length * (5 * 64 + 16) * 4 + (64 << 20)


@pytest.mark.slow
def test_training_holds_no_products_of_exact_pairs():
    heads, length = 2, 32_768
    received = peak(PARTLY_EXACT, is_causal=True, train=True, heads=heads, length=length)
    # As above, and the sums of exact pairs, what they are made of, and all their gradients: a dozen more tensors.
    # The products, of about an eighth of the pairs, would add 0.5 GB.
    assert received < heads * length * (17 * 65 + 64) * 4 + (64 << 20)
