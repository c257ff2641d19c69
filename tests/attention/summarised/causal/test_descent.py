"""Parts of causal attention against their definitions: blocks, summaries, bounds, descent, gradients."""

from __future__ import annotations

import math

import pytest
import torch

from attention.summarised.causal.cases import exact, random_tokens
from attention.summarised.causal.naive import block_at, naive
from hrf._attention.summarised.causal.blocks import make_blocks
from hrf._attention.summarised.causal.descent import lowest_masses, read_blocks
from hrf._attention.summarised.causal.engine import outputs_of
from hrf._attention.summarised.causal.levels import attend
from hrf._attention.summarised.causal.nodes import make_table
from hrf._attention.summarised.causal.sizes import CHUNK, blocks_of, node_counts

ROUNDING = 1e-9


@pytest.mark.parametrize("length", [0, 1, 127, 128, 129, 1000, 4096])
def test_blocks_are_the_whole_past_and_the_chunk_is_the_rest(length):
    spans = blocks_of(length)
    ends = [0, *(first + size for first, size in spans)]
    assert [first for first, _ in spans] == ends[:-1]
    assert ends[-1] == length // CHUNK * CHUNK
    assert [size for _, size in spans] == sorted({size for _, size in spans}, reverse=True)
    assert all(size & (size - 1) == 0 for _, size in spans)


@pytest.mark.parametrize(("keys", "counts"), [(128, [16]), (256, [32]), (512, [8, 64]), (4096, [8, 64, 512])])
def test_a_tree_has_few_roots(keys, counts):
    assert node_counts(keys) == counts


@pytest.mark.parametrize("tolerance", [0.0, 0.3, 2.0, math.inf])
@pytest.mark.parametrize("groups", [1, 2])
def test_outputs_are_those_of_the_definition(tolerance, groups):
    tokens = random_tokens(2, 700, groups, 4, 3, size=0.7)
    found = attend(tokens, tolerance)
    output, n_exact = outputs_of(found, tokens), found.exact.view(2, 700, groups)
    for head, position in ((0, 5), (1, 128), (0, 300), (1, 511), (0, 699), (1, 699)):
        for group in range(groups):
            expected, count = naive(tokens, head, position, group, tolerance)
            if not tokens.queries[head, position]:
                expected = torch.zeros_like(expected)
            assert (output[head, position, group] - expected).abs().max() <= ROUNDING
            assert n_exact[head, position, group] == count


@pytest.mark.parametrize("length", [0, 1, 127, 128, 129, 257, 700])
@pytest.mark.parametrize("padded", [0.0, 0.3, 1.0])
def test_without_tolerance_it_is_exact_attention(length, padded):
    tokens = random_tokens(2, length, 2, 5, 4, padded=padded, size=2.0)
    found = attend(tokens, 0.0)
    assert torch.allclose(outputs_of(found, tokens), exact(tokens), rtol=0, atol=ROUNDING)
    seen = (tokens.keys.cumsum(1)[..., None] * tokens.queries[..., None]).expand(-1, -1, 2)
    assert torch.equal(found.exact.view(2, length, 2) * tokens.queries[..., None], seen)


@pytest.mark.parametrize("size", [0.5, 3.0])
def test_lowest_masses_are_lower_bounds(size):
    tokens = random_tokens(1, 1024, 1, 4, 3, size=size)
    block = block_at(tokens, 0, 0, 512)
    x = tokens.x[:, 512:, 0]
    logits = (x @ tokens.y[:, :512].mT).masked_fill(~tokens.keys[:, None, :512], -torch.inf)
    placed = block.cells.place(x)
    assert (lowest_masses(block, placed) <= logits.logsumexp(-1) + ROUNDING).all()
    # At its centre, the mass of a cell is exact.
    own = block.cells.place(block.cells.centre)
    at_centre = block.cells.centre @ tokens.y[:, :512].mT
    masses = at_centre.masked_fill(~tokens.keys[:, None, :512], -torch.inf).logsumexp(-1)
    assert torch.equal(own.delta, torch.zeros_like(own.delta))
    assert (lowest_masses(block, own) - masses).abs().max() <= ROUNDING


def test_blocks_of_equal_queries_equal_keys_and_padding_are_finite():
    x, y, v = torch.ones(3, 20, 4).double(), torch.ones(3, 128, 4).double(), torch.ones(3, 128, 2).double()
    members, real = torch.ones(3, 20, dtype=torch.bool), torch.ones(3, 128, dtype=torch.bool)
    members[1], real[2] = False, False
    block = make_blocks(x, members, y, v, real, 8)
    assert not block.table[:2].isnan().any()
    assert block.table[2, ..., :6].eq(0).all()
    placed = block.cells.place(2 * x)
    found = read_blocks(block, 2 * x, placed, torch.full((3, 20), 1.0).double(), torch.arange(60))
    assert found.sums.isfinite().all()
    assert found.top[40:].isneginf().all()


def test_gradients_hold_the_plan_fixed():
    tokens = random_tokens(1, 131, 1, 3, 2, padded=0.0, size=0.8)
    base = block_at(tokens, 0, 0, 128)
    bound = torch.full((1, 3), 1.0, dtype=torch.float64)

    def function(x, y, v):
        keys, values = base.clusters.take(y), base.clusters.take(v)
        block = base._replace(keys=keys, values=values, table=make_table(base.cells, base.clusters, y, v))
        found = read_blocks(block, x, block.cells.place(x), bound, torch.arange(3))
        opened.append(int(found.exact.sum()))
        return found.sums * found.top.exp()[:, None]

    opened: list[int] = []
    inputs = (tokens.x[:, 128:, 0], tokens.y[:, :128], tokens.v[:, :128])
    assert torch.autograd.gradcheck(function, [u.clone().requires_grad_() for u in inputs])
    assert len(set(opened)) == 1  # the same clusters throughout, some of them
    assert 0 < opened[0] < 3 * 128
