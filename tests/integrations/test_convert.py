"""Conversion of trained models: maps fitted to their own queries and keys, a quality to reach, files of maps."""

from __future__ import annotations

import copy
import math
import os
import shutil
from functools import partial

import pytest
import torch

import hrf
from hrf._attention import reference
from hrf.integrations.transformers import FITTED, Report, attention, conversion, convert, load_maps, save_maps
from hrf.integrations.transformers.attention import fitted_maps
from hrf.integrations.transformers.conversion import extrapolated, measure_speed
from hrf.integrations.transformers.interface import AttentionCall
from integrations.models import (
    HEADS,
    LAYERS,
    ROUNDING,
    SIZES,
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


@pytest.mark.parametrize(
    ("build", "feature_map", "names"),
    [
        (bert, small, "encoder.layer.{}.attention.self"),
        (gpt2, "fitted", "transformer.h.{}.attn"),
        (llama, "angular", "model.layers.{}.self_attn"),
        (llama, "positive", "model.layers.{}.self_attn"),
    ],
)
def test_every_layer_is_converted_and_measured(build, feature_map, names, tokens):
    model = made(build, "sdpa").train()
    report = convert(model, batches(), feature_map=feature_map, progress=False)
    assert model.training
    assert model.config._attn_implementation == FITTED
    assert list(report.layers) == [names.format(i) for i in range(LAYERS)]
    for name, layer in report.layers.items():
        assert len(layer.errors) == HEADS
        assert layer.exact_share == 0
        assert model.get_submodule(name).hrf_maps[FITTED].heads == HEADS
        assert name in str(report)
    assert report.speed.length == 11
    assert report.speed.ratio > 0
    assert str(report).endswith(str(report.speed))
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


def test_all_pairs_exact_is_the_model_itself():
    """Padding included: it is left out of what maps are fitted to."""
    model, mask = made(bert, "sdpa"), padded("right")
    data = [{"input_ids": ids, "attention_mask": mask} for ids in batches()]
    expected = final(model(**data[-1]))[mask.bool()]
    report = convert(model, data, feature_map=partial(small, exact_share=1.0), progress=False)
    for layer in report.layers.values():
        assert max(layer.errors) < 1e-6  # centres are in float32, exact pairs do not use them
        assert layer.exact_share == 1
    assert "100% of pairs exact" in str(report)
    torch.testing.assert_close(final(model(**data[-1]))[mask.bool()], expected, rtol=1e-6, atol=1e-6)


def test_decoders_with_some_pairs_exact(tokens, monkeypatch):
    model, mask = made(llama, "sdpa"), padded("left")
    some = partial(small, n_clusters=(4, 16), exact_share=0.1)
    report = convert(model, batches(), feature_map=some, progress=False)
    assert all(layer.exact_share > 0 for layer in report.layers.values())
    received = model(tokens, attention_mask=mask).logits[mask.bool()]
    monkeypatch.setattr(attention, "attention", reference.attention)
    expected = model(tokens, attention_mask=mask).logits[mask.bool()]
    torch.testing.assert_close(received, expected, **ROUNDING)


def test_maps_are_fitted_to_scaled_queries_and_keys_without_padding():
    model, kept, seen, mask = made(llama, "sdpa"), [], [], padded("left")

    def fit(queries, keys, *, heads):
        kept.append((queries, keys))
        return hrf.Positive(queries.shape[-1], n_projections=8, heads=heads)

    model.model.layers[0].self_attn.k_proj.register_forward_hook(lambda _, __, output: seen.append(output))
    given = [{"input_ids": ids, "attention_mask": mask} for ids in batches(2)]
    convert(model, given, feature_map=fit, progress=False)
    queries, keys = kept[0]
    assert queries.shape == keys.shape == (HEADS, int(mask.sum()), WIDTH // HEADS)
    # Rotations by position, in float32, keep lengths; two query heads share a key head; logits are divided by √d.
    lengths = seen[0][mask.bool()].unflatten(-1, (2, -1)).norm(dim=-1) / (WIDTH // HEADS) ** 0.25
    expected = lengths.T.repeat_interleave(2, 0).sort(-1).values
    torch.testing.assert_close(keys.norm(dim=-1).sort(-1).values, expected, rtol=1e-6, atol=0)


def test_as_many_tokens_as_allowed():
    sizes = []

    def fit(queries, keys, *, heads):
        sizes.append((queries.shape[1], keys.shape[1]))
        return hrf.Positive(queries.shape[-1], n_projections=8, heads=heads)

    convert(made(bert, "sdpa"), batches(), feature_map=fit, max_tokens=16, progress=False)
    assert sizes == [(15, 15)] * LAYERS  # 5 of each of three batches; the fourth is for tests


def test_copies_files_and_another_conversion_bring_the_maps(tokens, tmp_path):
    model, other, again = (made(llama, "sdpa") for _ in range(3))
    exact_output = model(tokens).logits
    convert(model, batches(), feature_map="fitted", progress=False)
    expected = model(tokens).logits
    assert not torch.allclose(expected, exact_output)
    assert torch.equal(copy.deepcopy(model)(tokens).logits, expected)
    torch.randn(1)  # conversion is deterministic
    convert(again, batches(), feature_map="fitted", progress=False)
    assert torch.equal(again(tokens).logits, expected)
    save_maps(model, tmp_path / "maps")
    load_maps(other, tmp_path / "maps")
    assert torch.equal(other(tokens).logits, expected)
    other.set_attn_implementation("sdpa")
    assert torch.equal(other(tokens).logits, exact_output)


def test_a_failed_conversion_leaves_the_model_as_it_was(tokens, monkeypatch):
    model = made(bert, "sdpa").train()

    def broken(*_, **__):
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        convert(model, batches(), feature_map=broken, progress=False)
    with pytest.raises(IndexError):
        convert(model, [tokens + VOCABULARY] * 2, progress=False)
    monkeypatch.setattr(attention._Fitted, "method_of", broken)
    with pytest.raises(ArithmeticError):
        convert(model, batches(), feature_map="positive", progress=False)
    assert model.training
    assert model.config._attn_implementation == "sdpa"


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


# A quality to reach, and what the verdict says about time.


def cosine(model, exact, tests):
    pairs = [(final(model(ids)), final(exact(ids))) for ids in tests]
    return float(torch.cat([torch.cosine_similarity(*pair, dim=-1).flatten() for pair in pairs]).mean())


@pytest.mark.slow
def test_quality_takes_the_first_map_that_reaches_it():
    model, exact, tests = made(bert), made(bert, "sdpa"), batches(6)[4:]
    reached = []
    for rung in conversion.LADDER:
        trial = made(bert)
        report = convert(trial, batches(4), test_batches=tests, progress=False, feature_map=_fit(rung, []))
        reached.append(report.cosine)
        assert report.cosine == pytest.approx(cosine(trial, exact, tests), abs=1e-6)
    wanted = sorted(reached)[len(reached) // 2]  # half of the maps do not reach it
    report = convert(model, batches(4), test_batches=tests, quality=wanted - 1e-9, progress=False)
    first = next(i for i, found in enumerate(reached) if found >= wanted - 1e-9)
    assert report.chosen == conversion.LADDER[first].name
    assert report.cosine == pytest.approx(cosine(model, exact, tests), abs=1e-6)
    assert report.chosen in str(report)


def _fit(rung, vectors):
    def fit(queries, keys, *, heads):
        found = conversion.fit_clusters(queries, keys, heads=heads)
        torch.manual_seed(0)
        for _ in vectors:  # as for all layers in turn
            rung.fit(vectors[0])
        vectors.append(found)
        return rung.fit(found)

    return fit


def test_quality_that_no_map_reaches_changes_nothing():
    model = made(llama, "sdpa")
    says = r"no map reaches a mean cosine of 0\.9999999.*the best is 0\.\d+, by "
    with pytest.raises(ValueError, match=says):
        convert(model, batches(), quality=0.9999999, progress=False)
    assert model.config._attn_implementation == "sdpa"
    assert not fitted_maps(model)
    convert(model, batches(), feature_map="positive", progress=False)
    before = fitted_maps(model)
    with pytest.raises(ValueError, match=says):
        convert(model, batches(), quality=0.9999999, progress=False)
    assert fitted_maps(model) == before
    assert model.config._attn_implementation == FITTED


def test_a_quality_is_a_cosine_and_excludes_a_map():
    for quality in (0, 1, 99, -0.5, math.nan):
        with pytest.raises(ValueError, match=r"quality is .*expected a mean cosine"):
            convert(made(bert), batches(), quality=quality)
    with pytest.raises(ValueError, match="quality chooses the map, but feature_map is 'positive'"):
        convert(made(bert), batches(), quality=0.9, feature_map="positive")


def test_break_even_is_where_a_power_law_is_one():
    ratios = [8 / 2**i for i in range(3)]  # proportional to 1/length: 1 at 8 times the length
    assert extrapolated(100, ratios) == pytest.approx(800)
    assert extrapolated(100, ratios[:2]) == pytest.approx(800)
    assert extrapolated(100, [2.0, 0.5]) == pytest.approx(100 * 2**0.5)
    assert extrapolated(100, [0.9]) == 100
    assert math.isnan(extrapolated(100, [2.0]))
    assert math.isinf(extrapolated(100, [2.0, 2.0]))


def test_speed_is_measured_until_linear_attention_wins(monkeypatch):
    lengths = []

    def ratio(call, feature_map):
        lengths.append(call.key.shape[2])
        return 300 / call.key.shape[2]

    monkeypatch.setattr(conversion, "_ratio", ratio)
    call = AttentionCall(None, *torch.randn(3, 2, 4, 100, 8), ignore=None, is_causal=True, scale=0.3)
    found = measure_speed(call, hrf.Positive(8, n_projections=4), budget=math.inf)
    assert lengths == [100, 200, 400]
    assert found.break_even == pytest.approx(300)
    lengths.clear()
    assert math.isnan(measure_speed(call, hrf.Positive(8, n_projections=4), budget=0).break_even)
    assert lengths == [100]


# Files of maps that do not belong to a model, and damaged ones: one sentence, and nothing changes.


@pytest.fixture(scope="module")
def maps_of_bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("maps")
    for layer in range(LAYERS):
        phi = hrf.Positive(WIDTH // HEADS, n_projections=4, heads=HEADS)
        phi.save(folder / f"encoder.layer.{layer}.attention.self.safetensors")
    return folder


@pytest.fixture
def folder(maps_of_bert, tmp_path):
    return shutil.copytree(maps_of_bert, tmp_path / "maps")


def refused(model, folder, message, tokens):
    expected = final(model(tokens))
    with pytest.raises(ValueError, match=message):
        load_maps(model, folder)
    assert model.config._attn_implementation == "sdpa"
    assert not any("hrf_maps" in module.__dict__ for module in model.modules())
    assert torch.equal(final(model(tokens)), expected)


def test_maps_of_another_model(folder, tokens):
    message = (
        "has maps for 2 layers, but this model has no attention layer 'encoder.layer.0.attention.self' and 1"
    )
    refused(made(llama, "sdpa"), folder, message, tokens)


def test_too_few_and_too_many_maps(folder, tokens):
    first, second, third = (folder / f"encoder.layer.{i}.attention.self.safetensors" for i in range(3))
    third.write_bytes(first.read_bytes())
    refused(made(bert, "sdpa"), folder, "no attention layer 'encoder.layer.2.attention.self';", tokens)
    third.unlink()
    second.unlink()
    message = "maps for 1 layers and none for the attention layer 'encoder.layer.1.attention.self'; expected the files"
    refused(made(bert, "sdpa"), folder, message, tokens)


@pytest.mark.parametrize("name", ["layer.0", "encoder.layer.0", "pooler"])
def test_misnamed_maps(name, folder, tokens):
    first = folder / "encoder.layer.0.attention.self.safetensors"
    first.rename(folder / f"{name}.safetensors")
    refused(made(bert, "sdpa"), folder, f"no attention layer '{name}';", tokens)


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        (
            "num_attention_heads",
            2,
            "'encoder.layer.0.attention.self' is for 4 heads, the layer has 2; expected",
        ),
        (
            "hidden_size",
            32,
            "is for 4 dimensions per head, the layer has 8; expected maps fitted to this model",
        ),
    ],
)
def test_maps_for_other_heads(name, size, message, folder, tokens, monkeypatch):
    monkeypatch.setitem(SIZES, name, size)
    refused(made(bert, "sdpa"), folder, message, tokens)


def test_sizes_that_modules_do_not_tell_are_checked_at_the_first_call(folder, tokens, monkeypatch):
    monkeypatch.setattr("hrf.integrations.transformers.attention._size", lambda *_: None)
    monkeypatch.setitem(SIZES, "num_attention_heads", 2)
    model = made(bert, "sdpa")
    load_maps(model, folder)
    with pytest.raises(ValueError, match="is for 4 heads of 4 dimensions, the model has 2 heads of 8"):
        model(tokens)


def test_pipes_are_refused(folder):
    model, path = bert(), max(folder.iterdir())
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ValueError, match=r"self\.safetensors is not a regular file"):
        load_maps(model, folder)
    assert model.config._attn_implementation != FITTED
