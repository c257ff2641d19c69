"""Arguments of PyTorch's scaled_dot_product_attention: masks that are honoured, and masks that are refused."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import hrf
from attention.data import inputs
from features.registry import build

Q, K, V = (t.detach() for t in inputs(2))  # (2, 4, 9, ·)
PAST = torch.ones(9, 9, dtype=torch.bool).tril()
SHOWN = torch.ones(2, 9, dtype=torch.bool)
SHOWN[1, 2:5] = False


def added(mask, hidden=-torch.inf):
    return torch.zeros(mask.shape).masked_fill(~mask, hidden)


MASKS = {
    "padding": (SHOWN[:, None, None], {"key_padding_mask": ~SHOWN}),
    "padding of all heads and queries": (
        SHOWN[:, None, None].expand(2, 4, 9, 9),
        {"key_padding_mask": ~SHOWN},
    ),
    "padding of all sequences": (SHOWN[1], {"key_padding_mask": ~SHOWN[1].expand(2, 9)}),
    "causal": (PAST, {"is_causal": True}),
    "causal per head": (PAST.expand(2, 4, 9, 9), {"is_causal": True}),
    "causal and padding": (PAST & SHOWN[:, None, None], {"is_causal": True, "key_padding_mask": ~SHOWN}),
    "nothing hidden": (torch.ones(1, 1, dtype=torch.bool), {}),
}


@pytest.mark.parametrize(
    "convert", [lambda mask: mask, added, lambda m: added(m, torch.finfo(torch.float32).min)]
)
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("feature_map", ["positive", "angular hybrid"])
def test_padding_and_causal_masks_are_honoured(feature_map, name, convert):
    phi, (mask, options) = build(feature_map), MASKS[name]
    received = hrf.attention(Q, K, V, phi, attn_mask=convert(mask))
    assert torch.equal(received, hrf.attention(Q, K, V, phi, **options))
    assert name == "nothing hidden" or not torch.allclose(received, hrf.attention(Q, K, V, phi))


def test_masks_add_up():
    phi, hidden = build("positive"), torch.zeros(2, 9, dtype=torch.bool)
    hidden[:, 0] = True
    received = hrf.attention(
        Q, K, V, phi, attn_mask=SHOWN[:, None, None], key_padding_mask=hidden, is_causal=True
    )
    expected = hrf.attention(Q, K, V, phi, key_padding_mask=hidden | ~SHOWN, is_causal=True)
    assert torch.equal(received, expected)


@pytest.mark.parametrize(
    ("mask", "error", "says"),
    [
        (
            PAST.T,
            ValueError,
            r"torch.bool and shape \(9, 9\) differs between queries and is not causal over 9",
        ),
        (PAST.triu(-2), ValueError, "is not causal over 9 queries and 9 keys"),  # a window
        (PAST[:, 3:4], ValueError, "differs between queries"),
        (
            torch.ones(4, 1, 9).bool() & (torch.arange(4) > 0)[:, None, None],
            ValueError,
            "differs between heads",
        ),
        (added(PAST) - 1, ValueError, "torch.float32 and shape .* has values besides 0 and −inf"),
        (PAST.long(), ValueError, "torch.int64 and shape .* expected these or booleans, True to attend"),
        (PAST[:5], ValueError, r"does not broadcast to the weights, \(2, 4, 9, 9\)"),
        (PAST[None, None, None], ValueError, "does not broadcast"),
        ([[True]], TypeError, "attn_mask is of type list; expected a tensor or None"),
    ],
)
def test_other_masks_are_refused(mask, error, says):
    with pytest.raises(error, match=says):
        hrf.attention(Q, K, V, build("positive"), attn_mask=mask)


def test_dropout_drops_keys_and_keeps_means():
    phi, runs = build("positive"), 4000
    many = [t[:1].expand(runs, *t.shape[1:]) for t in (Q, K, V)]
    torch.manual_seed(0)
    dropped, plain = hrf.attention(*many, phi, dropout_p=0.5), hrf.attention(Q[:1], K[:1], V[:1], phi)
    error = dropped.std(0) / runs**0.5
    assert ((dropped.mean(0) - plain[0]).abs() <= 5 * error).all()
    assert (error > 0).all()


def test_the_flag_of_grouped_queries_is_accepted():
    phi = build("positive")
    received = hrf.attention(Q, K[:, :2], V[:, :2], phi, enable_gqa=True)
    assert torch.equal(received, hrf.attention(Q, K[:, :2], V[:, :2], phi))


def test_uncompiled_attention_does_not_import_the_compiler():
    code = (
        "import sys, torch, hrf\n"
        "q = torch.ones(1, 1, 3, 4, requires_grad=True)\n"
        "phi = hrf.Positive(4, n_projections=4)\n"
        "hrf.attention(q, q, q, phi, is_causal=True).sum().backward()\n"
        "hrf.AttentionState(phi).prefill(q, q, q)\n"
        "sys.exit('torch._dynamo' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
