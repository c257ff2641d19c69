"""Hugging Face models with ``attn_implementation="hrf-summarised"``: no conversion, padding, refusals."""

from __future__ import annotations

import pytest
import torch

transformers = pytest.importorskip("transformers")
import hrf.integrations.transformers  # noqa: E402, F401

NAME = "hrf-summarised"


def encoder():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=50, max_position_embeddings=600, **sizes)
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


def test_a_decoder_is_refused():
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=50, **sizes))
    model.set_attn_implementation(NAME)
    with pytest.raises(NotImplementedError, match="not causal"):
        model(torch.randint(50, (1, 20)))
