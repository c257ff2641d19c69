"""The benchmark of attention quality: what its numbers mean, without the model."""

from __future__ import annotations

import json
import math

import pytest
import torch

import hrf
from benchmarks import minilm
from benchmarks.quality import __main__ as command
from benchmarks.quality import advisor, candidates, costs, flops, measure, table
from benchmarks.quality.measure import Outcome
from hrf.numerics import Features


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 10, 4, dtype=torch.float64, generator=generator) for _ in range(3)]


class Fixed(hrf.FeatureMap):
    """A map with given estimates, whatever the vectors are."""

    def __init__(self, kernel, log_scale=0.0):
        super().__init__()
        self.known = Features(kernel, torch.full_like(kernel, log_scale))

    def scaled_estimate(self, x, y):
        return self.known


def test_exact_kernel_has_no_error_at_any_scale(inputs):
    q, k, v = inputs
    exact = measure.attention(q, k, v)
    # The bound of the denominators is far below, so that none is clamped.
    phi = Fixed(7 * (q @ k.mT).exp(), 1e3)
    errors, floored = measure.output_errors(phi, minilm.Attention(q, k, v), exact)
    assert errors.shape == (2,)
    assert errors.max() < 1e-14
    assert floored.max() == 0


def test_error_is_relative_to_the_output_of_each_head():
    values, exact = torch.tensor([[[3.0], [5.0]]]), torch.tensor([[[2.0], [2.0]]])
    origin = torch.zeros(1, 2, 3)
    inputs = minilm.Attention(origin, origin, values)
    errors, _ = measure.output_errors(Fixed(torch.ones(1, 2, 2)), inputs, exact)  # outputs 4 and 4
    assert errors.tolist() == pytest.approx([1.0])


@pytest.mark.parametrize("row", [[1.0, -1.0], [1.0, -3.0], [1.0, -0.999]])
def test_rows_with_a_small_denominator_are_the_mean_and_counted(row):
    kernel, values = torch.tensor([[row, [1.0, 1.0]]]).double(), torch.tensor([[[2.0], [4.0]]]).double()
    exact = torch.tensor([[[1.0], [3.0]]]).double()  # the second row is right
    origin = torch.zeros(1, 2, 3).double()  # all kernel values are 1: the denominators are 2
    errors, floored = measure.output_errors(Fixed(kernel), minilm.Attention(origin, origin, values), exact)
    assert errors.item() == pytest.approx((3 - 1) / 10**0.5)  # the first returns the mean of the values, 3
    assert floored.item() == 0.5


def test_flops_of_a_plain_map():
    phi = hrf.Positive(32, n_projections=128)
    assert flops.attention_flops(phi, 16, 512) == 2 * phi.flops() + 4 * 256 * 17
    assert flops.attention_flops(phi, 16, 512) == flops.attention_flops(phi, 16, 1024)
    assert flops.exact_flops(32, 16, 512) == 512 * 96


def test_flops_of_a_clustered_map_count_active_blocks_and_exact_pairs():
    centers = torch.randn(4, 8), torch.randn(4, 8)
    separable = hrf.ClusteredHybrid(*centers, base="separable")
    assert flops.attention_flops(separable, 16, 100) == 2 * separable.flops() + 2 * (4 + 4) * 17
    inner = hrf.Positive(8, n_projections=4)
    shifted = hrf.ClusteredHybrid(*centers, base="shifted", feature_map=inner, recenter=True)
    assert flops.attention_flops(shifted, 16, 100) == 2 * shifted.flops() + 8 + 2 * (4 + 4) * 8 * 17
    exact = torch.zeros(4, 4, dtype=torch.bool)
    exact[:, 0] = True  # a fourth of the pairs of clusters
    mixed = hrf.ClusteredHybrid(*centers, base="separable", exact=exact)
    expected = 2 * mixed.flops() + 0.75 * 2 * (4 + 4) * 17 + 0.2 * 100 * 48
    assert flops.attention_flops(mixed, 16, 100, 0.2) == pytest.approx(expected)


def test_length_from_which_a_map_pays():
    per_key = flops.exact_flops(32, 32, 1)
    assert flops.pays_from(1280, 0.0, per_key, 512) == 10
    length = flops.pays_from(1280 + 0.2 * per_key * 512, 0.2, per_key, 512)
    assert 1280 + 0.2 * per_key * length == pytest.approx(per_key * length)


def test_layers_and_heads_are_merged():
    outcome = measure.merged(
        [
            Outcome(2, 8, {1: [1.0, 3.0]}, 0.5, 100, 0.1),
            Outcome(2, 8, {2: [5.0]}, 0.0, 200, 0.3),
            Outcome(2, 8, {2: [9.0]}, 0.1, 300, 0.2),
        ]
    )
    assert outcome.errors == {1: [1.0, 3.0], 2: [5.0, 9.0]}
    assert (outcome.layer(1), outcome.layer(2), outcome.overall, outcome.n_heads) == (2, 7, 4, 2)
    assert (outcome.floored, outcome.flops, outcome.exact) == pytest.approx((0.2, 200, 0.2))


@pytest.mark.parametrize(
    ("second", "met", "words"), [(0.4, True, "every layer"), (0.6, False, "1 of 2 layers")]
)
def test_verdict_is_computed_layer_by_layer(second, met, words):
    outcomes = {
        candidates.POSITIVE: Outcome(3, errors={1: [1.0], 2: [1.0]}),
        candidates.SHIFTED: Outcome(3, errors={1: [0.3], 2: [second]}),
    }
    reached, sentence = table.verdict(outcomes, candidates.SHIFTED)
    assert reached is met
    assert words in sentence
    assert f"{second:.3f}, in layer 2" in sentence


def test_every_family_makes_maps_that_can_be_measured(inputs, monkeypatch):
    monkeypatch.setattr(candidates, "WIDTH", 32)
    monkeypatch.setattr(candidates, "EXACT_SHARE", 0.6)  # two clusters cannot hold less
    fit = minilm.Attention(*(u.unsqueeze(0).float() for u in inputs))
    setting = candidates.Setting(fit, minilm.Attention(*inputs), torch.Generator().manual_seed(0))
    families = [
        candidates.plain_maps(setting),
        candidates.residual_maps(setting, 2),
        candidates.pair_maps(setting, 2, ("complex", "real")),
        candidates.pair_maps(setting, 2, ("real",), heads=(1,)),
    ]
    for candidate in (candidate for family in families for candidate in family):
        outcome = measure.measure(candidate, setting, 3)
        one_head = candidate.heads != slice(None)
        assert outcome.n_heads == (1 if one_head else 2)
        assert all(map(math.isfinite, outcome.errors[3]))
        assert outcome.width == (1 if "separable" in candidate.name else 32 + ("shrunk" in candidate.name))
        assert (outcome.exact > 0) == ("exact" in candidate.name)


def test_a_pick_is_judged_by_the_passage_that_the_advisor_has_not_seen(inputs):
    head = [u.flatten(0, 1).repeat(3, 4, 1) / 2 for u in inputs]  # three passages of 80 tokens
    pick = advisor.pick_map(tuple(head))
    assert pick.least <= pick.error
    again = advisor.pick_map((head[0], head[1], torch.cat([-head[2][:1], head[2][1:]])))
    assert (again.name, again.error) == (pick.name, pytest.approx(pick.error))  # O and Ô change signs alike
    blind = advisor.pick_map((head[0], head[1], torch.cat([torch.ones(1, 80, 4), head[2][1:]])))
    assert blind.error < 1e-6  # any weights give this output


def test_share_of_good_picks():
    picks = {1: [advisor.Pick("a", 1.0, "a", 1.0), advisor.Pick("a", 1.09, "b", 1.0)]}
    picks[2] = [advisor.Pick("b", 1.2, "a", 1.0), advisor.Pick("b", 0.5, "b", 0.5)]
    share, sentence = advisor.within_a_tenth(picks)
    assert share == 0.75
    assert "75 % of 4 heads" in sentence.replace("75%", "75 %")
    assert "a 2×, b 2×" in sentence
    assert "1.20 times" in sentence


def test_costs_are_compared_with_what_is_aimed_at():
    fits = {"paper": 1.0, "shifted": 2.5}
    fitting, advice = costs.sentences(fits, costs.AdviceCost(59.0, 1.9), (12, 512, 32))
    assert "above 2 s: shifted." in fitting
    assert advice.endswith("met.")
    assert costs.sentences(fits, costs.AdviceCost(61.0, 1.9), (12, 512, 32))[1].endswith("missed.")
    assert costs.sentences(fits, costs.AdviceCost(59.0, 2.1), (12, 512, 32))[1].endswith("missed.")


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
    assert command.main(["--layers", "1"]) == 2
    output = capsys.readouterr()
    assert output.err.count("\n") == 1
    assert "HRF_DATA" in output.err


def test_plain_maps_are_renewed_and_the_rest_stays(tmp_path, monkeypatch, capsys):
    path = tmp_path / "attention_quality.json"
    path.write_text('{"maps": {"uniform": {}, "clustered": {"median": 0.5}}, "advice": {"kept": true}}')
    outcome = Outcome(0, errors={1: [0.1, 0.3, 0.2]}, flops=8.0)
    here = minilm.Attention(*(torch.zeros(1, 1, 4, 2) for _ in range(3)))
    monkeypatch.setattr(command, "capture", lambda tokens: [here])
    monkeypatch.setattr(measure, "measure_layers", lambda captured, layers, families: {"uniform": outcome})
    assert command.main(["--plain", "--layers", "1", "--out", str(tmp_path)]) == 0
    result = json.loads(path.read_text())
    assert result["maps"]["uniform"]["median"] == 0.2
    assert result["maps"]["clustered"] == {"median": 0.5}
    assert result["advice"] == {"kept": True}
    assert "uniform" in capsys.readouterr().out
