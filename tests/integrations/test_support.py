"""Models, masks, names and batches that linear attention refuses, each in one sentence."""

from __future__ import annotations

import pytest
import torch
import transformers
from transformers import Gemma2Config, Gemma2Model

import hrf
from hrf.integrations.transformers import (
    FITTED,
    attention,
    check,
    convert,
    interface,
    load_maps,
    register,
    save_maps,
)
from integrations.models import BATCH, GROUPED, HEADS, LAYERS, LENGTH, SIZES, batches, bert, llama, made
from tools import supported_models

COMMON = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
SHORT = {"n_layer": 1, "n_embd": 16, "n_head": 4, "rotary_dim": 4}
UNSUPPORTED = {
    "DebertaV2": COMMON,
    "MPNet": COMMON,
    "Longformer": COMMON | {"attention_window": 4},
    "Falcon": {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2},
    "XLNet": {"n_layer": 1, "d_model": 16, "n_head": 2, "d_inner": 16},
    "XLM": {"n_layers": 1, "emb_dim": 16, "n_heads": 2, "max_position_embeddings": 16},
    "Funnel": {
        "block_sizes": [1],
        "num_decoder_layers": 1,
        "d_model": 16,
        "n_head": 2,
        "d_head": 8,
        "d_inner": 16,
    },
    "GPTNeo": {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "attention_types": [[["global"], 1]]},
    "Bloom": {"n_layer": 1, "hidden_size": 16, "n_head": 2},
    "GPTJ": SHORT,
    "CodeGen": SHORT,
}


def unsupported(name, **options):
    config = getattr(transformers, f"{name}Config")(vocab_size=30, **UNSUPPORTED[name], **options)
    return getattr(transformers, f"{name}Model")(config)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # by DeBERTa
@pytest.mark.parametrize("name", UNSUPPORTED)
def test_models_with_attention_of_their_own_refuse_the_name(name):
    with pytest.raises(ValueError, match=f"{name}Model computes attention by code of its own"):
        unsupported(name, attn_implementation="hrf")
    model = unsupported(name)
    answer = check(model)
    assert not answer
    assert "code of its own" in str(answer)
    with pytest.raises(ValueError, match=f"{name}Model computes attention by code of its own"):
        convert(model, batches(), progress=False)


def test_models_with_the_interface_are_supported():
    model = made(bert, "sdpa").train()
    answer = check(model)
    assert answer.supported
    assert len(answer.layers) == LAYERS
    assert f"attention of {LAYERS} modules" in str(answer)
    assert model.training
    assert model.config._attn_implementation == "sdpa"


def test_requests_that_cannot_be_honoured_are_the_reason():
    answer = check(supported_models.built(transformers.Gemma2Config))
    assert not answer
    assert "Gemma2Model cannot use linear attention: Gemma2Attention passes softcap" in str(answer)


def test_a_model_that_does_more_than_attention_is_told_by_its_outputs(monkeypatch):
    model = made(llama, "sdpa")
    forward = type(model.model.layers[0].self_attn).forward

    def changed(self, *args, **options):
        output, weights = forward(self, *args, **options)
        return output * (2 if self.config._attn_implementation == "sdpa" else 1), weights

    monkeypatch.setattr(type(model.model.layers[0].self_attn), "forward", changed)
    assert "does more in its attention" in str(check(model))


def test_a_model_without_attention_calls_nothing():
    model = transformers.BertModel(
        transformers.BertConfig(vocab_size=40, **(COMMON | {"num_hidden_layers": 0}))
    )
    assert "never calls the attention interface" in str(check(model))
    with pytest.raises(ValueError, match="BertModel never called the attention interface"):
        convert(model, batches(), progress=False)


def test_inputs_that_cannot_be_made_up_are_asked_for(tokens):
    class Picky(transformers.BertModel):
        def forward(self, input_ids, *args, mood=None, **options):
            if mood is None:
                raise ValueError("no mood")
            return super().forward(input_ids, *args, **options)

    model = Picky(made(bert).config).double()
    assert model.config._attn_implementation == "hrf"
    with pytest.raises(ValueError, match=r"Picky does not run on made-up inputs \(no mood\); pass a batch"):
        check(model)
    assert check(model, {"input_ids": tokens, "mood": 1})
    assert model.config._attn_implementation == "hrf"


@pytest.mark.parametrize("name", ["sdpa", "flash_attention_2", "flex_attention", "paged|hrf", "me/kernel"])
def test_names_of_transformers_are_refused(name):
    before = dict(transformers.AttentionInterface()), dict(transformers.AttentionMaskInterface())
    with pytest.raises(
        ValueError, match="which means another implementation to Transformers; expected a name"
    ):
        register(name)
    assert (dict(transformers.AttentionInterface()), dict(transformers.AttentionMaskInterface())) == before


def test_other_names_that_are_refused():
    for name in ("", None, 3):
        with pytest.raises(ValueError, match="expected a name such as 'hrf'"):
            register(name)
    for name in (FITTED, interface.OBSERVED):
        with pytest.raises(ValueError, match="which is registered already"):
            register(name)
    transformers.AttentionInterface.register("theirs", lambda *_: None)
    with pytest.raises(ValueError, match="name is 'theirs', which means another implementation"):
        register("theirs")
    register("hrf")  # again and again
    register("hrf")


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("bert", "works"),
        ("vit", "works"),
        ("clip", "works"),
        ("modernbert", "works in global layers"),
        ("mistral", "works up to the window"),
        ("gptj", "refused: attention of its own"),
        ("gemma2", "refused: soft cap of the logits"),
    ],
)
def test_outcomes_of_the_table(name, outcome):
    assert supported_models.outcome(name).startswith(outcome)


def test_the_table_lists_what_the_tests_know():
    text = supported_models.PAGE.read_text()
    assert {"bert", "gpt2", "llama", "bart", "vit"} <= listed(text, "Works (")
    assert {"deberta-v2", "xlnet", "falcon", "bloom"} <= listed(text, "Refused: attention of its own (")
    assert {"modernbert", "gemma3_text"} <= listed(text, "Works in global layers")
    assert {"mistral"} <= listed(text, "Works up to the window")


def listed(text, heading):
    """Return the model types below a heading."""
    lines = text.splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith(f"### {heading}"))
    return set(lines[place + 2].split(", "))


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
    with pytest.raises(ValueError, match="is causal and has no mask for its 3 queries and 5 keys"):
        attention._Made(hrf.Positive, 0)(module, q, k, k, None)


def test_attention_that_is_not_finite_names_the_map(tokens, monkeypatch):
    monkeypatch.setattr(attention, "attention", lambda query, *args, **options: query / 0)
    with pytest.raises(ValueError, match="BertSelfAttention is not finite: Positive is far too noisy"):
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
