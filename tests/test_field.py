"""Methods of the field: each is exact attention in its limit; what its numbers mean."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

import hrf
from benchmarks.field import maps, measure, sizes, table
from benchmarks.field.blocks import Blocks
from benchmarks.field.clustered import Clustered
from benchmarks.field.families import families
from benchmarks.field.linformer import Linformer
from benchmarks.field.lsh import Lsh
from benchmarks.field.method import Family, segment_means, softmax_attention
from benchmarks.field.nystrom import Nystrom, iterative_inverse
from benchmarks.field.summarised import Summarised
from benchmarks.minilm import Attention

LENGTH, DIM = 32, 8


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(0)
    return Attention(
        *(torch.randn(2, 3, LENGTH, DIM, dtype=torch.float64, generator=generator) for _ in range(3))
    )


def exact(inputs):
    return F.scaled_dot_product_attention(*inputs, scale=1.0)


EXACT = {
    "Nyström with all tokens as landmarks": Nystrom(LENGTH, iterations=60),
    "Linformer with an identity": Linformer(LENGTH),
    "LSH with one chunk": Lsh(rounds=1, chunk=LENGTH),
    "LSH with two chunks, which are neighbours": Lsh(rounds=3, chunk=LENGTH // 2),
    "clusters of one query": Clustered(LENGTH),
    "few clusters, all keys on top": Clustered(2, top=LENGTH),
    "all blocks": Blocks(LENGTH // 8, block=8),
}


@pytest.mark.parametrize("method", EXACT.values(), ids=EXACT)
def test_each_method_is_exact_in_its_limit(method, inputs):
    # Rounding of float64; Newton's iteration squares its residual, and 60 steps reach rounding times the condition.
    tolerance = 1e-6 if isinstance(method, Nystrom) else 1e-12
    torch.testing.assert_close(method.attend(*inputs), exact(inputs), rtol=tolerance, atol=tolerance)


def test_summaries_are_exact_without_tolerance():
    q, k, v = torch.randn(3, 2, 256, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = softmax_attention(q, k, v)
    torch.testing.assert_close(Summarised(0.0).attend(q, k, v), expected)
    assert (Summarised(math.inf).attend(q, k, v) - expected).norm() > 1e-3 * expected.norm()


FEWER = [
    Nystrom(4),
    Linformer(4),
    Linformer(4, "random"),
    Lsh(1, chunk=4),
    Clustered(4),
    Clustered(4, top=4),
    Blocks(1, 8),
]


@pytest.mark.parametrize("method", FEWER, ids=repr)
def test_each_method_differs_from_exact_attention_when_small(method, inputs):
    output = method.attend(*inputs)
    assert output.shape == exact(inputs).shape
    assert output.isfinite().all()
    assert (output - exact(inputs)).norm() > 1e-3 * exact(inputs).norm()


def test_the_iteration_inverts_a_stochastic_matrix():
    a = (torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))).softmax(-1)
    torch.testing.assert_close(iterative_inverse(a, 60) @ a, torch.eye(5, dtype=torch.float64))


def test_segments_have_equal_lengths_up_to_one():
    u = torch.arange(5.0)[:, None]
    assert segment_means(u, 2)[:, 0].tolist() == [1.0, 3.5]


def test_a_pair_that_meets_in_several_rounds_counts_once(inputs):
    # Three chunks in a ring are all neighbours, so that every pair meets in every round.
    q, k, v = (u[..., :30, :] for u in inputs)
    torch.testing.assert_close(Lsh(rounds=4, chunk=10).attend(q, k, v), softmax_attention(q, k, v))


def test_improved_clusters_keep_the_mass_of_the_rest(inputs):
    ones = torch.ones_like(inputs.values)
    torch.testing.assert_close(Clustered(4, top=5).attend(inputs.queries, inputs.keys, ones), ones)


def test_nearest_blocks_are_kept():
    """Keys of the second block look like the queries of the first, and the other way round."""
    first, second = torch.zeros(2, 2), torch.zeros(2, 2)
    first[:, 0], second[:, 1] = 5.0, 5.0
    v = torch.arange(4.0)[:, None]
    out = Blocks(1, block=2).attend(torch.cat([first, second]), torch.cat([second, first]), v)
    assert out.flatten().tolist() == [2.5, 2.5, 0.5, 0.5]


def test_flops_by_hand():
    """Length 10, keys of 2 and values of 3."""
    shape = 10, 2, 3
    assert Nystrom(4, iterations=2).flops(*shape) == 4 * 4 * 5 + (2 * 16 * 5 + 2 * 8 * 64) / 10
    assert Linformer(4).flops(*shape) == 2 * 4 * 5 + 5
    assert Linformer(4, "random").flops(*shape) == 4 * 4 * 5
    assert Lsh(2, chunk=5).flops(*shape) == 2 * (2 * 2 * 2 + 10 * 10)
    assert Clustered(4).flops(*shape) == 2 * 4 * 2 * 10 + 2 * 4 * 5
    assert Clustered(4, top=3).flops(*shape) == 2 * 4 * 2 * 10 + 2 * 4 * 5 + 2 * 3 * 5 + 2 * 4 * 3 * 3 / 10
    assert Blocks(1, block=5).flops(*shape) == 2 * 5 * 5 + 2 * 2 * 10 / 25 + 4
    summarised = Summarised(1.0, {512: 0.5})
    trees, metrics, sums = 26 * 2 * 12, 12 * 4, 2 * 64 * 7 + 2 * 64 * 5
    assert summarised.flops(512, 2, 3) == trees + metrics + sums + 0.5 * 512 * 10


@pytest.mark.parametrize("budget", [0, 700, 5000])
def test_the_largest_size_within_the_flops(budget):
    family = Family("rows", Linformer, lambda n: n)
    size = sizes.size_by_flops(family, (100, 2, 3), budget)
    cost = [Linformer(n).flops(100, 2, 3) for n in range(1, 101)]
    assert (size or 0) == sum(flops <= sizes.ALLOWED * budget for flops in cost)


def test_sizes_by_time_stop_at_the_first_that_is_too_slow(inputs, monkeypatch):
    monkeypatch.setattr(sizes, "best_times", lambda calls, **_: {"ours": 10.0, "it": calls["it"]().item()})

    class Timed(Linformer):
        def attend(self, q, k, v, layer=0):
            return torch.tensor(float(self.rows))

    family = Family("timed", Timed, lambda n: n)
    assert sizes.size_by_time(family, inputs, 0, Linformer(1)) == 8
    assert list(sizes.ladder(13)) == [1, 2, 3, 4, 6, 8, 12]


def test_maps_are_fitted_to_their_layer_and_count_exact_pairs(inputs):
    layers = [inputs, Attention(inputs.queries / 2, *inputs[1:])]
    method = maps.features(hrf.OptimalPositive, layers, 4)
    assert repr(method.map_of(0)) == repr(method.map_of(0))
    assert not torch.equal(method.attend(*inputs, layer=0), method.attend(*inputs, layer=1))
    some = maps.clusters(layers, 0.6, 2)
    some.measure_share(layers)
    assert 0 < some.shares[LENGTH] <= 1
    none = maps.clusters(layers, 0.0, 2)
    assert none.flops(LENGTH, DIM, DIM) < some.flops(LENGTH, DIM, DIM)


def test_numbers_of_another_size_are_dropped(inputs, monkeypatch):
    monkeypatch.setattr(measure, "size_by_time", lambda *_: 3)
    monkeypatch.setattr(measure, "TIMED_LAYER", 0)
    monkeypatch.setattr(measure, "SECONDS", 0.0)
    ours = Family(measure.OURS, lambda _: Linformer(1))
    found = {"rows": {"time": {"size": 2, "error": 0.5}, "flops": {"size": 2, "error": 0.25}}}
    measure.add_times([ours, Family("rows", Linformer, lambda n: n)], [inputs], found)
    assert "error" not in found["rows"]["time"]
    assert found["rows"]["flops"]["error"] == 0.25
    assert found["rows"]["time"]["speed"] > 0


def test_every_family_is_measured(inputs, monkeypatch):
    monkeypatch.setattr(measure, "TIMED_LAYER", 0)
    monkeypatch.setattr(measure, "SECONDS", 0.0)
    generator = torch.Generator().manual_seed(0)
    layer = Attention(*(torch.randn(1, 2, 256, 4, generator=generator) for _ in range(3)))
    everything = [
        family._replace(largest=family.largest and (lambda n: 2))
        for family in families([layer])
        if "fitted clusters" not in family.name
    ]
    found: measure.Rows = {}
    measure.add_flops(everything, [layer], found)
    measure.add_times(everything, [layer], found)
    assert set(found["summarised, τ = 1"]) == {"fixed"}
    for family in everything:
        error = measure.head_error(family.make(1), [layer])
        assert math.isfinite(error)
        for row in found.get(family.name, {}).values():
            assert row["flops"] > 0
            assert row["speed"] > 0
            row |= {"error": error, "cosine": 0.5}
    rows = list(table.rows(found, {family.name: "things" for family in everything}, "flops", 256))
    assert [float(row[2]) for row in rows] == sorted(float(row[2]) for row in rows)
    assert all(len(row) == len(table.HEADINGS) for row in rows)
