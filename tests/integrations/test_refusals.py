"""Masks, arguments and maps that linear attention refuses."""

from __future__ import annotations

import pytest
import torch
from transformers import Gemma2Config, Gemma2Model

import hrf
from hrf.integrations.transformers import FITTED, attention, convert, load_maps, register, save_maps
from integrations.models import (
    BATCH,
    GROUPED,
    HEADS,
    LENGTH,
    SIZES,
    batches,
    bert,
    llama,
    made,
)


def test_packed_sequences_are_refused(tokens):
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5]])
    with pytest.raises(ValueError, match="packed sequences"):
        made(llama)(tokens, position_ids=positions, use_cache=False)


def test_masks_of_pairs_are_refused(tokens):
    pairs = torch.ones(BATCH, 1, LENGTH, LENGTH, dtype=torch.bool).tril()
    with pytest.raises(ValueError, match=r"torch.bool and shape \(2, 1, 11, 11\)"):
        made(llama)(tokens, attention_mask=pairs)
    with pytest.raises(ValueError, match=r"shape \(2, 11, 11\); expected \(batch, keys\)"):
        made(llama)(tokens, attention_mask=pairs[:, 0])


def test_other_changes_of_weights_are_refused(tokens):
    def gemma(**options):
        return Gemma2Model(Gemma2Config(**SIZES, **GROUPED, head_dim=4))

    with pytest.raises(ValueError, match="Gemma2Attention passes softcap"):
        made(gemma)(tokens)
    module, q = made(llama).model.layers[0].self_attn, torch.randn(1, HEADS, 3, 4)
    with pytest.raises(ValueError, match="LlamaAttention passes position_bias"):
        attention._Made(hrf.Positive, 0)(module, q, q, q, None, position_bias=torch.zeros(1, HEADS, 3, 3))


def test_causal_layers_without_a_mask_need_as_many_queries_as_keys():
    module = made(llama).model.layers[0].self_attn
    q, k = torch.randn(1, HEADS, 3, 4), torch.randn(1, 2, 5, 4)
    with pytest.raises(
        ValueError, match="LlamaAttention is causal and has no mask for its 3 queries and 5 keys"
    ):
        attention._Made(hrf.Positive, 0)(module, q, k, k, None)


def test_attention_that_is_not_finite_names_the_map(tokens, monkeypatch):
    monkeypatch.setattr(attention, "attention", lambda query, *args, **options: query / 0)
    with pytest.raises(
        ValueError, match="attention of BertSelfAttention is not finite: Positive is far too noisy"
    ):
        made(bert)(tokens)


def test_maps_that_are_missing(tokens, tmp_path):
    model = made(bert)
    with pytest.raises(ValueError, match="this BertModel has no fitted maps"):
        save_maps(model, tmp_path)
    with pytest.raises(FileNotFoundError, match="expected the files of save_maps"):
        load_maps(model, tmp_path)
    model.set_attn_implementation(FITTED)
    with pytest.raises(ValueError, match="this BertSelfAttention has no fitted map"):
        model(tokens)


def test_unknown_names_and_too_few_batches():
    model = made(bert)
    with pytest.raises(ValueError, match="feature_map is 'linear'; expected one of positive, angular"):
        register("other", "linear")
    for wrong in (hrf.Positive(4, n_projections=2), 3, None):
        with pytest.raises(TypeError, match=r"feature_map is .*; expected a name, a function of"):
            register("other", wrong)
    with pytest.raises(ValueError, match="feature_map is 'linear'; expected one of clustered, fitted"):
        convert(model, batches(), feature_map="linear")
    with pytest.raises(ValueError, match="there is 1 batch; expected"):
        convert(model, batches(1))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["a text", "another"], "batch 0 is str; expected a list of batches, each what a tokenizer returns"),
        ("a text", "batch 0 is str"),
        ({"input_ids": torch.ones(2, 5)}, "batch 0 is str"),  # one batch that is no list
        (torch.ones(2, 5, dtype=torch.long), r"batch 0 is a tensor of shape \(5,\)"),
        ([torch.ones(2, 5, dtype=torch.long), [1, 2]], "batch 1 is list"),
    ],
)
def test_batches_that_no_model_takes(given, message):
    model = made(bert, "sdpa")
    with pytest.raises(TypeError, match=message):
        convert(model, given)
    with pytest.raises(TypeError, match=message):
        convert(model, batches(), test_batches=given)
    assert model.config._attn_implementation == "sdpa"


def test_empty_lists_of_batches_are_named():
    with pytest.raises(ValueError, match="there are no batches; expected one to fit to"):
        convert(made(bert), [])
    with pytest.raises(ValueError, match="calibration_batches is empty"):
        convert(made(bert), [], test_batches=batches())
    with pytest.raises(ValueError, match="test_batches is empty"):
        convert(made(bert), batches(), test_batches=[])
