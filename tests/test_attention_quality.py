"""The benchmark of attention quality: what its numbers mean, without the model."""

from __future__ import annotations

import math

import pytest
import torch

import hrf
from benchmarks import attention_quality as quality
from benchmarks import minilm


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 10, 4, dtype=torch.float64, generator=generator) for _ in range(3)]


def test_exact_kernel_has_no_error_at_any_scale(inputs):
    q, k, v = inputs
    errors, floored = quality.output_errors(7 * (q @ k.mT).exp(), v, quality.attention(q, k, v))
    assert errors.shape == (2,)
    assert errors.max() < 1e-14
    assert floored.max() == 0


def test_error_is_relative_to_the_output_of_each_head():
    values, exact = torch.tensor([[[3.0], [5.0]]]), torch.tensor([[[2.0], [2.0]]])
    errors, _ = quality.output_errors(torch.ones(1, 2, 2), values, exact)  # outputs 4 and 4
    assert errors.tolist() == pytest.approx([1.0])


@pytest.mark.parametrize("row", [[1.0, -1.0], [1.0, -3.0], [1.0, -0.9999]])
def test_denominators_below_the_floor_are_set_to_it_and_counted(row):
    kernel, values = torch.tensor([[row, [1.0, 1.0]]]).double(), torch.tensor([[[2.0], [4.0]]]).double()
    exact = torch.tensor([[[0.0], [3.0]]]).double()  # the second row is right
    errors, floored = quality.output_errors(kernel, values, exact)
    size = abs(row[0]) + abs(row[1])
    assert errors.item() == pytest.approx(abs(2 * row[0] + 4 * row[1]) / (quality.FLOOR * size) / 3)
    assert floored.item() == 0.5


def test_flops_of_a_plain_map():
    phi = hrf.Positive(32, n_projections=128)
    assert quality.attention_flops(phi, 16, 512) == 2 * phi.flops() + 4 * 256 * 17
    assert quality.attention_flops(phi, 16, 512) == quality.attention_flops(phi, 16, 1024)
    assert quality.exact_flops(32, 16, 512) == 512 * 96


def test_flops_of_a_clustered_map_count_active_blocks_and_exact_pairs():
    centers = torch.randn(3, 8), torch.randn(5, 8)
    separable = hrf.ClusteredHybrid(*centers, base="separable")
    fixed = 2 * separable.flops() + 8
    assert quality.attention_flops(separable, 16, 100) == fixed + 2 * (3 + 5) * 17
    shifted = hrf.ClusteredHybrid(*centers, base="shifted", feature_map=hrf.Positive(8, n_projections=4))
    fixed = 2 * shifted.flops() + 8
    assert quality.attention_flops(shifted, 16, 100) == fixed + 2 * (3 + 5) * 8 * 17
    exact = torch.zeros(3, 5, dtype=torch.bool)
    exact[:, 0] = True  # a fifth of the pairs of clusters
    mixed = hrf.ClusteredHybrid(*centers, base="separable", exact=exact)
    expected = 2 * mixed.flops() + 8 + 0.8 * 2 * (3 + 5) * 17 + 0.25 * 100 * 48
    assert quality.attention_flops(mixed, 16, 100, 0.25) == pytest.approx(expected)


def test_length_from_which_a_map_pays():
    per_key = quality.exact_flops(32, 32, 1)
    assert quality.pays_from(quality.Outcome(0, flops=1280), per_key, 512) == 10
    partly = quality.Outcome(0, flops=1280 + 0.2 * per_key * 512, exact=0.2)
    length = quality.pays_from(partly, per_key, 512)
    assert 1280 + 0.2 * per_key * length == pytest.approx(per_key * length)


def test_layers_and_heads_are_merged():
    parts = [
        (1, quality.Outcome(2, 8, {0: [1.0, 3.0]}, 0.5, 100, 0.1)),
        (2, quality.Outcome(2, 8, {0: [5.0]}, 0.0, 200, 0.3)),
        (2, quality.Outcome(2, 8, {0: [9.0]}, 0.1, 300, 0.2)),
    ]
    outcome = quality.merged(parts)
    assert outcome.errors == {1: [1.0, 3.0], 2: [5.0, 9.0]}
    assert (outcome.layer(1), outcome.layer(2), outcome.overall, outcome.n_heads) == (2, 7, 4, 2)
    assert (outcome.floored, outcome.flops, outcome.exact) == pytest.approx((0.2, 200, 0.2))


@pytest.mark.parametrize(
    ("second", "met", "words"), [(0.4, True, "every layer"), (0.6, False, "1 of 2 layers")]
)
def test_verdict_is_computed_layer_by_layer(second, met, words):
    outcomes = {
        quality.POSITIVE: quality.Outcome(3, errors={1: [1.0], 2: [1.0]}),
        quality.SHIFTED: quality.Outcome(3, errors={1: [0.3], 2: [second]}),
    }
    reached, sentence = quality.verdict(outcomes, quality.SHIFTED)
    assert reached is met
    assert words in sentence
    assert f"{second:.2f}, in layer 2" in sentence


def test_every_family_makes_maps_that_can_be_measured(inputs, monkeypatch):
    monkeypatch.setattr(quality, "WIDTH", 32)
    fit = minilm.Attention(*(u.unsqueeze(0).float() for u in inputs))
    setting = quality.Setting(fit, minilm.Attention(*inputs), torch.Generator().manual_seed(0))
    families = [
        quality.plain_maps(setting),
        quality.residual_maps(setting, 2),
        quality.pair_maps(setting, 2, ("complex", "real")),
        quality.pair_maps(setting, 2, ("real",), heads=(1,)),
    ]
    for candidate in (candidate for family in families for candidate in family):
        outcome = quality.measure(candidate, setting)
        one_head = candidate.heads != slice(None)
        assert outcome.n_heads == (1 if one_head else 2)
        assert all(map(math.isfinite, outcome.errors[0]))
        assert outcome.width == (1 if "separable" in candidate.name else 32 + ("shrunk" in candidate.name))


def test_passages_start_with_a_line_and_are_spread():
    text = "".join(f"line {i}\n" for i in range(100))
    found = minilm.passages(text, 4, 60)
    assert [len(passage) for passage in found] == [60] * 4
    assert all(passage.startswith("line ") for passage in found)
    assert found[0].startswith("line 0\n")
    assert len(set(found)) == 4
    with pytest.raises(ValueError, match="do not fit"):
        minilm.passages(text, 4, 600)


def test_heads_are_consecutive_columns():
    projected = torch.arange(2 * 3 * 8.0).view(2, 3, 8)
    heads = minilm.heads_of(projected, 2)
    assert heads.shape == (2, 2, 3, 4)
    assert torch.equal(heads[:, 1], projected[..., 4:])


def test_missing_text_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HRF_DATA", str(tmp_path / "nowhere"))
    assert quality.main(["--layers", "1"]) == 2
    output = capsys.readouterr()
    assert output.err.count("\n") == 1
    assert "HRF_DATA" in output.err
