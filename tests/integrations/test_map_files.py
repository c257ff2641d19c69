"""Files of maps that do not belong to a model: one sentence, and nothing changes."""

from __future__ import annotations

import pytest
import torch

from hrf.integrations.transformers import convert, load_maps, save_maps
from integrations.models import SIZES, batches, bert, final, gpt2, llama, made


@pytest.fixture
def folder(tmp_path):
    model = made(bert, "sdpa")
    convert(model, batches(), feature_map="fitted", progress=False)
    save_maps(model, tmp_path)
    return tmp_path


def refused(model, folder, message, tokens):
    expected = final(model(tokens))
    with pytest.raises(ValueError, match=message):
        load_maps(model, folder)
    assert model.config._attn_implementation == "sdpa"
    assert not any("hrf_maps" in module.__dict__ for module in model.modules())
    assert torch.equal(final(model(tokens)), expected)


@pytest.mark.parametrize("build", [gpt2, llama])
def test_maps_of_another_model(build, folder, tokens):
    message = (
        "has maps for 2 layers, but this model has no attention layer 'encoder.layer.0.attention.self' and 1"
    )
    refused(made(build, "sdpa"), folder, message, tokens)


def test_too_few_maps(folder, tokens):
    (folder / "encoder.layer.1.attention.self.safetensors").unlink()
    message = "maps for 1 layers and none for the attention layer 'encoder.layer.1.attention.self'; expected the files"
    refused(made(bert, "sdpa"), folder, message, tokens)


def test_too_many_maps(folder, tokens):
    first = folder / "encoder.layer.0.attention.self.safetensors"
    (folder / "encoder.layer.2.attention.self.safetensors").write_bytes(first.read_bytes())
    refused(made(bert, "sdpa"), folder, "no attention layer 'encoder.layer.2.attention.self';", tokens)


@pytest.mark.parametrize("name", ["layer.0", "encoder.layer.0.output", "encoder.layer.0", "pooler"])
def test_misnamed_maps(name, folder, tokens):
    first = folder / "encoder.layer.0.attention.self.safetensors"
    first.rename(folder / f"{name}.safetensors")
    refused(made(bert, "sdpa"), folder, f"no attention layer '{name}';", tokens)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_attention_heads": 2},
            "'encoder.layer.0.attention.self' is for 4 heads, the layer has 2; expected",
        ),
        (
            {"hidden_size": 32},
            "is for 4 dimensions per head, the layer has 8; expected maps fitted to this model",
        ),
    ],
)
def test_maps_for_other_heads(changes, message, folder, tokens, monkeypatch):
    for name, size in changes.items():
        monkeypatch.setitem(SIZES, name, size)
    refused(made(bert, "sdpa"), folder, message, tokens)


def test_sizes_that_modules_do_not_tell_are_checked_at_the_first_call(folder, tokens, monkeypatch):
    monkeypatch.setattr("hrf.integrations.transformers.attention._size", lambda *_: None)
    monkeypatch.setitem(SIZES, "num_attention_heads", 2)
    model = made(bert, "sdpa")
    load_maps(model, folder)
    with pytest.raises(ValueError, match="is for 4 heads of 4 dimensions, the model has 2 heads of 8"):
        model(tokens)
