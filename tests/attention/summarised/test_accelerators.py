"""On an accelerator summarised attention is exact attention, with all its masks."""

from __future__ import annotations

import pytest
import torch

import hrf
from hrf._attention.inputs import check
from hrf._attention.summarised.engine import _elsewhere

EXACT = hrf.SummarisedAttention(tolerance=0)


@pytest.mark.parametrize("seed", range(24))
def test_it_is_what_a_cpu_computes_without_tolerance(seed):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda low, high: int(torch.randint(low, high, (), generator=generator))  # noqa: E731
    is_causal, groups, keys = bool(seed % 2), draw(1, 4), draw(1, 400)
    length = draw(1, keys + 1) if is_causal else draw(1, 400)
    shapes = [(2, 2 * groups, length, 8), (2, 2, keys, 8), (2, 2, keys, 5)]
    tokens = [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]
    options = {"scale": 0.5}
    if seed % 3:
        options["key_padding_mask"] = torch.rand(2, keys, generator=generator) < (
            1.0 if seed % 5 == 0 else 0.4
        )
    if seed % 4 > 1:
        options["query_padding_mask"] = torch.rand(2, length, generator=generator) < 0.3
    inputs = check(
        *tokens, None, paired=False, **{"query_padding_mask": None, "key_padding_mask": None, **options}
    )
    report = hrf.SummaryReport()
    found = inputs.restored(_elsewhere(inputs, report, is_causal=is_causal))
    expected = hrf.attention(*tokens, EXACT, is_causal=is_causal, **options)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert report.exact_share == 1
    assert report.predicted_error == 0


@pytest.mark.parametrize("is_causal", [False, True])
def test_gradients_do_not_meet_padding(is_causal, monkeypatch):
    """Queries of padding may hold anything; an accelerator is not read, so nothing refuses them."""
    monkeypatch.setattr("hrf._attention.summarised.engine.can_look", lambda _: False)
    tokens, padding = torch.randn(3, 1, 2, 30, 8), torch.arange(30)[None] >= 25
    tokens[0, :, :, 25:] = torch.nan
    tokens = [u.clone().requires_grad_() for u in tokens]
    masks = {"query_padding_mask": padding, "key_padding_mask": None}
    out = _elsewhere(check(*tokens, None, paired=False, **masks), None, is_causal=is_causal)
    for grad in torch.autograd.grad(out.sum(), tokens):
        assert grad.isfinite().all()
