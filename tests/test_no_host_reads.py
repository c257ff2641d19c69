"""On an accelerator no public call waits for the device: all run on the meta device, which has no values to read.

A call that makes a tensor on the CPU would copy it to the device, so that counts, too. `CALLS` has every callable in
``__all__`` of every public module but those of `READERS`, which says why they read: a new one has to enter either. The
table of docs/gpus.md says the same to users.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import hrf
from attention.data import inputs
from features.registry import build
from hrf import _core as core
from hrf import coefficients, kernels, sampling, theory, tuning
from hrf._attention import call, dispatch, map_kernels

DIM, WIDTH = 8, 5


def meta(*shape: int, **options: object) -> Tensor:
    return torch.empty(*shape, device="meta", **options)


class Host(TorchDispatchMode):
    """Counts operations that return a tensor on the CPU; to read a number of the meta device is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        leaves = tree_leaves(out)
        if any(u.is_cpu for u in leaves if isinstance(u, Tensor)):
            self.found[str(func)] += 1
        return out


def query(length: int = 30) -> Tensor:
    return meta(2, 4, length, DIM)


def value(length: int = 30) -> Tensor:
    return meta(2, 4, length, WIDTH)


def on_meta(make: Callable[..., nn.Module], *args: object, **options: object) -> nn.Module:
    return make(*args, **options, device="meta")


def fitted(make: Callable[..., hrf.FeatureMap], **options: object) -> hrf.FeatureMap:
    x = torch.randn(40, DIM, generator=torch.Generator().manual_seed(0))
    return make(DIM, n_projections=6, **options).fit(x, x).to("meta")


SIZES = {"n_projections": 6}
BOTH = {**SIZES, "n_coefficient_projections": 4}
MAPS: dict[str, Callable[[], hrf.FeatureMap]] = {
    "Positive": lambda: on_meta(hrf.Positive, DIM, **SIZES),
    "Trigonometric": lambda: on_meta(hrf.Trigonometric, DIM, **SIZES),
    "Exponential": lambda: on_meta(
        hrf.Exponential, DIM, **SIZES, matrix=1 + 0.5j * torch.ones(DIM), key_shift=torch.ones(DIM)
    ),
    "OptimalPositive": lambda: fitted(hrf.OptimalPositive),
    "DenseExponential": lambda: fitted(hrf.DenseExponential),
    "AsymmetricExponential": lambda: fitted(hrf.AsymmetricExponential, matrix=torch.eye(DIM)),
    "Landmarks": lambda: hrf.Landmarks(torch.randn(6, DIM)).to("meta"),
    "AngularHybrid": lambda: on_meta(hrf.AngularHybrid, DIM, **BOTH),
    "GaussianHybrid": lambda: on_meta(hrf.GaussianHybrid, DIM, **BOTH, sigma=1.0, radius=1.0),
    "GaussianKernel": lambda: hrf.GaussianKernel(on_meta(hrf.Positive, DIM, **SIZES)),
    "ClusteredHybrid": lambda: hrf.ClusteredHybrid.fit(
        *torch.randn(2, 40, DIM), n_clusters=(3, 3), n_projections=4, base="shifted", seed=0
    ).to("meta"),
    "Hybrid": lambda: hrf.Hybrid(
        [on_meta(hrf.Positive, DIM, **SIZES), on_meta(hrf.Trigonometric, DIM, **SIZES)],
        [on_meta(coefficients.Angular, DIM, n_projections=4)],
    ),
}


def use_map(name: str) -> Callable[[], None]:
    phi = MAPS[name]()

    def use() -> None:
        (
            phi.queries(query()),
            phi.scaled_keys(query()),
            phi.estimate(query(), query(7)),
            phi.log_kernel(query(), query(7)),
        )
        hrf.attention(query(20), query(), value(), phi)
        hrf.attention(query(), query(), value(), phi, key_padding_mask=meta(2, 30, dtype=torch.bool))
        for is_causal in (False, True):
            tokens = [u.requires_grad_() for u in (query(), query(), value())]
            hrf.attention(*tokens, phi, is_causal=is_causal).sum().backward()

    return use


def use_rule() -> Callable[[], object]:
    phi, rule = MAPS["Trigonometric"](), hrf.Denominator("none")
    return lambda: hrf.attention(query(), query(), value(), phi, denominator=rule)


def use_summaries() -> Callable[[], None]:
    report = hrf.SummaryReport()
    method = hrf.SummarisedAttention(report=report)
    padding = {"key_padding_mask": meta(2, 2000, dtype=torch.bool)}

    def use() -> None:
        for is_causal in (False, True):
            tokens = [u.requires_grad_() for u in (query(2000), query(2000), value(2000))]
            hrf.attention(*tokens, method, is_causal=is_causal, **padding).sum().backward()
        hrf.attention(query(20), query(2000), value(2000), hrf.SummarisedAttention(), is_causal=True)

    return use


def use_state() -> Callable[[], None]:
    phi = MAPS["Positive"]()

    def use() -> None:
        state = hrf.AttentionState(phi)
        state.prefill(query(), query(), value())
        for _ in range(3):
            state.step(*(u[..., 0, :] for u in (query(), query(), value())))

    return use


def use_layer(kind: str) -> Callable[[], None]:
    make, x = getattr(hrf.nn, kind), meta(2, 9, 16)
    layers = [
        make(16, 2, batch_first=True, feature_map=name, device="meta")
        for name in ("positive", "trigonometric", "angular")
    ]

    def use() -> None:
        for layer in layers:
            arguments = (x, x, x) if kind == "MultiheadAttention" else (x,)
            out = layer(*arguments)
            (out[0] if isinstance(out, tuple) else out).sum().backward()
            layer.eval()(*arguments)

    return use


SAMPLERS: dict[str, Callable[[], sampling.Sampler]] = {
    "ExactSoftmaxSampler": lambda: sampling.ExactSoftmaxSampler(meta(100, DIM)),
    "SoftmaxSampler": lambda: sampling.SoftmaxSampler(meta(100, DIM), MAPS["Positive"](), radius=1.0),
    "UniformSampler": lambda: sampling.UniformSampler(100),
    "LogUniformSampler": lambda: sampling.LogUniformSampler(100),
}


def use_sampler(name: str) -> Callable[[], None]:
    sampler = SAMPLERS[name]()
    return lambda: (
        sampler.sample(meta(7, DIM), 5),
        sampler.log_prob(meta(7, DIM), meta(7, 3, dtype=torch.long)),
    )


def use_loss() -> Callable[[], None]:
    losses = [hrf.nn.SampledSoftmaxLoss(make(), 10) for make in SAMPLERS.values()]

    def use() -> None:
        for loss in losses:
            hidden, weight = meta(7, DIM).requires_grad_(), meta(100, DIM).requires_grad_()
            loss(hidden, meta(7, dtype=torch.long), weight).backward()

    return use


def use_coefficient(make: Callable[[], nn.Module]) -> Callable[[], None]:
    made = make()
    return lambda: (made.queries(query()), made.keys(query()), made.estimate(query(), query(7)))


def use_kernel(name: str) -> Callable[[], None]:
    return lambda: getattr(kernels, name)(query(), query(7))


CALLS: dict[str, Callable[[], Callable[[], object]]] = {
    **{name: lambda name=name: use_map(name) for name in MAPS},
    "attention": lambda: use_map("Positive"),
    "SummarisedAttention": use_summaries,
    "AttentionState": use_state,
    "Denominator": use_rule,
    "Features": lambda: lambda: hrf.Features(meta(3, 4), meta(3, 1)).unscaled(),
    "coefficients.Angular": lambda: use_coefficient(
        lambda: on_meta(coefficients.Angular, DIM, n_projections=4)
    ),
    "coefficients.FromFeatureMap": lambda: use_coefficient(
        lambda: coefficients.FromFeatureMap(MAPS["Positive"]())
    ),
    "nn.MultiheadAttention": lambda: use_layer("MultiheadAttention"),
    "nn.TransformerEncoderLayer": lambda: use_layer("TransformerEncoderLayer"),
    **{f"kernels.{name}": lambda name=name: use_kernel(name) for name in kernels.__all__},
}

CALLS |= {
    "nn.SampledSoftmaxLoss": use_loss,
    **{f"sampling.{name}": lambda name=name: use_sampler(name) for name in SAMPLERS},
    "coefficients.Gaussian": lambda: use_coefficient(lambda: coefficients.Gaussian(MAPS["Positive"]())),
    "coefficients.Indicator": lambda: use_coefficient(
        lambda: coefficients.Indicator(*torch.randn(2, 3, DIM), pair=(0, 1)).to("meta")
    ),
}

# Names that need no device, and those that read, with the reason. (A `ClusteredHybrid` reads where it has exact pairs
# or moving centres, and in `estimate` with a map per pair.)
READERS = {
    "AccuracyWarning": "a class of warnings",
    "FeatureMap": "abstract",
    "SummaryCall": "a record",
    "SummaryReport": "a record",
    "coefficients.Coefficient": "abstract",
    "sampling.Sampler": "abstract",
    "sampling.Samples": "a record",
    "load": "reads a file",
    "advise": "fits and measures",
    "advise_heads": "fits and measures",
    "advise_kernel": "fits and measures",
    "GaussianMixture": "fitted by k-means; its features are those of Hybrid",
    "Projections": "draws on the device of its generator, where a map is made or redrawn",
}
for module, (reason, names) in {
    "advice": ("fits and measures", "Advice Candidate advise advise_heads advise_kernel"),
    "catalogue": ("makes maps", "Named build label parse"),
    "distributed": (
        "agrees on calls between processes, by values",
        "RankError ShardedSoftmaxSampler Traffic attention redraw_ traffic",
    ),
    "fitting": (
        "sums of data, k-means and square roots of matrices",
        "Clusters DiagonalKind MatrixKind ResidualFit SecondMoments assign cluster_sizes fit_matrix fit_residuals "
        "heavy_keys kmeans largest_pairs matrix_from_centers moments_by_cluster pair_moments samples",
    ),
    "learn": (
        "NumPy at its boundary",
        "KernelClassifier KernelGaussianProcess KernelKMeans KernelPCA KernelRidge RandomFeatures load progress",
    ),
    "projections": ("draw ω, where a map is made or redrawn", "ProjectionKind Projections draw"),
    "theory": (
        "closed-form errors: series end by the size of their terms",
        "Moments Products Scaled angle angular_hybrid_log_mse angular_moments covariance_of_products "
        "exponential_log_mse gaussian_hybrid_log_mse hybrid_covariance log_corrected_bound log_limit_ratio "
        "log_max_relative_error log_max_relative_error_base log_paper_bound log_sphere_relative_error_angular "
        "log_sphere_relative_error_positive log_sphere_relative_error_trigonometric log_tight_bound log_w "
        "optimal_log_mse optimal_log_relative_mse pairwise_angle positive_log_mse scaled_sum trigonometric_log_mse",
    ),
    "integrations.transformers": (
        "layers of a model, whose attention is `hrf.attention`; masks and caches in lists, fitted maps",
        "DecoderReport LayerReport LinearCache Report SummarisedCache Support check check_decoder convert load_maps "
        "register save_maps",
    ),
}.items():
    READERS |= {f"{module}.{name}": reason for name in names.split()}
# Packages that are not in hrf.__all__.
OTHER_MODULES = ("advice", "integrations.transformers")


def public() -> set[str]:
    found = set()
    for name in (*hrf.__all__, *OTHER_MODULES):
        module = import_module(f"hrf.{name}") if name in OTHER_MODULES else getattr(hrf, name)
        if isinstance(module, ModuleType):
            found |= {f"{name}.{own}" for own in module.__all__ if callable(getattr(module, own))}
        else:
            found.add(name)
    return found


def test_every_public_name_is_called_or_may_read():
    assert not {*CALLS} & {*READERS}
    assert public() == {*CALLS, *READERS}


def test_a_new_public_name_has_to_be_entered(monkeypatch):
    for module in (hrf.nn, theory, hrf):
        with monkeypatch.context() as patch:
            patch.setattr(module, "brand_new", lambda x: float(x), raising=False)
            patch.setattr(module, "__all__", [*module.__all__, "brand_new"])
            assert len(public() - {*CALLS, *READERS}) == 1


@pytest.mark.parametrize("name", CALLS)
def test_no_call_reads_or_makes_a_tensor_on_the_host(name):
    use = CALLS[name]()
    with Host() as host:
        use()
    assert not host.found


@pytest.mark.parametrize(
    "name",
    [
        "Positive",
        "Trigonometric",
        "OptimalPositive",
        "DenseExponential",
        "AsymmetricExponential",
        "AttentionState",
    ],
)
def test_launches_of_kernels_read_nothing(name, monkeypatch):
    """What an accelerator runs around its kernels, which the meta device has not."""
    pytest.importorskip("triton", reason="Triton is not installed")
    maps, launched = import_module("hrf._attention.triton.maps"), []
    monkeypatch.setattr(map_kernels, "ON_CPU", True)
    monkeypatch.setattr(maps, "launch", lambda kernel, *_: launched.append(kernel))
    use = CALLS[name]()
    with Host() as host:
        use()
    assert launched
    assert not host.found


@pytest.mark.parametrize("is_causal", [False, True])
def test_packed_sequences_read_their_starts_alone(is_causal):
    """With starts on the CPU nothing of the device is read: the meta device would raise."""
    phi, starts = MAPS["Positive"](), torch.tensor([0, 3, 3, 12, 30])
    out = hrf.attention(
        *(u[:1] for u in (query(), query(), value())), phi, cu_seqlens=starts, is_causal=is_causal
    )
    assert out.is_meta
    assert out.shape == (1, 4, 30, WIDTH)


@pytest.mark.parametrize("is_causal", [False, True])
def test_packed_sequences_of_known_length_read_nothing(is_causal):
    """With the longest length the starts may be on the device, too."""
    phi, tokens = MAPS["Positive"](), [u[:1] for u in (query(), query(), value())]
    with Host() as host:
        out = hrf.attention(
            *tokens, phi, cu_seqlens=meta(5, dtype=torch.int32), max_seqlen=12, is_causal=is_causal
        )
    assert not host.found
    assert out.shape == (1, 4, 30, WIDTH)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("key_heads", [2, 4])
def test_packed_sequences_of_known_length_are_the_same(is_causal, key_heads):
    phi, starts = build("positive"), torch.tensor([0, 3, 3, 12, 30])
    tokens = [u.requires_grad_() for u in inputs(1, key_heads=key_heads, length=30)]
    found = []
    for longest in (None, 18, 25):
        out = hrf.attention(*tokens, phi, cu_seqlens=starts, max_seqlen=longest, is_causal=is_causal)
        found.append([out, *torch.autograd.grad(out.square().sum(), tokens)])
    for a, b, c in zip(*found, strict=True):
        torch.testing.assert_close(b, a)
        torch.testing.assert_close(c, a)
    nothing = [u[:, :, :0] for u in tokens]
    assert hrf.attention(*nothing, phi, cu_seqlens=starts[:1], max_seqlen=3).shape[2] == 0
    with pytest.raises(ValueError, match="max_seqlen is 17; expected at least 18"):
        hrf.attention(*tokens, phi, cu_seqlens=starts, max_seqlen=17, is_causal=is_causal)


@pytest.mark.parametrize(
    "name", ["clustered separable", "clustered shifted", "clustered paper", "angular hybrid"]
)
@pytest.mark.parametrize("is_causal", [False, True])
def test_paths_without_reads_give_the_same(name, is_causal, monkeypatch):
    """On an accelerator maps attend by their features, on a CPU by blocks of tokens with one code or cluster."""
    phi, found = build(name), []
    for on_cpu in (True, False):
        monkeypatch.setattr(dispatch, "_on_cpu", lambda _, on_cpu=on_cpu: on_cpu)
        qkv = [u.requires_grad_() for u in inputs(2, key_heads=2, length=23)]
        out = hrf.attention(*qkv, phi, is_causal=is_causal)
        found.append([out, *torch.autograd.grad(out.square().sum(), qkv)])
        assert (dispatch.engine_for(phi).name == "dense") is not on_cpu
    for a, b in zip(*found, strict=True):
        a, b = a.detach(), b.detach()
        # float64 through a few cancellations
        assert (a - b).abs().max() <= 1e-8 * a.abs().max().clamp(min=1)


class Reads(TorchDispatchMode):
    """Counts operations that an accelerator would have to be waited for."""

    found = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        waiting = {"_local_scalar_dense", "bincount", "masked_select", "nonzero", "repeat_interleave"}
        by_mask = func.overloadpacket.__name__ == "index" and any(
            u is not None and u.dtype == torch.bool for u in args[1]
        )
        self.found += by_mask or func.overloadpacket.__name__ in waiting
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("options", [{"exact_share": 0.3}, {"recenter": True}])
@pytest.mark.parametrize("base", ["separable", "shifted", "paper", "moments"])
def test_clusters_read_as_often_at_any_length(base, options, monkeypatch):
    monkeypatch.setattr(call, "_waits", lambda _: True)
    for name in ("ROWS_INFERENCE", "ROWS_FORWARD", "ROWS_BACKWARD", "CLUSTER_TOKENS", "PAIR_FLOATS"):
        monkeypatch.setattr(tuning, name, 100)
    monkeypatch.setattr(core, "serves", lambda *_: False)
    vectors = torch.randn(2, 300, DIM, generator=torch.Generator().manual_seed(0)) * 0.7
    phi = hrf.ClusteredHybrid.fit(*vectors, n_clusters=(4, 4), n_projections=8, base=base, seed=0, **options)
    found = []
    for length in (200, 900):
        tokens = [torch.randn(1, 2, length, DIM).requires_grad_() for _ in range(3)]
        with Reads() as forward:
            out = hrf.attention(*tokens, phi, scale=0.3)
        with Reads() as backward:
            out.sum().backward()
        found.append((forward.found, backward.found))
    assert found[0] == found[1]
    assert 0 < max(found[0]) <= 20


def test_the_meta_device_notices_a_read():
    with pytest.raises(RuntimeError, match="meta"):
        theory.positive_log_mse(query(), query(), 8, orthogonal=True)
    with Host() as host:
        torch.zeros(3).sum()
    assert host.found.total() == 2


@pytest.mark.parametrize("ignored", [0, 3, 7])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_loss_without_reads_is_the_loss(ignored, reduction, monkeypatch):
    """All negatives are drawn by one distribution, so the expectation is known: here every class is a negative."""
    hidden, weight = (torch.randn(n, DIM, dtype=torch.float64, requires_grad=True) for n in (7, 5))
    targets = torch.arange(7) % 5
    targets[:ignored] = -100
    sampler = sampling.UniformSampler(5)
    monkeypatch.setattr(
        sampler,
        "sample",
        lambda x, k, g=None: sampling.Samples(
            torch.arange(5).expand(len(x), 5), torch.zeros(len(x), 5).double()
        ),
    )
    loss = hrf.nn.SampledSoftmaxLoss(sampler, 5, reduction=reduction)
    found = []
    for looks in (True, False):
        monkeypatch.setattr("hrf.nn.can_look", lambda _, looks=looks: looks)
        out = loss(hidden, targets, weight)
        found.append((out, *torch.autograd.grad(out.sum(), [hidden, weight])))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)
    assert found[0][1].isfinite().all()


def test_a_setting_lets_the_device_assert(monkeypatch):
    called = []
    monkeypatch.setattr(torch, "_assert_async", lambda *arguments: called.append(arguments))
    x, phi = (
        torch.full((1, 1, 3, 4), torch.nan, device="meta"),
        hrf.Positive(4, n_projections=4, device="meta"),
    )
    for setting, expected in (("", False), ("1", True)):
        monkeypatch.setenv("HRF_ASSERT", setting)
        hrf.attention(x, x, x, phi)
        assert bool(called) is expected


MAKERS = {
    "Positive": SIZES,
    "Trigonometric": SIZES,
    "Exponential": {**SIZES, "matrix": torch.eye(DIM) + 0.1j, "query_shift": torch.ones(DIM)},
    "OptimalPositive": SIZES,
    "DenseExponential": SIZES,
    "AsymmetricExponential": {**SIZES, "matrix": 2 * torch.eye(DIM)},
    "AngularHybrid": BOTH,
    "GaussianHybrid": {**BOTH, "sigma": 1.0, "radius": 1.0},
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_maps_take_device_and_dtype(name, dtype):
    make = partial(getattr(hrf, name), DIM, **MAKERS[name], seed=0)
    plain, own, away = make(), make(dtype=dtype), make(dtype=dtype, device="meta")
    for u, other, moved in zip(plain.buffers(), own.buffers(), away.buffers(), strict=True):
        assert other.dtype == moved.dtype == dtype
        assert moved.is_meta
        eps = max(torch.finfo(v.dtype).eps for v in (u, other))
        assert (u.double() - other.double()).abs().max() <= eps * u.abs().max()
