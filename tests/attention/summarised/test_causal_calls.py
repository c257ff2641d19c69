"""`hrf.attention` with causal summaries: sharp inputs, masks, packing, dtypes, graphs, reports, refusals."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

import hrf
from attention.summarised.causal_cases import needs_core
from hrf import _core as core
from hrf._attention.summarised import engine

ROUNDING = 1e-9


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=Generator().manual_seed(seed), dtype=torch.double).to(dtype)


def tensors(*shape, seed=0, dtype=torch.double):
    return [normal(*shape, seed=seed + i, dtype=dtype) for i in range(3)]


def exact(q, k, v, scale=None):
    """Exact attention in float64 from the last queries of a sequence."""
    q, k, v = (u.double() for u in (q, k, v))
    k, v = (u.repeat_interleave(q.shape[1] // k.shape[1], 1) for u in (k, v))
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale)


def relative(a, b):
    return (a - b).norm(dim=(-2, -1)) / b.norm(dim=(-2, -1)).clamp(min=torch.finfo(torch.double).tiny)


@pytest.fixture
def small_base(monkeypatch):
    monkeypatch.setattr(engine, "BASE", 64)


# Sharp inputs.

HEADS, LENGTH, DIM = 2, 2048, 64


def gaussian(std):
    return [normal(1, HEADS, LENGTH, DIM, seed=s) * std**0.5 / DIM**0.25 for s in (1, 2)]


def topics(scale):
    centres, g = normal(64, DIM, seed=3), Generator().manual_seed(4)
    pick = [centres[torch.randint(64, (1, HEADS, LENGTH), generator=g)] for _ in range(2)]
    noise = [0.3 * normal(1, HEADS, LENGTH, DIM, seed=s) for s in (5, 6)]
    return [(c + n) * f for c, n, f in zip(pick, noise, (scale / DIM**0.5, scale), strict=True)]


def needles(size):
    """Keys that one later query finds, some of them in each block."""
    q, k = gaussian(1)
    at = torch.arange(40, LENGTH // 2, 97)
    k[:, :, at] = size * q[:, :, at + LENGTH // 2]
    return q, k


def equal_keys(norm):
    q, k = gaussian(1)
    return q, (norm * F.normalize(k[:, :, :1], dim=-1)).expand_as(k)


def low_rank(size):
    basis = normal(1, HEADS, DIM, 4, seed=7)
    return [size * normal(1, HEADS, LENGTH, 4, seed=s) @ basis.mT for s in (8, 9)]


def growing(largest):
    norms = torch.linspace(0.1, largest, LENGTH)[:, None]
    return [u * norms for u in gaussian(1)]


SHARP = {
    **{f"normal {std}": (gaussian, std) for std in (1, 2, 5, 10, 30, 100)},
    **{f"topics {scale}": (topics, scale) for scale in (1, 2, 3, 4, 5)},
    **{f"needles {size}": (needles, size) for size in (6, 30)},
    "equal keys": (equal_keys, 1e4),
    "rank 4": (low_rank, 1 / 8),
    "rank 4, sharp": (low_rank, 1.0),
    "growing": (growing, 4.0),
    "huge": (gaussian, 1e10),
    "zero": (gaussian, 0.0),
}


@needs_core  # topics at scale 5 come to 0.17 by operations
@pytest.mark.parametrize("name", SHARP)
def test_sharp_inputs_stay_near_exact_attention(name):
    make, argument = SHARP[name]
    q, k = make(argument)
    v, report = normal(1, HEADS, LENGTH, DIM, seed=10), hrf.SummaryReport()
    output = hrf.attention(q, k, v, hrf.SummarisedAttention(report=report), is_causal=True, scale=1.0)
    assert output.isfinite().all()
    error = relative(output.double(), exact(q, k, v, 1.0))
    assert error.max() < 0.15  # 0.12 is the largest that was ever measured
    predicted = report.calls[0].predicted_error
    assert (predicted <= 3 * error + 1e-3).all()
    assert (error <= 3 * predicted + 1e-3).all()


@pytest.mark.parametrize("size", [1e6, 1e10, 1e14, 1e18])
@pytest.mark.parametrize("name", ["query", "key"])
@pytest.mark.parametrize("queries", [400, 250])
def test_huge_tokens_change_no_bit_of_earlier_outputs(queries, name, size, small_base):
    """Statistics overflow with them, and attention is exact from there on."""
    q, k, v = tensors(2, 4, 400, 8, dtype=torch.float32)
    given = {"query": q[:, :, -queries:].clone(), "key": k[:, :2].clone(), "value": v[:, :2]}
    ignore, method = torch.arange(400) < torch.tensor([[0], [30]]), hrf.SummarisedAttention()
    options = {"feature_map": method, "is_causal": True, "key_padding_mask": ignore}
    before = hrf.attention(**given, **options)
    at = 320 - (400 - queries if name == "query" else 0)
    given[name][1, 1, at] = size * torch.sign(given[name][1, 1, at])
    after, first = hrf.attention(**given, **options), 320 - (400 - queries)
    assert torch.equal(after[1, :, :first], before[1, :, :first])
    assert torch.equal(after[0], before[0])
    assert after.isfinite().all()
    if size > 1e10:
        wanted = exact(given["query"][1:], given["key"][1:, :, 30:], given["value"][1:, :, 30:])
        assert (after[1, :, first:] - wanted[0, :, first:]).abs().max() <= 1e-4
        report = hrf.SummaryReport()
        hrf.attention(**given | options | {"feature_map": method.with_report(report)})
        assert report.predicted_error < 0.1


def test_zero_values_give_zeros():
    q, k = gaussian(5)
    output = hrf.attention(q, k, 0 * q, hrf.SummarisedAttention(), is_causal=True, scale=1.0)
    assert (output == 0).all()


# Sizes.


@pytest.mark.parametrize("length", [0, 1, 2, 17])
def test_short_sequences_are_exact_and_say_so(length):
    q, k, v = tensors(2, 3, length, 5)
    report = hrf.SummaryReport()
    method = hrf.SummarisedAttention(tolerance=math.inf, report=report)
    output = hrf.attention(q, k, v, method, is_causal=True)
    torch.testing.assert_close(output, exact(q, k, v), rtol=0, atol=ROUNDING)
    for call in report.calls:
        assert call.n_groups.tolist() == call.n_clusters.tolist() == [0, 0]
        assert (call.exact_share == 1).all()
        assert (call.predicted_error <= ROUNDING).all()


def test_up_to_1024_tokens_are_exact():
    q, k, v = tensors(1, 1, 1024, 8)
    method = hrf.SummarisedAttention(tolerance=math.inf)
    for n in (1023, 1024):
        own = [u[:, :, :n] for u in (q, k, v)]
        assert (hrf.attention(*own, method, is_causal=True) - exact(*own)).abs().max() <= ROUNDING


@pytest.mark.parametrize("shape", [(0, 2, 5, 8), (0, 2, 0, 8), (2, 2, 0, 8)])
def test_nothing_gives_nothing(shape):
    x = torch.randn(shape)
    assert hrf.attention(x, x, x[..., :3], hrf.SummarisedAttention(), is_causal=True).shape == (*shape[:3], 3)


def test_no_queries_give_nothing():
    x = torch.randn(2, 2, 9, 8)
    assert hrf.attention(x[:, :, :0], x, x, hrf.SummarisedAttention(), is_causal=True).shape == (2, 2, 0, 8)


def test_last_queries_see_all_keys_up_to_their_own():
    q, k, v = tensors(2, 2, 2600, 8)
    for n in (1, 300, 1500):
        output = hrf.attention(q[:, :, -n:], k, v, hrf.SummarisedAttention(tolerance=0.5), is_causal=True)
        wanted = exact(q[:, :, -n:], k, v)
        assert relative(output, wanted).max() <= 0.05
    output = hrf.attention(q[:, :, -300:], k, v, hrf.SummarisedAttention(tolerance=0.0), is_causal=True)
    assert (output - exact(q[:, :, -300:], k, v)).abs().max() <= ROUNDING


def test_any_batch_axes_and_grouped_queries(small_base):
    q, k, v = (u.unflatten(0, (2, 2)) for u in tensors(4, 4, 300, 8))
    method = hrf.SummarisedAttention()
    grouped = hrf.attention(q, k[..., :2, :, :], v[..., :2, :, :], method, is_causal=True)
    assert grouped.shape == q.shape
    repeated = [u[..., :2, :, :].repeat_interleave(2, -3) for u in (k, v)]
    assert torch.equal(grouped, hrf.attention(q, *repeated, method, is_causal=True))
    assert torch.equal(
        grouped[1, 0], hrf.attention(q[1, 0], k[1, 0, :2], v[1, 0, :2], method, is_causal=True)
    )


# Masks.


def hidden(kind: str, n: int) -> Tensor:
    at = torch.arange(n)
    masks = {
        "left": torch.stack([at < 0, at < 130, at < n - 1]),
        "right": torch.stack([at >= n, at >= 270, at >= 1]),
        "holes": torch.rand(3, n, generator=Generator().manual_seed(1)) < 0.2,
        "all": torch.stack([at >= 0, at < 0, at >= 0]),
    }
    return masks[kind]


@pytest.mark.parametrize("kind", ["left", "right", "holes", "all"])
@pytest.mark.parametrize("queries", [400, 90])
@pytest.mark.parametrize("tolerance", [0.0, 1.0])
def test_padding_is_as_if_it_were_not_there(kind, queries, tolerance, small_base):
    q, k, v = tensors(3, 4, 400, 8)
    q, k, v = q[:, :, -queries:], k[:, :2], v[:, :2]
    method, ignore = hrf.SummarisedAttention(tolerance=tolerance), hidden(kind, 400)
    output = hrf.attention(q, k, v, method, is_causal=True, key_padding_mask=ignore)
    keys = ignore[:, None, :, None]
    loud = [
        u.masked_fill(mask, 1e6)
        for u, mask in zip((q, k, v), (keys[:, :, -queries:], keys, keys), strict=True)
    ]
    assert torch.equal(hrf.attention(*loud, method, is_causal=True, key_padding_mask=ignore), output)
    for b in range(3):
        own, real = ~ignore[b, -queries:], ~ignore[b]
        alone = hrf.attention(
            q[b : b + 1, :, own], k[b : b + 1, :, real], v[b : b + 1, :, real], method, is_causal=True
        )
        torch.testing.assert_close(output[b : b + 1, :, own], alone, rtol=0, atol=ROUNDING)
        assert (output[b, :, ~own] == 0).all()


def test_padded_queries_give_zeros(small_base):
    q, k, v = tensors(2, 2, 300, 8)
    late = torch.arange(300).expand(2, -1) >= torch.tensor([[300], [200]])
    output = hrf.attention(q, k, v, hrf.SummarisedAttention(), is_causal=True, query_padding_mask=late)
    plain = hrf.attention(q, k, v, hrf.SummarisedAttention(), is_causal=True)
    assert torch.equal(output, plain.masked_fill(late[:, None, :, None], 0))


@pytest.mark.parametrize("form", ["booleans", "floats", "padded"])
def test_causal_masks_are_causal_calls(form, small_base):
    q, k, v = tensors(1, 2, 300, 8)
    method, mask = hrf.SummarisedAttention(), torch.ones(300, 300, dtype=torch.bool).tril()
    options = {}
    if form == "padded":
        options["key_padding_mask"] = torch.arange(300)[None] < 40
        mask = mask & (torch.arange(300) >= 40)
    given = torch.zeros(300, 300).masked_fill(~mask, -torch.inf) if form == "floats" else mask
    wanted = hrf.attention(q, k, v, method, is_causal=True, **options)
    assert torch.equal(hrf.attention(q, k, v, method, attn_mask=given), wanted)


def test_packed_sequences_attend_to_themselves(small_base):
    q, k, v = tensors(1, 4, 700, 8)
    k, v = k[:, :2], v[:, :2]
    method, ends = hrf.SummarisedAttention(), torch.tensor([0, 1, 200, 200, 320, 700])
    packed = hrf.attention(q, k, v, method, is_causal=True, cu_seqlens=ends)
    for a, b in zip(ends.tolist(), ends.tolist()[1:], strict=False):
        own = hrf.attention(*(u[:, :, a:b] for u in (q, k, v)), method, is_causal=True)
        torch.testing.assert_close(packed[:, :, a:b], own, rtol=0, atol=ROUNDING)


# Dtypes and scales.


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtypes(dtype, small_base):
    q, k, v = tensors(1, 2, 300, 16, dtype=dtype)
    method = hrf.SummarisedAttention(rotary=10.0)
    output = hrf.attention(q, k, v, method, is_causal=True)
    assert output.dtype == dtype
    inside = torch.promote_types(dtype, torch.float32)
    wanted = hrf.attention(*(u.to(inside) for u in (q, k, v)), method, is_causal=True)
    assert torch.equal(output, wanted.to(dtype))


def test_autocast_leaves_the_precision(small_base):
    q, k, v = tensors(1, 2, 300, 16, dtype=torch.float32)
    wanted = hrf.attention(q, k, v, hrf.SummarisedAttention(), is_causal=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(hrf.attention(q, k, v, hrf.SummarisedAttention(), is_causal=True), wanted)


def test_a_scale_multiplies_logits(small_base):
    q, k, v = tensors(1, 2, 300, 16)
    method = hrf.SummarisedAttention()
    scaled = hrf.attention(q, k, v, method, is_causal=True, scale=0.09)
    own = hrf.attention(0.3 * q, 0.3 * k, v, method, is_causal=True, scale=1.0)
    assert (scaled - own).abs().max() <= ROUNDING


def test_an_angle_per_plane_or_a_base(small_base):
    q, k, v = tensors(1, 2, 300, 16)
    angles = 100.0 ** -(torch.arange(8, dtype=torch.double) / 8)
    outputs = [
        hrf.attention(q, k, v, hrf.SummarisedAttention(rotary=r), is_causal=True)
        for r in (100, angles, angles[:4], None)
    ]
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[1], outputs[2])
    assert not torch.equal(outputs[2], outputs[3])


@needs_core
def test_without_the_core_it_is_about_the_same(small_base, monkeypatch):
    q, k, v = tensors(1, 2, 300, 16)
    outputs = [hrf.attention(q, k, v, hrf.SummarisedAttention(), is_causal=True)]
    monkeypatch.setattr(core, "serves", lambda *_: False)
    outputs.append(hrf.attention(q, k, v, hrf.SummarisedAttention(), is_causal=True))
    assert 0 < relative(*outputs).max() <= 0.1


# Reports.


def test_a_report_counts_and_measures():
    q, k, v = tensors(2, 2, 2500, 8)
    report, ignore = hrf.SummaryReport(), torch.arange(2500) < torch.tensor([[0], [1600]])
    method = hrf.SummarisedAttention(report=report)
    output = hrf.attention(2 * q, k, v, method, is_causal=True, key_padding_mask=ignore)
    (call,) = report.calls
    assert call.n_groups.tolist() == call.n_clusters.tolist() == [64, 0]  # cells of the largest block
    assert (call.tolerance == 1).all()
    assert (call.exact_share[1] == 1).all()
    seen, diagonal = 2500 * 2501 / 2, 2 * 1024 * 1025 / 2 + 452 * 453 / 2 + 16 * (2500 - 1024)
    assert (call.exact_share[0] > diagonal / seen).all()
    assert (call.exact_share[0] < 1).all()
    measured = relative(output, exact(2 * q, k, v))[0]
    assert (call.predicted_error[0] / measured).max() < 2
    assert (call.predicted_error[0] / measured).min() > 0.5
    assert (call.predicted_error[1] <= ROUNDING).all()


@pytest.mark.parametrize("target", [0.01, 0.05])
def test_auto_tolerance_meets_its_target(target, small_base):
    q, k, v = tensors(1, 2, 600, 8)
    report = hrf.SummaryReport()
    method = hrf.SummarisedAttention(tolerance="auto", target_error=target, report=report)
    output = hrf.attention(2 * q, k, v, method, is_causal=True)
    assert relative(output, exact(2 * q, k, v)).max() <= 2 * target
    assert (report.calls[0].predicted_error <= target).all()
    assert 0 < report.exact_share < 1


def test_an_error_that_cannot_be_met_is_exact_attention(small_base):
    q, k, v = tensors(1, 2, 300, 8)
    method = hrf.SummarisedAttention(tolerance="auto", target_error=1e-30)
    assert (hrf.attention(q, k, v, method, is_causal=True) - exact(q, k, v)).abs().max() <= ROUNDING


# Graphs.


class Model(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.method = hrf.SummarisedAttention(rotary=100.0, **options)
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        return 2 * hrf.attention(self.linear(x), x, x, self.method, is_causal=True, key_padding_mask=padding)


@pytest.mark.slow
def test_one_graph_gives_outputs_gradients_and_reports(small_base):
    report = hrf.SummaryReport()
    torch.manual_seed(0)
    model = Model(report=report)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (200, 330):
        x = normal(2, 2, length, 16, seed=length).requires_grad_()
        padding = torch.arange(length).expand(2, -1) < torch.tensor([[0], [40]])
        wanted = x, *model.parameters()
        expected = torch.autograd.grad(model(x, padding).square().sum(), wanted)
        report.calls.clear()
        output = compiled(x, padding)
        assert torch.equal(output, model(x, padding))
        assert len(report.calls) == 2
        for received, gradient in zip(
            torch.autograd.grad(output.square().sum(), wanted), expected, strict=True
        ):
            assert torch.equal(received, gradient)
    torch.compiler.reset()


def test_an_exported_graph_takes_any_length(tmp_path, small_base):
    model = Model(tolerance=0.5)
    lengths = {"x": {2: torch.export.Dim("length", min=2, max=8192)}}
    program = torch.export.export(model, (normal(1, 2, 300, 16),), dynamic_shapes=lengths)
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    for length in (3, 299, 700):
        x = normal(1, 2, length, 16)
        assert torch.equal(loaded(x), model(x))


# Gradients and training.


def test_gradients_pass_masks_and_packing(small_base):
    """Of a batch with padding, packed, and one by one."""
    q, k, v = tensors(1, 2, 500, 8)
    ends, method = torch.tensor([0, 180, 500]), hrf.SummarisedAttention()
    found = []
    for packed in (True, False):
        leaves = [u.clone().requires_grad_() for u in (q, k, v)]
        if packed:
            output = hrf.attention(*leaves, method, is_causal=True, cu_seqlens=ends)
        else:
            own = [
                hrf.attention(*(u[:, :, a:b] for u in leaves), method, is_causal=True)
                for a, b in ((0, 180), (180, 500))
            ]
            output = torch.cat(own, 2)
        found.append(torch.autograd.grad((output * normal(*output.shape, seed=9)).sum(), leaves))
    for a, b in zip(*found, strict=True):
        assert (a - b).abs().max() <= ROUNDING


class Copier(nn.Module):
    """A causal Transformer of two layers."""

    def __init__(self, attend, length: int) -> None:
        super().__init__()
        self.attend, width = attend, 32
        self.embed, self.at = nn.Embedding(16, width), nn.Embedding(length, width)
        self.mix = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.head = nn.Linear(width, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.at.weight[: tokens.shape[1]]
        for norm, mix, out in zip(self.norms, self.mix, self.out, strict=False):
            q, k, v = mix(norm(x)).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)
            x = x + out(self.attend(q, k, v).transpose(1, 2).flatten(2))
        return self.head(self.norms[2](x))


def losses(attend, steps: int, length: int) -> list[float]:
    """Train to name the token of 8 … 15 that is some of the first ones; others are of 0 … 7."""
    torch.manual_seed(0)
    model = Copier(attend, length)
    optimizer, found = torch.optim.Adam(model.parameters(), lr=0.01), []
    for _ in range(steps):
        tokens, needle = torch.randint(8, (4, length)), torch.randint(8, 16, (4,))
        some = (torch.rand(4, length) < 0.3) & (torch.arange(length) < 64)
        tokens = needle[:, None].where(some, tokens)
        logits = model(tokens)[:, 64:]
        loss = F.cross_entropy(logits.flatten(0, 1), needle.repeat_interleave(logits.shape[1]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


@pytest.mark.slow
def test_training_goes_as_with_exact_attention(small_base):
    def summarised(q, k, v):
        return hrf.attention(q, k, v, hrf.SummarisedAttention(), is_causal=True)

    def plain(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    ours, theirs = (sum(losses(attend, 25, 140)[-5:]) / 5 for attend in (summarised, plain))
    chance = math.log(8)
    assert theirs < 0.5 * chance
    assert ours < 0.5 * chance
    assert abs(ours - theirs) < 0.15 * chance


# Refusals.


def test_refusals():
    q, k, v = tensors(1, 1, 9, 8)
    method = hrf.SummarisedAttention()
    for options in ({"n_groups": 8}, {"n_clusters": 8}):
        with pytest.raises(ValueError, match="expected n_groups and n_clusters to be None"):
            hrf.attention(q, k, v, hrf.SummarisedAttention(**options), is_causal=True)
    with pytest.raises(ValueError, match="causal attention got 9 queries and 5 keys"):
        hrf.attention(q, k[:, :, :5], v[:, :, :5], method, is_causal=True)
    with pytest.raises(ValueError, match=r"rotary has shape \(5,\); expected \(half,\), at most 4 angles"):
        hrf.attention(q, k, v, hrf.SummarisedAttention(rotary=torch.ones(5)), is_causal=True)
    with pytest.raises(ValueError, match=r"rotary has shape \(2, 2\)"):
        hrf.attention(q, k, v, hrf.SummarisedAttention(rotary=torch.ones(2, 2)), is_causal=True)
    for rotary in (0, -3.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"rotary is .*; expected a positive number"):
            hrf.SummarisedAttention(rotary=rotary)
    with pytest.raises(ValueError, match="expected one key for each query"):
        hrf.attention(q[:, :, 5:], k, v, method, is_causal=True, cu_seqlens=torch.tensor([0, 4]))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["query", "key"])
@pytest.mark.parametrize("length", [9, 1200])
def test_values_that_are_not_finite_are_an_error(name, value, length):
    given = dict(zip(("query", "key", "value"), tensors(1, 1, length, 4), strict=True))
    given[name][0, 0, 3] = value
    with pytest.raises(ValueError, match=f"{name} has 4 values that are NaN or infinite"):
        hrf.attention(**given, feature_map=hrf.SummarisedAttention(), is_causal=True)


# Calls that PyTorch's attention serves: short sequences, and a few queries after many keys.


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("length", "n_keys"), [(2, 2), (17, 17), (200, 200), (1, 700), (7, 700), (16, 700)])
def test_short_calls_are_exact(length, n_keys, padded):
    generator = torch.Generator().manual_seed(length)
    q = torch.randn(2, 4, length, 8, generator=generator)
    k, v = torch.randn(2, 2, 2, n_keys, 8, generator=generator)
    ignore = torch.zeros(2, n_keys, dtype=torch.bool)
    if padded:
        ignore[0, : n_keys // 2], ignore[1, n_keys // 3] = True, True
    output = hrf.attention(
        *(q, k, v, hrf.SummarisedAttention()), is_causal=True, key_padding_mask=ignore if padded else None
    )
    order = torch.ones(length, n_keys, dtype=torch.bool).tril(n_keys - length)
    seen = (order & ~ignore[:, None])[:, None]
    logits = q @ k.repeat_interleave(2, 1).mT / 8**0.5
    weights = logits.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num()
    expected = weights @ v.repeat_interleave(2, 1)
    expected = expected.masked_fill(ignore[:, None, n_keys - length :, None], 0)
    assert (output - expected).abs().max() <= 1e-5
