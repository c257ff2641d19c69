"""Benchmarks: what their numbers mean, without the models; tables that match the recorded results."""

from __future__ import annotations

import io
import json
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from rich.console import Console
from torch.nn import functional as F

import hrf
from benchmarks import __main__ as bench
from benchmarks import attention, compare, minilm, summarised, tables, worker
from benchmarks import tuning as tuned
from benchmarks.cases import Case
from benchmarks.compare import ROOT, Comparison
from benchmarks.field import measure as field_measure
from benchmarks.field import sizes
from benchmarks.field import table as field_table
from benchmarks.field.blocks import Blocks
from benchmarks.field.clustered import Clustered
from benchmarks.field.families import families
from benchmarks.field.linformer import Linformer
from benchmarks.field.lsh import Lsh
from benchmarks.field.method import Family, softmax_attention
from benchmarks.field.nystrom import Nystrom
from benchmarks.field.summarised import Summarised
from benchmarks.kernel_methods import __main__ as kernel_parts
from benchmarks.kernel_methods import curves as curves_figure
from benchmarks.kernel_methods import measure as kernel_measure
from benchmarks.kernel_methods import table as kernel_table
from benchmarks.kernel_methods.data import SETS, Split, read, split
from benchmarks.kernel_methods.methods import CURVES, MAPS, METHODS, Setting
from benchmarks.kernel_methods.methods import EXACT as EXACT_METHODS
from benchmarks.minilm import Attention, data_folder
from benchmarks.quality import advisor, candidates, flops, measure
from hrf import tuning
from hrf.numerics import Features


@pytest.fixture
def vectors():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 10, 4, dtype=torch.float64, generator=generator) for _ in range(3)]


class Fixed(hrf.FeatureMap):
    """A map with given estimates, whatever the vectors are."""

    def __init__(self, kernel, log_scale=0.0):
        super().__init__()
        self.known = Features(kernel, torch.full_like(kernel, log_scale))

    def scaled_estimate(self, x, y):
        return self.known


def test_exact_kernel_has_no_error_at_any_scale(vectors):
    q, k, v = vectors
    exact = measure.attention(q, k, v)
    # The bound of the denominators is far below, so that none is clamped.
    phi = Fixed(7 * (q @ k.mT).exp(), 1e3)
    errors, floored = measure.output_errors(phi, minilm.Attention(q, k, v), exact)
    assert errors.shape == (2,)
    assert errors.max() < 1e-14
    assert floored.max() == 0


def test_rows_with_a_small_denominator_are_the_mean_and_counted():
    kernel, values = (
        torch.tensor([[[1.0, -3.0], [1.0, 1.0]]]).double(),
        torch.tensor([[[2.0], [4.0]]]).double(),
    )
    exact = torch.tensor([[[1.0], [3.0]]]).double()  # the second row is right
    origin = torch.zeros(1, 2, 3).double()  # all kernel values are 1: the denominators are 2
    errors, floored = measure.output_errors(Fixed(kernel), minilm.Attention(origin, origin, values), exact)
    assert errors.item() == pytest.approx((3 - 1) / 10**0.5)  # the first returns the mean of the values, 3
    assert floored.item() == 0.5


def test_flops_count_active_blocks_and_exact_pairs():
    centers, phi = (torch.randn(4, 8), torch.randn(4, 8)), hrf.Positive(32, n_projections=128)
    assert flops.exact_flops(32, 16, 512) == 512 * 96
    assert flops.attention_flops(phi, 16, 512) == 2 * phi.flops() + 4 * 256 * 17
    exact = torch.zeros(4, 4, dtype=torch.bool)
    exact[:, 0] = True  # a fourth of the pairs of clusters
    mixed = hrf.ClusteredHybrid(*centers, base="separable", exact=exact)
    expected = 2 * mixed.flops() + 0.75 * 2 * (4 + 4) * 17 + 0.2 * 100 * 48
    assert flops.attention_flops(mixed, 16, 100, 0.2) == pytest.approx(expected)


def test_every_family_makes_maps_that_can_be_measured(vectors, monkeypatch):
    monkeypatch.setattr(candidates, "WIDTH", 32)
    monkeypatch.setattr(candidates, "EXACT_SHARE", 0.6)  # two clusters cannot hold less
    fit = minilm.Attention(*(u.unsqueeze(0).float() for u in vectors))
    setting = candidates.Setting(fit, minilm.Attention(*vectors), torch.Generator().manual_seed(0))
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


def test_a_pick_is_judged_by_the_passage_that_the_advisor_has_not_seen(vectors):
    head = [u.flatten(0, 1).repeat(3, 4, 1) / 2 for u in vectors]  # three passages of 80 tokens
    blind = advisor.pick_map((head[0], head[1], torch.cat([torch.ones(1, 80, 4), head[2][1:]])))
    assert blind.least <= blind.error < 1e-6  # any weights give this output


# Methods of the field: each is exact attention in its limit.


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
    assert Lsh(2, chunk=5).flops(*shape) == 2 * (2 * 2 * 2 + 10 * 10)
    assert Clustered(4, top=3).flops(*shape) == 2 * 4 * 2 * 10 + 2 * 4 * 5 + 2 * 3 * 5 + 2 * 4 * 3 * 3 / 10
    assert Blocks(1, block=5).flops(*shape) == 2 * 5 * 5 + 2 * 2 * 10 / 25 + 4


@pytest.mark.parametrize("budget", [0, 700, 5000])
def test_the_largest_size_within_the_flops(budget):
    family = Family("rows", Linformer, lambda n: n)
    size = sizes.size_by_flops(family, (100, 2, 3), budget)
    cost = [Linformer(n).flops(100, 2, 3) for n in range(1, 101)]
    assert (size or 0) == sum(flops <= sizes.ALLOWED * budget for flops in cost)


def test_every_family_is_measured(inputs, monkeypatch):
    monkeypatch.setattr(field_measure, "TIMED_LAYER", 0)
    monkeypatch.setattr(field_measure, "SECONDS", 0.0)
    generator = torch.Generator().manual_seed(0)
    layer = Attention(*(torch.randn(1, 2, 256, 4, generator=generator) for _ in range(3)))
    everything = [
        family._replace(largest=family.largest and (lambda n: 2))
        for family in families([layer])
        if "fitted clusters" not in family.name
    ]
    found: field_measure.Rows = {}
    field_measure.add_flops(everything, [layer], found)
    field_measure.add_times(everything, [layer], found)
    assert set(found["summarised, τ = 1"]) == {"fixed"}
    for family in everything:
        error = field_measure.head_error(family.make(1), [layer])
        assert math.isfinite(error)
        for row in found.get(family.name, {}).values():
            assert row["flops"] > 0
            assert row["speed"] > 0
            row |= {"error": error, "cosine": 0.5}
    rows = list(field_table.rows(found, {family.name: "things" for family in everything}, "flops", 256))
    assert [float(row[2]) for row in rows] == sorted(float(row[2]) for row in rows)
    assert all(len(row) == len(field_table.HEADINGS) for row in rows)


# Kernel methods.


GENERATOR = np.random.default_rng(0)

X = GENERATOR.normal(size=(300, 2))


def problem(classes: bool = False) -> Split:
    y = np.sin(X[:, :1])
    y = np.hstack([y > 0, y <= 0]).astype(float) if classes else y
    return Split(X[:200], y[:200], X[200:], y[200:], classes)


@pytest.mark.filterwarnings("ignore:A not p.d., added jitter")  # GPyTorch's own way out
@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_learns(name):
    if name.startswith("GPyTorch"):
        pytest.importorskip("gpytorch")
    data = problem(classes=name.startswith("SVC"))
    outcome = kernel_measure.fitted(name, Setting(0.3, 1e-3, 32, 0), data)
    assert outcome.error < 0.2
    assert outcome.seconds > 0


def test_exact_ridge_in_place_is_exact():
    data, setting = problem(), Setting(0.3, 0.1, 0, 0)
    y = data.y - data.y.mean(0)
    expected = METHODS[EXACT_METHODS[0]](setting).fit(data.x, y).predict(data.new_x) + data.y.mean(0)
    np.testing.assert_allclose(
        METHODS[EXACT_METHODS[1]](setting).fit(data.x, data.y).predict(data.new_x), expected, atol=1e-3
    )


def result() -> dict:
    """Errors and times that fall and rise with the width; "auto" is better than the others by the seed's interval."""
    parts = {}
    for seed in range(3):
        for width in (256, 512):
            for k, method in enumerate([*CURVES, *MAPS]):
                error = 100 / width + 0.01 * seed + 0.001 * k
                parts[f"one|{method}|{width}|{seed}"] = [error, width / 256 * (1 + k), None, "landmarks"]
    parts[f"one|{EXACT_METHODS[0]}|0|0"] = [0.1, 99.0, 4000.0, ""]
    return {"parts": parts, "searches": {"one|random|256": {"gamma": 0.1, "alpha": 0.01}}}


def test_tables():
    rows = kernel_table.budget_rows(result())
    assert [row[1] for row in rows[1:]] == ["1", "3", "10"]
    assert rows[1][2] == '0.4006 ± 0.0248 ("auto", 256)'  # t = 4.303 with two degrees of freedom, s = 0.01
    assert (rows[1][3:5], rows[1][5]) == (["", ""], "alone")
    assert rows[3][5] == "better"
    reach = kernel_table.reach_rows(result())
    assert reach[1][:4] == ["one", "RBFSampler, 512", "0.2073", "1.99"]
    assert reach[1][5] == "6.00"
    assert kernel_table.exact_rows(result())[1:] == [["one", EXACT_METHODS[0], "", "0.1000", "99.0", "4,000"]]
    assert kernel_table.map_rows(result())[-1] == ['"auto" beside the best', "better: trigonometric is best"]
    assert kernel_table.setting_rows(result())[1] == ["one", "random", "256", "0.1000", "0.01"]
    assert curves_figure.draw(Figure().subplots(), result(), "one") is None


def test_parts_are_measured_once_and_settings_follow_the_family():
    found = list(kernel_parts.parts(["kin40k", "bike"]))
    assert len({part.key for part in found if not part.alone}) == len(
        [part for part in found if not part.alone]
    )
    searches = {
        f"bike|{f}|{w}": {"gamma": w, "alpha": f} for f in ("random", "landmarks") for w in (256, 1024, 2048)
    }
    for method, family in ((CURVES[0], "landmarks"), ("RBFSampler", "random"), ("Nystroem", "landmarks")):
        setting = kernel_parts.setting_of(kernel_parts.Part("bike", method, 4096, 1), searches)
        assert setting == Setting(2048, family, 4096, 1)
    assert kernel_parts.setting_of(kernel_parts.Part("bike", EXACT_METHODS[0], 0, 0), searches).gamma == 2048


@pytest.mark.skipif(
    not (data_folder() / "uci-regression").is_dir(), reason="needs uci-regression in $HRF_DATA"
)
def test_data():
    for name in SETS:
        x, y, masks = read(name)
        assert len(x) == len(y) == len(masks)
        data = split(name, 1, 500, 100)
        assert (len(data.x), len(data.new_x)) == (500, 100)
        np.testing.assert_allclose(data.x.mean(0), 0, atol=1e-9)
        assert data.y.shape[1] == (26 if name == "letter" else 1)


# Two source trees are timed in alternation, and slower cases are named.


class Clock:
    """A worker whose calls take known times."""

    def __init__(self, name: str, log: list[str], seconds: float = 1.0, error: str = "") -> None:
        self.name, self.log, self.seconds, self.error = name, log, seconds, error

    def ask(self, **request: int) -> float:
        if self.error:
            raise RuntimeError(self.error)
        if "calls" in request:
            self.log.append(self.name)
        return self.seconds


def test_trees_take_turns_and_the_first_place_changes():
    log: list[str] = []
    found = compare.compare(0, Clock("old", log, 2.0), Clock("new", log, 1.0), 3, 60)
    assert log == ["new", "old", "old", "new", "new", "old"]
    assert found.ratios == [0.5] * 3
    assert not found.slower


@pytest.mark.parametrize(
    ("new", "slower"), [((1.10, 1.08, 1.09, 1.07), True), ((1.04,) * 4, False), ((1.0, 1.0, 1.3, 1.3), False)]
)
def test_slower_is_more_than_five_percent_beyond_the_quartiles(new, slower):
    found = Comparison("group", "case", (1.0,) * 4, new)
    assert found.slower is slower
    assert found.to_dict()["slower"] is slower
    console = Console(file=io.StringIO(), width=120)
    compare.show(console, [found, Comparison("group", "other", problem="an error")])
    assert ("slower: group/case" in console.file.getvalue()) is slower
    assert "Not compared: group/other: an error" in console.file.getvalue()


def test_only_the_own_cases_are_timed():
    names = [f"{case.group}/{case.name}" for case in worker.CASES]
    assert len(set(names)) == len(names) > 50
    for peer in ("performer", "scikit-learn", "naive", "bare", "exact (scaled", "full softmax", "plain"):
        assert not any(peer in name for name in names), peer
    assert all(case.requires is None for case in worker.CASES)


@pytest.mark.slow
def test_a_tree_against_itself(tmp_path, capsys):
    arguments = ["--only", "angularhybrid, one token", "--rounds", "1", "--threads", "1"]
    assert compare.main([str(ROOT / "src"), *arguments, "--out", str(tmp_path)]) in (0, 1)
    (case,) = json.loads((tmp_path / "compare.json").read_text(encoding="utf-8"))["cases"]
    assert case["ratio"] == pytest.approx(case["new"][0] / case["old"][0])
    with pytest.raises(SystemExit):
        compare.main([str(tmp_path)])
    assert "has no package hrf in it" in capsys.readouterr().err


# Block sizes, explicit features, tables.


KEPT = json.loads((Path(tuned.__file__).parent / "results" / "tuning.json").read_text(encoding="utf-8"))

SIZES = {name for name in vars(tuning) if name.isupper()}


def test_every_size_is_timed_or_says_why_not():
    assert set(tuned.CASES) | set(tuned.NOT_TIMED) == SIZES
    assert not set(tuned.CASES) & set(tuned.NOT_TIMED)


@pytest.mark.parametrize("name", tuned.CASES)
def test_the_kept_measurement_is_of_the_size_in_use(name):
    assert KEPT["sizes"][name]["sizes"][1] == getattr(tuning, name)
    assert KEPT["sizes"][name]["case"] == tuned.CASES[name][0]


def test_a_size_is_timed_at_all_factors_and_left_as_it_was(monkeypatch):
    seen = []
    monkeypatch.setitem(
        tuned.CASES, "CAUSAL_CHUNK", ("a case", lambda: lambda: seen.append(tuning.CAUSAL_CHUNK))
    )
    found = tuned.measured("CAUSAL_CHUNK", rounds=2)
    assert found["sizes"] == [64, 128, 256]
    assert set(seen) == {64, 128, 256}
    assert len(found["seconds"]) == 3
    assert tuning.CAUSAL_CHUNK == 128


def test_explicit_features_are_those_of_the_map():
    torch.manual_seed(0)
    query, key, value = 0.3 * torch.randn(3, 1, attention.HEADS, 40, attention.DIM)  # no denominator near 0
    expected = attention.grouped()(query, key, value)
    for explicit in (attention.explicit(), attention.plain()):
        error = (explicit(query, key, value) - expected).abs()
        assert (error <= 100 * torch.finfo(torch.float32).eps * value.abs().amax()).all()


def test_each_file_of_results_keeps_the_groups_that_do_not_run(tmp_path):
    groups = "maps", summarised.group(1024, 32), summarised.group(4096, 32)
    cases = [Case(group, group, setup=lambda: partial(torch.zeros, 2), flops=1.0) for group in groups]
    bench.run(cases[:2], 1, tmp_path, some=False)
    bench.run(cases[2:], 1, tmp_path, some=True)
    found = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in tmp_path.glob("*.json")}
    assert {name: [*result["groups"]] for name, result in found.items()} == {
        "bench.json": ["maps"],
        "summarised.json": [*groups[1:]],
    }


@pytest.mark.parametrize("page", tables.PAGES, ids=str)
def test_tables_match_the_recorded_results(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert tables.filled(page, text, ROOT) == text


def test_a_table_without_a_place_is_an_error():
    with pytest.raises(ValueError, match=r"speed\.md has 0 places for the table 'summarised'"):
        tables.filled(Path("docs/speed.md"), "no tables", ROOT)


def test_errors_of_kernel_methods_are_shares_or_roots():
    data, classes = problem(), problem(classes=True)
    assert kernel_measure.error_of(data.new_y + 0.5, data) == pytest.approx(0.5)
    assert kernel_measure.error_of(classes.new_y, classes) == 0
    assert kernel_measure.error_of(classes.new_y[:, ::-1], classes) == 1


def test_shares_of_good_picks_and_lengths_from_which_a_map_pays():
    picks = {1: [advisor.Pick("a", 1.0, "a", 1.0), advisor.Pick("a", 1.09, "b", 1.0)]}
    picks[2] = [advisor.Pick("b", 1.2, "a", 1.0), advisor.Pick("b", 0.5, "b", 0.5)]
    assert advisor.within_a_tenth(picks)[0] == 0.75
    per_key = flops.exact_flops(32, 32, 1)
    assert flops.pays_from(1280, 0.0, per_key, 512) == 10
    length = flops.pays_from(1280 + 0.2 * per_key * 512, 0.2, per_key, 512)
    assert 1280 + 0.2 * per_key * length == pytest.approx(per_key * length)
