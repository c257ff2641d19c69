"""Hugging Face models with ``attn_implementation="hrf-summarised"``: no conversion, padding."""

from __future__ import annotations

import math

import pytest
import torch

transformers = pytest.importorskip("transformers")
import hrf  # noqa: E402
import hrf.integrations.transformers  # noqa: E402

NAME = "hrf-summarised"


def encoder(**options):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=50, max_position_embeddings=600, **sizes, **options)
    return transformers.BertModel(config).eval()


@torch.no_grad()
def test_an_encoder_is_near_its_exact_self_and_ignores_padding():
    model, ids = encoder(), torch.randint(50, (2, 300), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 270:] = 0
    exact = model(ids, attention_mask=mask).last_hidden_state
    model.set_attn_implementation(NAME)
    mine = model(ids, attention_mask=mask).last_hidden_state
    assert not torch.equal(mine, exact)
    # Weights of an untrained model are nearly uniform, which summaries reproduce: logits vary by a few hundredths.
    real = mask.bool()
    assert (mine - exact)[real].norm() <= 1e-2 * exact[real].norm()
    other = model(ids.where(real, 7), attention_mask=mask).last_hidden_state
    assert torch.equal(other[real], mine[real])


@torch.no_grad()
def test_a_method_of_ones_own_is_registered_by_a_name():
    ids = torch.randint(50, (2, 300), generator=torch.Generator().manual_seed(1))
    report, model = hrf.SummaryReport(), encoder(initializer_range=0.4)
    exact = model(ids).last_hidden_state
    for name, method in {
        "exact": hrf.SummarisedAttention(tolerance=0),
        "fine": hrf.SummarisedAttention(tolerance=0.25, report=report),
        "coarse": hrf.SummarisedAttention(tolerance=math.inf),
    }.items():
        hrf.integrations.transformers.register(f"summaries-{name}", method)
    errors = {}
    for name in ("exact", "fine", "coarse"):
        model.set_attn_implementation(f"summaries-{name}")
        errors[name] = float((model(ids).last_hidden_state - exact).norm() / exact.norm())
    assert errors["exact"] <= 1e-5  # float32, two layers
    assert errors["exact"] < errors["fine"] < errors["coarse"]
    assert len(report.calls) == 2  # layers


def decoder():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(
        vocab_size=50, intermediate_size=32, max_position_embeddings=600, **sizes
    )
    return transformers.LlamaForCausalLM(config).eval()


@torch.no_grad()
def test_a_decoder_is_refused():
    model = decoder()
    model.set_attn_implementation(NAME)
    with pytest.raises(
        ValueError, match="LlamaAttention is causal, and summarised attention is for encoders"
    ):
        model(torch.zeros(1, 300, dtype=torch.long))
