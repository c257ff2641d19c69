"""Balanced trees: every token once, equal sizes, padding in no part, near tokens together."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from attention.summarised.cases import random_heads
from attention.summarised.naive import members
from hrf._attention.summarised.plan import balanced_parts, root_of_metric


@pytest.mark.parametrize("n_parts", [1, 2, 8, 16])
@pytest.mark.parametrize("length", [16, 37, 100])
def test_every_token_is_in_one_part_of_equal_size(length, n_parts):
    heads = random_heads(3, length, 1, 5, 1, padded=0.3 if length > 30 else 0.0)
    parts = balanced_parts(heads.x, heads.queries, n_parts)
    for n in range(3):
        found = members(parts, n)
        assert torch.equal(torch.cat(found).sort().values, heads.queries[n].nonzero()[:, 0])
        sizes = [len(part) for part in found]
        assert len(sizes) == n_parts
        assert max(sizes) - min(sizes) <= 1
        starts = [p * sum(sizes) // n_parts for p in range(n_parts + 1)]
        assert sizes == [b - a for a, b in pairwise(starts)]


def test_a_head_alone_has_the_same_parts():
    heads = random_heads(4, 90, 1, 5, 1, padded=0.4)
    together = balanced_parts(heads.x, heads.queries, 8)
    for n in range(4):
        alone = balanced_parts(heads.x[n : n + 1], heads.queries[n : n + 1], 8)
        for mine, theirs in zip(members(together, n), members(alone, 0), strict=True):
            assert set(mine.tolist()) == set(theirs.tolist())


def test_far_lumps_are_parts():
    centres = 100 * torch.eye(4, dtype=torch.float64)
    lump = torch.arange(80) % 4
    u = centres[lump] + random_heads(1, 80, 1, 4, 1).x[0]
    for part in members(balanced_parts(u[None], torch.ones(1, 80, dtype=torch.bool), 4), 0):
        assert len(lump[part].unique()) == 1


def test_put_is_the_inverse_of_take():
    heads = random_heads(2, 50, 1, 5, 1)
    parts = balanced_parts(heads.x, heads.queries, 4)
    assert torch.equal(parts.put(parts.take(heads.x), 50), heads.x * heads.queries[..., None])


def test_root_of_a_singular_metric():
    flat = torch.zeros(2, 3, 3, dtype=torch.float64)
    flat[1, 0, 0] = 4.0
    root = root_of_metric(flat)
    assert (root @ root.mT - flat).abs().max() <= 4e-5
