"""Conversion of trained models: maps fitted to their own queries and keys."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch

import hrf
from hrf._attention import reference
from hrf.integrations.transformers import FITTED, Report, attention, convert, load_maps, save_maps
from integrations.models import (
    DECODERS,
    FAMILIES,
    HEADS,
    LAYERS,
    ROUNDING,
    VOCABULARY,
    WIDTH,
    batches,
    bert,
    final,
    gpt2,
    llama,
    made,
    padded,
)

small = partial(hrf.ClusteredHybrid.fit, base="separable", n_clusters=(4, 4), recenter=True)


@pytest.mark.parametrize("feature_map", ["fitted", "positive", "angular", small])
@pytest.mark.parametrize("build", FAMILIES)
def test_every_layer_is_converted_and_measured(build, feature_map, tokens):
    model = made(build, "sdpa").train()
    report = convert(model, batches(), feature_map=feature_map, progress=False)
    assert model.training
    assert model.config._attn_implementation == FITTED
    names = {bert: "encoder.layer.{}.attention.self", gpt2: "transformer.h.{}.attn"}
    expected = [names.get(build, "model.layers.{}.self_attn").format(i) for i in range(LAYERS)]
    assert list(report.layers) == expected
    for name, layer in report.layers.items():
        assert len(layer.errors) == HEADS
        assert layer.exact_share == 0
        assert model.get_submodule(name).hrf_maps[FITTED].heads == HEADS
        assert name in str(report)
    assert final(model.eval()(tokens)).isfinite().all()


def test_errors_are_those_of_the_outputs_on_the_test_batches(tokens):
    """One layer, whose inputs are exact in the converted model too."""
    model = made(bert, "sdpa")
    module, seen = model.encoder.layer[0].attention.self, []
    module.register_forward_hook(lambda _, __, output: seen.append(output[0].unflatten(-1, (HEADS, -1))))
    mask = padded("right")
    test = {"input_ids": tokens, "attention_mask": mask}
    model(**test)
    report = convert(model, batches(), test_batches=[test], feature_map="fitted", progress=False)
    model(**test)
    before, after = (u[mask.bool()] for u in (seen[0], seen[-1]))  # tokens, heads, dim
    expected = (after - before).norm(dim=(0, 2)) / before.norm(dim=(0, 2))
    errors = torch.tensor(report.layers["encoder.layer.0.attention.self"].errors, dtype=torch.float64)
    torch.testing.assert_close(errors, expected, **ROUNDING)


def test_all_pairs_exact_is_the_model_itself(tokens):
    """Padding included: it is left out of what maps are fitted to."""
    model = made(bert, "sdpa")
    data = [{"input_ids": ids, "attention_mask": padded("right")} for ids in batches()]
    expected = final(model(**data[-1]))[padded("right").bool()]
    report = convert(model, data, feature_map=partial(small, exact_share=1.0), progress=False)
    for layer in report.layers.values():
        assert max(layer.errors) < 1e-6  # centres are in float32, exact pairs do not use them
        assert layer.exact_share == 1
    assert "100% of pairs exact" in str(report)
    torch.testing.assert_close(
        final(model(**data[-1]))[padded("right").bool()], expected, rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("build", DECODERS)
def test_decoders_with_some_pairs_exact(build, tokens, monkeypatch):
    model, real = made(build, "sdpa"), padded("left").bool()
    clustered = partial(small, n_clusters=(4, 16), exact_share=0.1)
    report = convert(model, batches(), feature_map=clustered, progress=False)
    assert all(layer.exact_share > 0 for layer in report.layers.values())
    received = model(tokens, attention_mask=padded("left")).logits
    monkeypatch.setattr(attention, "attention", reference.attention)
    expected = model(tokens, attention_mask=padded("left")).logits
    torch.testing.assert_close(received[real], expected[real], **ROUNDING)


def test_maps_are_fitted_to_scaled_queries_and_keys_without_padding():
    model, kept, seen = made(llama, "sdpa"), [], []

    def fit(queries, keys, *, heads):
        kept.append((queries, keys))
        return hrf.Positive(queries.shape[-1], n_projections=8, heads=heads)

    model.model.layers[0].self_attn.k_proj.register_forward_hook(lambda _, __, output: seen.append(output))
    mask = padded("left")
    convert(
        model,
        [{"input_ids": ids, "attention_mask": mask} for ids in batches(2)],
        feature_map=fit,
        progress=False,
    )
    queries, keys = kept[0]
    assert queries.shape == keys.shape == (HEADS, int(mask.sum()), WIDTH // HEADS)
    # Rotations by position keep lengths; two query heads share a key head; logits are divided by √d.
    lengths = seen[0][mask.bool()].unflatten(-1, (2, -1)).norm(dim=-1) / (WIDTH // HEADS) ** 0.25
    expected = lengths.T.repeat_interleave(2, 0).sort(-1).values
    torch.testing.assert_close(
        keys.norm(dim=-1).sort(-1).values, expected, rtol=1e-6, atol=0
    )  # rotated in float32


def test_as_many_tokens_as_allowed():
    sizes = []

    def fit(queries, keys, *, heads):
        sizes.append((queries.shape[1], keys.shape[1]))
        return hrf.Positive(queries.shape[-1], n_projections=8, heads=heads)

    convert(made(bert, "sdpa"), batches(), feature_map=fit, max_tokens=16, progress=False)
    assert sizes == [(15, 15)] * LAYERS  # 5 of each of three batches; the fourth is for tests


def test_conversion_is_deterministic(tokens):
    outputs = []
    for _ in range(2):
        model = made(bert, "sdpa")
        torch.randn(1)
        convert(model, batches(), feature_map="fitted", progress=False)
        outputs.append(final(model(tokens)))
    assert torch.equal(*outputs)


def test_copies_and_files_bring_the_maps(tokens, tmp_path):
    model = made(llama, "sdpa")
    exact_output = model(tokens).logits
    convert(model, batches(), feature_map="fitted", progress=False)
    expected = model(tokens).logits
    assert not torch.allclose(expected, exact_output)
    assert torch.equal(copy.deepcopy(model)(tokens).logits, expected)
    save_maps(model, tmp_path / "maps")
    fresh = made(llama, "sdpa")
    load_maps(fresh, tmp_path / "maps")
    assert torch.equal(fresh(tokens).logits, expected)
    fresh.set_attn_implementation("sdpa")
    assert torch.equal(fresh(tokens).logits, exact_output)


def test_a_failed_conversion_leaves_the_model_as_it_was(tokens):
    model = made(bert, "sdpa").train()

    def fit(queries, keys, *, heads):
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        convert(model, batches(), feature_map=fit, progress=False)
    with pytest.raises(IndexError):
        convert(model, [tokens + VOCABULARY] * 2, progress=False)
    assert model.training
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("exact_share", [0.0, 0.6])
def test_recentred_clusters_generate_as_without_a_cache(exact_share, tokens):
    """Causal attention leaves the centres where they were fitted, with a cache too."""
    model = made(llama)
    clustered = partial(small, n_clusters=(3, 3), exact_share=exact_share)
    convert(model, tokens.split(1), feature_map=clustered)
    whole = model(tokens).logits
    past = model(tokens[:, :-1], use_cache=True).past_key_values
    last = model(tokens[:, -1:], past_key_values=past).logits
    torch.testing.assert_close(last, whole[:, -1:], **ROUNDING)


def test_fixed_centres_leave_the_map_itself_alone(tokens):
    queries, keys = torch.randn(2, 200, 4)
    moving = small(queries, keys)
    fixed = moving.with_fixed_centres()
    assert moving.follows_keys
    assert not fixed.follows_keys
    assert fixed.with_fixed_centres() is fixed
    positive = hrf.Positive(4, n_projections=8)
    assert positive.with_fixed_centres() is positive


def test_without_a_terminal_there_is_one_line_per_layer(capsys):
    convert(made(bert, "sdpa"), batches(), feature_map="positive")
    lines = capsys.readouterr().err.splitlines()
    assert "fitting layer 2 of 2: encoder.layer.1.attention.self" in lines
    assert [line.rpartition(" of ")[0] for line in lines] == [
        *(f"reading batch {n}" for n in (1, 2, 3)),
        *(f"fitting layer {n}" for n in (1, 2)),
        "measuring batch 1",
        "comparing batch 1",
    ]
    convert(made(bert, "sdpa"), batches(), feature_map="positive", progress=False)
    assert capsys.readouterr().err == ""


def test_the_verdict_is_on_the_output_of_the_whole_model(tokens):
    model, mask = made(llama, "sdpa"), padded("right")
    test = {"input_ids": tokens, "attention_mask": mask}
    expected = model(**test).logits[mask.bool()]
    report = convert(model, batches(), test_batches=[test], feature_map="positive", progress=False)
    received = model(**test).logits[mask.bool()]
    error = float((received - expected).norm() / expected.norm())
    assert report.output_error == pytest.approx(error, rel=1e-6)
    assert str(report).endswith(report.verdict)
    assert f"differs by {error:.1%} from exact attention" in report.verdict


@pytest.mark.parametrize(
    ("error", "words"), [(0.01, "close"), (0.2, "visibly"), (0.8, "of no use"), (float("nan"), "of no use")]
)
def test_verdicts(error, words):
    verdict = Report({}, error).verdict
    assert words in verdict
    assert ("hrf.SummarisedAttention" in verdict) == (words != "close")


def test_a_model_that_fails_with_its_maps_keeps_exact_attention(tokens, monkeypatch):
    model = made(bert, "sdpa")

    def broken(*_, **__):
        raise ArithmeticError

    monkeypatch.setattr(attention._Fitted, "map_of", broken)
    with pytest.raises(ArithmeticError):
        convert(model, batches(), feature_map="positive", progress=False)
    assert model.config._attn_implementation == "sdpa"
