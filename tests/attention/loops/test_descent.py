"""Causal summarised attention in compiled loops: the output of the twin in float64, on float32's plan."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import hrf
from attention.summarised.causal.cases import random_tokens
from hrf._attention.loops.visits import WIDTH
from hrf._attention.summarised.causal import sizes
from hrf._attention.summarised.causal.compiled import attend_compiled, serves
from hrf._attention.summarised.causal.engine import outputs_of
from hrf._attention.summarised.causal.levels import Tokens, attend


def single(tokens: Tokens) -> Tokens:
    return Tokens(*(u.float() for u in tokens[:3]), *tokens[3:])


def rounding(tokens: Tokens) -> float:
    """Bound the relative error of a weight: that of its logit, a sum of d products, and of sums over all keys."""
    longest = tokens.x.norm(dim=-1).max() * tokens.y.norm(dim=-1).max()
    terms = tokens.x.shape[-1] + tokens.y.shape[1] ** 0.5
    return float(torch.finfo(torch.float32).eps * terms * (1 + longest) * tokens.v.abs().max())


@pytest.mark.parametrize("tolerance", [0.0, 0.5, 2.0, math.inf])
@pytest.mark.parametrize(
    ("n", "length", "groups", "dim", "width"), [(2, 129, 1, 8, 4), (1, 700, 2, 5, 3), (1, 600, 1, 16, 17)]
)
def test_outputs_are_those_of_the_twin(n, length, groups, dim, width, tolerance):
    tokens = single(random_tokens(n, length, groups, dim, width))
    assert serves(tokens)
    found, expected, sure = attend_compiled(tokens, tolerance), *twin(tokens, tolerance)
    assert (found - expected)[sure].abs().max() <= rounding(tokens)
    assert sure.double().mean() > 0.99


def test_any_number_of_threads(threads):
    tokens = single(random_tokens(3, 300, 1, 8, 4))
    expected, sure = twin(tokens, 1.0)
    assert (attend_compiled(tokens, 1.0) - expected)[sure].abs().max() <= rounding(tokens)


def twin(tokens: Tokens, tolerance: float) -> tuple[Tensor, Tensor]:
    """Outputs, and which queries open the same clusters with slightly other tolerances: rounding cannot matter."""
    near = [attend(tokens, tolerance * (1 + step)) for step in (-1e-4, 0, 1e-4)]
    opened = torch.stack([found.exact for found in near]).view(3, *tokens.x.shape[:3])
    return outputs_of(near[1], tokens), (opened == opened[1]).all(0)


@pytest.mark.parametrize("padded", [0.5, 1.0])
def test_padding(padded):
    tokens = single(random_tokens(2, 300, 1, 8, 4, padded=padded))
    expected, sure = twin(tokens, 0.5)
    assert (attend_compiled(tokens, 0.5) - expected)[sure].abs().max() <= rounding(tokens)


def test_a_state_reads_by_the_loop():
    tokens = single(random_tokens(2, 700, 1, 8, 4, padded=0.0))
    expected, sure = twin(tokens, 0.5)
    inputs = [u[None] for u in (tokens.x[:, :, 0], tokens.y, tokens.v)]
    state = hrf.SummarisedState(hrf.SummarisedAttention(tolerance=0.5), scale=1.0)
    parts = [
        state.prefill(*(u[:, :, a:b] for u in inputs))
        for a, b in ((0, 600), (600, 601), (601, 640), (640, 700))
    ]
    found = torch.cat(parts, 2)[0][:, :, None]
    assert (found - expected)[sure].abs().max() <= rounding(tokens)


def test_sizes_are_those_of_the_twin():
    assert WIDTH == sizes.WIDTH


def test_what_needs_gradients_is_not_served():
    tokens = single(random_tokens(1, 200, 1, 8, 4))
    tokens.x.requires_grad_()
    assert not serves(tokens)
    with torch.no_grad():
        assert serves(tokens)
    assert not serves(random_tokens(1, 200, 1, 8, 4))
