"""Models that use the attention interface, and models that do not: each is told apart, in one sentence."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import nn

from hrf.integrations.transformers import FITTED, check, convert, interface, register
from integrations.models import FAMILIES, LAYERS, batches, bert, llama, made
from tools import supported_models

# They ignored the name, died with a KeyError, or with an error about shapes.
UNSUPPORTED = {
    "DebertaV2": {
        "num_hidden_layers": 1,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    },
    "MPNet": {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16},
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
    "Longformer": {
        "num_hidden_layers": 1,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "attention_window": 4,
    },
    "Falcon": {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2},
    "GPTJ": {"n_layer": 1, "n_embd": 16, "n_head": 2, "rotary_dim": 4},
    "GPTNeo": {
        "num_layers": 1,
        "hidden_size": 16,
        "num_heads": 2,
        "attention_types": [[["global"], 1]],
    },
    "Bloom": {"n_layer": 1, "hidden_size": 16, "n_head": 2},
    "CodeGen": {"n_layer": 1, "n_embd": 16, "n_head": 4, "rotary_dim": 4},
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


@pytest.mark.parametrize("build", FAMILIES)
def test_models_with_the_interface_are_supported(build):
    model = made(build, "sdpa").train()
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
        transformers.BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=0, num_attention_heads=2)
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


def test_images_and_two_towers_are_made_up():
    assert check(supported_models.built(transformers.ViTConfig))
    assert check(supported_models.built(transformers.CLIPConfig))


def test_models_without_a_file_may_use_the_interface():
    """As in a notebook."""
    cls = type("Mine", (transformers.BertModel,), {"__module__": "a_notebook"})
    assert interface.why_unsupported(cls) is None
    assert interface.why_unsupported(transformers.BertModel) is None


@pytest.mark.parametrize(
    "name", ["sdpa", "eager", "flash_attention_2", "flex_attention", "paged|hrf", "my-flash", "me/kernel"]
)
def test_names_of_transformers_are_refused(name):
    before = dict(transformers.AttentionInterface()), dict(transformers.AttentionMaskInterface())
    with pytest.raises(
        ValueError, match="which means another implementation to Transformers; expected a name of"
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


def test_outcomes_of_the_table():
    assert supported_models.outcome("bert") == "works"
    assert supported_models.outcome("modernbert").startswith("works in global layers")
    assert supported_models.outcome("gemma3_text").startswith("works in global layers")
    assert supported_models.outcome("mistral").startswith("works up to the window")
    assert supported_models.outcome("gptj") == "refused: attention of its own"
    assert supported_models.outcome("gemma2") == "refused: soft cap of the logits"


@pytest.mark.slow
def test_one_row_per_outcome():
    assert "### Works (2)\n\nbert, vit\n" in supported_models.table(["bert", "vit", "xlm"])


def test_the_table_lists_what_the_tests_know():
    text = supported_models.PAGE.read_text()
    assert {"bert", "gpt2", "llama", "bart", "vit"} <= listed(text, "Works (")
    assert {"deberta-v2", "xlnet", "falcon", "bloom"} <= listed(text, "Refused: attention of its own (")
    assert {"modernbert", "gemma3_text"} <= listed(text, "Works in global layers")
    assert {"mistral"} <= listed(text, "Works up to the window")
    assert (
        "|" not in text[text.index(supported_models.START) :]
    )  # a table would be cut off on a narrow screen


def listed(text, heading):
    """Return the model types below a heading."""
    lines = text.splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith(f"### {heading}"))
    return set(lines[place + 2].split(", "))


def test_own_attention_is_recognised_by_the_source(monkeypatch):
    """A module without attention of its own, such as one that inherits it, is not refused."""
    assert interface.why_unsupported(type("Plain", (nn.Module,), {"__module__": torch.nn.__name__})) is None
