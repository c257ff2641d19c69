"""Any call of summarised attention: exact attention without tolerance, the plain twin with one, the box in any case."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor

import hrf
from hrf._attention.summarised.engine import Compiled
from hrf._attention.summarised.plan import Heads
from hrf._attention.summarised.read import read
from properties.strategies import cases, seeds

DTYPES = torch.float64, torch.float32, torch.bfloat16, torch.float16
lengths = st.one_of(st.integers(0, 20), st.integers(20, 400))
powers = st.sampled_from([1, 2, 8, 32])


@dataclass(frozen=True)
class Shape:
    """Sizes and masks of a call, as numbers that shrink well; tensors come from the seed."""

    batch: int
    key_heads: int
    groups: int
    length: int
    keys: int
    dim: int
    width: int
    padding: float
    norm: float
    dtype: torch.dtype
    seed: int

    def tensors(self) -> list[Tensor]:
        """Return query, key and value; norms of rows are about `norm`."""
        g, heads = Generator().manual_seed(self.seed), self.key_heads * self.groups
        shapes = (heads, self.length, self.dim), (self.key_heads, self.keys, self.dim)
        q, k = (torch.randn(self.batch, *u, generator=g) * self.norm / self.dim**0.5 for u in shapes)
        v = torch.randn(self.batch, self.key_heads, self.keys, self.width, generator=g)
        return [u.to(self.dtype) for u in (q, k, v)]

    def ignored(self) -> Tensor:
        return torch.rand(self.batch, self.keys, generator=Generator().manual_seed(self.seed)) < self.padding

    def attend(self, method: hrf.SummarisedAttention) -> Tensor:
        return hrf.attention(*self.tensors(), method, key_padding_mask=self.ignored(), scale=1.0)

    def exact(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return exact attention in float64, and the least and the largest visible values; zeros without any key."""
        q, k, v = (u.double() for u in self.tensors())
        k, v = (u.repeat_interleave(self.groups, 1) for u in (k, v))
        seen = ~self.ignored()[:, None, None] & torch.ones(self.length, self.keys, dtype=torch.bool)
        none, hidden = ~seen.any(-1, keepdim=True), ~seen[..., None]
        weights = (q @ k.mT).masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num()
        each = v[:, :, None]
        low, high = each.masked_fill(hidden, torch.inf), each.masked_fill(hidden, -torch.inf)
        edges = (low.amin(-2), high.amax(-2)) if self.keys else (weights @ v, weights @ v)
        return weights @ v, *(u.masked_fill(none, 0) for u in edges)

    def rounding(self) -> float:
        """Bound the error of an output: of logits up to norm², in the precision of the computation, and at the end."""
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        terms = (self.dim + max(1, self.keys) ** 0.5) * (1 + 4 * self.norm**2)  # norms of rows vary by two
        values = max((float(u.abs().max()) for u in self.tensors()[2:] if u.numel()), default=0.0)
        return 4 * values * (torch.finfo(wide).eps * terms + torch.finfo(self.dtype).eps)


def shapes(
    norms: tuple[float, ...],
    dtypes: tuple[torch.dtype, ...] = DTYPES,
) -> st.SearchStrategy[Shape]:
    return st.builds(
        Shape,
        batch=st.sampled_from([0, 1, 2]),
        key_heads=st.sampled_from([1, 2]),
        groups=st.sampled_from([1, 2, 3]),
        length=lengths,
        keys=lengths,
        dim=st.sampled_from([1, 5, 8, 33]),
        width=st.sampled_from([1, 8, 20]),
        padding=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
        norm=st.sampled_from(norms),
        dtype=st.sampled_from(dtypes),
        seed=seeds,
    )


def method(n_groups: int, n_clusters: int, tolerance: float) -> hrf.SummarisedAttention:
    return hrf.SummarisedAttention(n_groups, n_clusters, tolerance=tolerance)


@given(shapes((0.0, 1.0, 3.0, 10.0)), powers, powers)
@cases(8)
def test_without_tolerance_it_is_exact_attention(shape, n_groups, n_clusters):
    received = shape.attend(method(n_groups, n_clusters, 0.0))
    assert received.dtype == shape.dtype
    expected = shape.exact()[0]
    assert received.shape == expected.shape
    assert ((received.double() - expected).abs() <= shape.rounding()).all()


@given(shapes((0.0, 1.0, 10.0, 100.0)), powers, powers, st.sampled_from([0.1, 1.0, 10.0, math.inf]))
@cases(8)
def test_outputs_are_finite_and_in_the_box_of_visible_values(shape, n_groups, n_clusters, tolerance):
    received = shape.attend(method(n_groups, n_clusters, tolerance)).double()
    _, low, high = shape.exact()
    # A mean of values lies in the box up to the rounding of its weights' sum.
    slack = shape.rounding() if shape.norm <= 10 else 1e-2
    assert received.isfinite().all()
    assert (received >= low - slack).all()
    assert (received <= high + slack).all()


@given(
    shapes((0.0, 1.0, 3.0), (torch.float32, torch.float64)),
    powers,
    powers,
    st.sampled_from([0.0, 0.3, 1.0, math.inf]),
)
@cases(12)
def test_the_core_is_the_twin_with_its_plan(shape, n_groups, n_clusters, tolerance):
    shape = replace(
        shape, batch=1, groups=1, length=max(shape.length, n_groups), keys=max(shape.keys, n_clusters)
    )
    real = torch.ones(shape.key_heads, shape.keys, dtype=torch.bool)
    queries = torch.ones(shape.key_heads, shape.length, dtype=torch.bool)
    keys = real & ~shape.ignored()
    if int(keys.sum(-1).min()) < n_clusters:
        keys = real
    heads = Heads(*(u[0] for u in shape.tensors()), queries, keys)
    found = Compiled(heads, 1.0, n_groups, n_clusters, torch.full((shape.key_heads,), tolerance), keep=True)
    leaves = [u.double().requires_grad_() for u in heads[:3]]
    expected = read(Heads(*leaves, *heads[3:]), found.plan())
    assert ((found.out - expected).abs() <= shape.rounding()).all()
    grad = torch.ones_like(found.out)
    wanted = torch.autograd.grad(expected, leaves, grad.double(), allow_unused=True, materialize_grads=True)
    for got, want in zip(found.gradients(found.out, grad), wanted, strict=True):
        # Each is a sum over all queries or keys, of products of rounded weights with numbers up to the norm.
        slack = (shape.length + shape.keys) * (1 + shape.norm) * shape.rounding()
        assert ((got - want).abs() <= slack * (1 + want.abs().max())).all()
