"""Summarised attention of a call: from inputs to heads of similar length, and back; by the compiled core on a CPU.

The core makes a plan of its own, and the output of ``read.py`` for it. On an accelerator attention is exact.
"""

from __future__ import annotations

import math
from collections import defaultdict
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from hrf import _core as core
from hrf._attention.call import recompute
from hrf._attention.inputs import Inputs
from hrf._attention.summarised.blocks import BASE, Choices, block_levels
from hrf._attention.summarised.method import SHORTEST, SummarisedAttention, SummaryCall, SummaryReport
from hrf._attention.summarised.plan import Heads, Plan, log_limits, opening_limits, parts_of
from hrf._attention.summarised.prediction import causal_error, predicted_error
from hrf._attention.summarised.read import make_plan, read
from hrf._attention.summarised.recursion import CausalRows, causal_sums
from hrf.numerics import can_look, check_finite

__all__ = ["Compiled", "short_causal", "summarised_attention"]


class Compiled:
    """Outputs of N heads by the compiled core, and the plan they were computed with.

    Args:
        heads: queries, keys and values.
        root: √scale, a factor of queries and keys.
        n_groups: of queries, a power of two.
        n_clusters: of keys, a power of two.
        tolerance: τ per head, ``(N,)``.
        keep: whether `plan` will be called.

    Attributes:
        out: outputs, ``(N, L, d_v)``; zeros for padding.
        share: share of exact pairs of each head, ``(N,)``.
    """

    @torch.no_grad()
    def __init__(
        self,
        heads: Heads,
        root: float,
        n_groups: int,
        n_clusters: int,
        tolerance: Tensor,
        *,
        keep: bool = False,
    ) -> None:
        (n, length, dim), (n_keys, width) = heads.x.shape, heads.v.shape[1:]
        dtype = heads.x.dtype
        counts, key_counts = heads.queries.sum(-1), heads.keys.sum(-1)
        integers, places = partial(torch.empty, dtype=torch.long), partial(torch.empty, dtype=torch.int32)
        self.order, self.key_order = places(n, length), places(n, n_keys)
        self.bounds, self.key_bounds = integers(n, n_groups + 1), integers(n, n_clusters + 1)
        self.sizes, self.openings, met = (integers(n, n_groups) for _ in range(3))
        limits = log_limits(tolerance, key_counts) / math.log(2), opening_limits(tolerance)
        sizes = length, n_keys, dim, width, n_groups.bit_length() - 1, n_clusters.bit_length() - 1
        self._inputs: tuple[Any, ...] = (
            *sizes,
            *(t.detach().contiguous() for t in heads),
            *(limit.to(dtype).contiguous() for limit in limits),
        )
        # Outputs of all queries are written; those of padding stay.
        fresh = heads.x.new_empty if bool((counts == length).all()) else heads.x.new_zeros
        self.out = fresh(n, length, width)
        self._rest: tuple[Any, ...] = (
            *(fresh(n, length), self.order, self.key_order, self.bounds, self.key_bounds),
            *(self.sizes, self.openings, met, float(root)),
            *(n, keep, torch.get_num_threads(), dtype == torch.float64),
        )
        handle = core.run("summarised_forward", *self._inputs, self.out, *self._rest)
        self._exact, self._opened = core.found(handle)
        pairs = (self.sizes * self.bounds.diff() + met).sum(-1)
        self.share = pairs / (counts * key_counts).clamp(min=1)

    def gradients(self, out: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of queries, keys and values with the plan held fixed; ``grad`` is the one of ``out``."""
        found = tuple(torch.zeros_like(t) for t in self._inputs[6:9])
        starts = (F.pad(u.flatten().cumsum(0), (1, 0)) for u in (self.sizes, self.openings))
        own = self._exact, self._opened, *starts, grad.contiguous(), *found
        core.run("summarised_backward", *self._inputs, out, *self._rest, *own)
        return found

    def plan(self) -> Plan:
        """Return the plan."""
        groups, clusters = parts_of(self.order, self.bounds), parts_of(self.key_order, self.key_bounds)
        sizes = self.sizes.flatten()
        starts = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        head = torch.arange(len(self.sizes)).repeat_interleave(self.sizes.sum(-1))
        # Rows of all heads one after the other, so that one search finds their clusters.
        rows, rows_of = self.key_order.shape[1] + 1, self._exact.long()
        firsts = (self.key_bounds[:, :-1] + rows * torch.arange(len(self.sizes))[:, None]).flatten()
        found = torch.searchsorted(firsts, rows_of + rows * head, right=True) - 1
        cluster, first = found % (self.key_bounds.shape[1] - 1), self.key_bounds[:, :-1].flatten()[found]
        exact = cluster * clusters.tokens.shape[-1] + rows_of - first
        return Plan(groups, clusters, starts, exact, self._opened_places(groups.tokens.shape))

    def _opened_places(self, shape: torch.Size) -> Tensor:
        """Return `Plan.opened`, from rows of queries and clusters."""
        row, cluster = self._opened.long().unbind(-1)
        group = torch.arange(self.openings.numel()).repeat_interleave(self.openings.flatten())
        first = self.bounds[:, :-1].flatten()[group]
        return torch.stack([group * shape[2] + row - first, cluster], -1)


_WIDE = torch.float32, torch.float64
FEW = 16  # new queries after longer keys that are computed exactly without a cache
ROUNDS = 6  # of the search for a tolerance with a target error
LARGEST = (
    1e12  # of the norms of a head and of their product: squares of sums of products of these fit float32
)


class _Account(NamedTuple):
    """Tolerance, exact share and predicted error of the heads of some batch items, ``(b, H)`` each."""

    tolerance: Tensor
    exact_share: Tensor
    predicted_error: Tensor


def summarised_attention(inputs: Inputs, method: SummarisedAttention, *, is_causal: bool = False) -> Tensor:
    """Return ``(B, H, L, d_v)``. Items of equal numbers of groups and clusters go together, the others apart."""
    if is_causal:
        return _causal(inputs, method)
    if not inputs.query.is_cpu:
        return _elsewhere(inputs, method.report, is_causal=False)
    repeated = (inputs.key, inputs.value)
    key, value = (u.repeat_interleave(inputs.groups, 1) if inputs.groups > 1 else u for u in repeated)
    batch, device = len(inputs.query), inputs.query.device
    queries = _present(inputs.present, batch, inputs.query.shape[2], device)
    keys = _present(None if inputs.ignore is None else ~inputs.ignore, batch, key.shape[2], device)
    items: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i, counts in enumerate(zip(queries.sum(-1).tolist(), keys.sum(-1).tolist(), strict=True)):
        items[method.sizes(*counts)].append(i)
    outputs, accounts = [], []
    for sizes, own in items.items():
        part = [u if len(own) == batch else u[own] for u in (inputs.query, key, value, queries, keys)]
        heads = _heads(inputs.dtype, *part)
        if _is_huge(heads, inputs.root) or sizes == (0, 0):  # which refuses what is not finite
            output, account = _exact(heads.scaled(inputs.root))
        else:
            output, account = _summarised(heads, inputs.root, *sizes, method)
        outputs.append(output.unflatten(0, (len(own), -1)))
        accounts.append(_Account(*(u.unflatten(0, (len(own), -1)) for u in account)))
    order = torch.tensor([i for own in items.values() for i in own], device=device).argsort()
    if method.report is not None and batch:
        sizes_of = torch.tensor([sizes for sizes, own in items.items() for _ in own], device=device)[order]
        parts = (torch.cat(u)[order] for u in zip(*accounts, strict=True))
        method.report.add(SummaryCall(*sizes_of.unbind(-1), *parts))
    if not batch:
        return inputs.query.new_zeros(*inputs.query.shape[:3], value.shape[-1], dtype=inputs.dtype)
    return torch.cat(outputs)[order] if len(outputs) > 1 else outputs[0]


def short_causal(
    query: Tensor, key: Tensor, value: Tensor, method: SummarisedAttention, scale: float | None
) -> Tensor | None:
    """Attend exactly to a short sequence without masks, before its checks, which may take as long; `None` elsewhere."""
    plain = isinstance(query, Tensor) and query.is_cpu and query.ndim == 4 and query.shape == key.shape
    if not (plain and 0 < query.shape[2] <= min(SHORTEST, BASE) and query.shape[:3] == value.shape[:3]):
        return None
    if not (query.numel() and query.dtype == key.dtype == value.dtype and query.dtype in _WIDE):
        return None
    if method.report is not None or method.rotary is not None or torch.is_autocast_enabled("cpu"):
        return None
    if (
        method.n_groups is not None
        or method.n_clusters is not None
        or not (scale is None or 0 < scale < math.inf)
    ):
        return None
    output = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
    flat = output.detach().reshape(-1)
    return output if math.isfinite(float(torch.dot(flat, flat))) else None


def _causal(inputs: Inputs, method: SummarisedAttention) -> Tensor:
    """Return ``(B, H, L, d_v)`` for queries that see the keys up to their own."""
    batch, _, length, _ = inputs.query.shape
    n_keys = inputs.key.shape[2]
    if length > n_keys:
        raise ValueError(
            f"causal attention got {length} queries and {n_keys} keys; expected a key for each query, after those of "
            "earlier queries"
        )
    if method.n_groups is not None or method.n_clusters is not None:
        raise ValueError(
            f"is_causal came with {method}; expected n_groups and n_clusters to be None: causal attention chooses them "
            "by the size of each block"
        )
    if not batch or not length:
        return inputs.query.new_zeros(*inputs.query.shape[:3], inputs.value.shape[-1], dtype=inputs.dtype)
    if not inputs.query.is_cpu:
        return _elsewhere(inputs, method.report, is_causal=True)
    angles = None if method.rotary is None else method.angles(inputs.query.shape[-1])
    if method.report is None and (n_keys <= min(SHORTEST, BASE) or length <= min(FEW, n_keys - 1)):
        return _exactly(inputs, is_causal=True)
    real = _present(None if inputs.ignore is None else ~inputs.ignore, batch, n_keys, inputs.key.device)
    own = real[:, n_keys - length :]
    seen = own if inputs.present is None else own & inputs.present
    x, y, v = (
        _without_padding(u.to(inputs.dtype), mask)
        for u, mask in zip(inputs[:3], (seen, real, real), strict=True)
    )
    rows, order = _without_holes(x, y, v, own, real)
    flat = Heads(rows.x.flatten(0, 1), rows.y.flatten(0, 1), rows.v, own, real)
    # One diagonal block as long as all keys is exact attention.
    whole = 1 << (n_keys - 1).bit_length()
    huge = _is_huge(flat, inputs.root) and whole > BASE
    base = whole if method.tolerance == 0 or (huge and method.target_error is not None) else BASE
    choices = Choices(inputs.root, math.inf, angles, base)
    if method.target_error is None:
        choices = choices._replace(tolerance=float(method.tolerance))
    else:
        choices = _causal_tolerance(rows, choices, method.target_error)
    output, share, measured = _strictly(rows, choices, whole if huge else 0, method.report is not None)
    if method.report is not None and share is not None:
        blocks = (rows.keys > choices.base) << block_levels(max(whole // 2, 1))
        tolerance, error = (
            torch.full_like(share, choices.tolerance),
            causal_error(rows, measured, output.detach()),
        )
        method.report.add(SummaryCall(blocks, blocks, tolerance, share, error))
    if order is not None:
        output = torch.zeros_like(output).scatter(2, order[:, None, :, None].expand_as(output), output)
    return output if bool(seen.all()) else output.masked_fill(~seen[:, None, :, None], 0)


def _elsewhere(inputs: Inputs, report: SummaryReport | None, *, is_causal: bool) -> Tensor:
    """Attend exactly on an accelerator: faster than the twins of the core, and nothing is read on the host."""
    (batch, heads), device = inputs.query.shape[:2], inputs.query.device
    if report is not None and batch:
        sizes = torch.zeros(batch, dtype=torch.long, device=device)
        nothing = torch.zeros(batch, heads, dtype=inputs.dtype, device=device)
        report.add(SummaryCall(sizes, sizes, nothing, nothing + 1, nothing))
    if not (inputs.query.numel() and inputs.key.numel()):
        width = inputs.value.shape[-1]
        return inputs.query.new_zeros(*inputs.query.shape[:3], width, dtype=inputs.dtype)
    return _exactly(inputs, is_causal=is_causal)


def _exactly(inputs: Inputs, *, is_causal: bool) -> Tensor:
    """Attend exactly: few tokens, few queries after many keys, such as a step of decoding, or on an accelerator."""
    x, y, v = (u.to(inputs.dtype) for u in inputs[:3])
    length, n_keys = x.shape[2], y.shape[2]
    mask, own = None, None
    if inputs.present is not None:  # gradients meet padding, too
        x = _without_padding(x, inputs.present)
    if inputs.ignore is not None or (is_causal and 1 < length < n_keys):
        order = torch.ones(length, n_keys, dtype=torch.bool, device=x.device)
        real = _present(None if inputs.ignore is None else ~inputs.ignore, len(x), n_keys, x.device)
        if is_causal:
            order, own = order.tril(n_keys - length), real[:, n_keys - length :]
        else:
            own = real.any(-1, keepdim=True).expand(-1, length)
        y, v = (_without_padding(u, real) for u in (y, v))
        # A row without key would be NaN; padding becomes zeros below.
        mask = ((order & real[:, None]) | ~own[..., None])[:, None]
    output = F.scaled_dot_product_attention(
        x,
        y,
        v,
        attn_mask=mask,
        is_causal=is_causal and mask is None and length == n_keys,
        scale=inputs.root * inputs.root,
        enable_gqa=x.shape[1] > y.shape[1],
    )
    if can_look(output) and not math.isfinite(float(output.detach().sum())):
        for name, u in (("query", x), ("key", y)):
            check_finite(torch.linalg.vector_norm(u), u, name)
    if inputs.present is not None:
        own = inputs.present if own is None else own & inputs.present
    return output if own is None else output.masked_fill(~own[:, None, :, None], 0)


def _strictly(
    rows: CausalRows, choices: Choices, whole: int, share: bool
) -> tuple[Tensor, Tensor | None, Choices]:
    """Return outputs, the share of exact pairs if it is wanted, and choices to measure errors with.

    Where statistics would overflow, ``whole`` is the length of a block that makes attention exact, else 0. Then queries
    from the first such token on are computed exactly, and these tokens are hidden from the others.
    """
    if not whole:
        return *causal_sums(rows, choices, share=share)[:2], choices
    queries, keys = _before_huge(rows, choices.root)
    x, y = rows.x.masked_fill(~queries[:, None, :, None], 0), rows.y.masked_fill(~keys[:, None, :, None], 0)
    early = causal_sums(rows._replace(x=x, y=y), choices, share=share)
    exact = choices._replace(base=whole)
    output = early.output.where(queries[:, None, :, None], causal_sums(rows, exact).output)
    return output, early.share, exact


@torch.no_grad()
def _before_huge(rows: CausalRows, root: float) -> tuple[Tensor, Tensor]:
    """Return which queries ``(B, L)`` and keys ``(B, S)`` come before norms so far, or their product, are huge."""
    norms, of_keys = (u.double().square().sum(-1).cumsum(-1).sqrt() * root for u in rows[:2])
    per_head = of_keys.repeat_interleave(norms.shape[1] // of_keys.shape[1], 1)
    # The key of the query at place i of an item is at place i + ahead.
    ahead = (rows.first_key + rows.keys - rows.queries - rows.first_query).to(norms.device)[:, None]
    place = (torch.arange(norms.shape[2], device=norms.device) + ahead).clamp(0, of_keys.shape[2] - 1)
    own = per_head.gather(2, place[:, None].expand_as(norms))
    queries = (torch.maximum(torch.maximum(norms, own), norms * own) <= LARGEST).all(1)
    places = torch.arange(of_keys.shape[2], device=norms.device)
    return queries, (places < ahead + queries.sum(-1, keepdim=True)) & (of_keys <= LARGEST).all(1)


def _without_holes(
    x: Tensor, y: Tensor, v: Tensor, own: Tensor, real: Tensor
) -> tuple[CausalRows, Tensor | None]:
    """Return rows whose real tokens stand side by side, and the order of the queries, if they had to be moved.

    ``own (B, L)`` and ``real (B, S)`` say which queries and keys are no padding.
    """
    counts = own.sum(-1), real.sum(-1)
    firsts, order = tuple(mask.to(torch.uint8).argmax(-1) for mask in (own, real)), None
    last = real.shape[1] - real.flip(-1).to(torch.uint8).argmax(-1)
    if bool((real.any(-1) & (last - firsts[1] != counts[1])).any()):
        order, key_order = ((~mask).to(torch.uint8).argsort(dim=-1, stable=True) for mask in (own, real))
        x, y, v = (
            u.gather(2, index[:, None, :, None].expand_as(u))
            for u, index in ((x, order), (y, key_order), (v, key_order))
        )
        firsts = tuple(torch.zeros_like(u) for u in firsts)
    first, first_key, n, n_keys = (u.cpu() for u in (*firsts, *counts))
    return CausalRows(x, y, v, first, n, first_key, n_keys), order


@torch.no_grad()
def _causal_tolerance(rows: CausalRows, choices: Choices, target: float) -> Choices:
    """Search the largest τ with which no head's error, measured on some queries, is above a target."""
    low, high, tolerance = 0.0, math.inf, 1.0
    for _ in range(ROUNDS):
        now = choices._replace(tolerance=tolerance)
        output = causal_sums(rows, now).output
        error = float(causal_error(rows, now, output).max())
        low, high = (tolerance, high) if error <= target else (low, tolerance)
        step = min(max(target / max(error, target / 64), 1 / 16), 16.0)
        outside = tolerance * (step if error <= target else step / 2)
        tolerance = math.sqrt(low * high) if low > 0 and high < math.inf else outside
    base = choices.base if low else 1 << (rows.y.shape[2] - 1).bit_length()
    return choices._replace(tolerance=low, base=base)


def _present(mask: Tensor | None, batch: int, length: int, device: torch.device) -> Tensor:
    return torch.ones(batch, length, dtype=torch.bool, device=device) if mask is None else mask


def _heads(
    dtype: torch.dtype, query: Tensor, key: Tensor, value: Tensor, queries: Tensor, keys: Tensor
) -> Heads:
    """Put heads and batch items in one axis; padding becomes zeros, so that its content cannot matter."""
    n = query.shape[1]
    x, y, v = (
        _without_padding(u.to(dtype), real).flatten(0, 1)
        for u, real in ((query, queries), (key, keys), (value, keys))
    )
    return Heads(x, y, v, queries.repeat_interleave(n, 0), keys.repeat_interleave(n, 0))


def _without_padding(u: Tensor, real: Tensor) -> Tensor:
    return u if can_look(real) and real.all() else u.masked_fill(~real[:, None, :, None], 0)


def _is_huge(heads: Heads, root: float) -> bool:
    """Whether statistics of the queries and keys of some head would overflow; refuse values that are not finite."""
    norms = []
    for name, u in (("query", heads.x), ("key", heads.y)):
        norms.append(torch.linalg.vector_norm(u.detach(), dim=(1, 2)) * root)
        check_finite(norms[-1], u, name)
    product = norms[0] * norms[1].repeat_interleave(len(norms[0]) // max(len(norms[1]), 1))  # grouped queries
    check_finite(product, product, "the product of the norms of query and key")
    return bool((torch.cat([*norms, product]) > LARGEST).any())


def _exact(heads: Heads) -> tuple[Tensor, _Account]:
    """Attend exactly: the items are too short for summaries."""
    seen = heads.keys[:, None].expand(-1, heads.x.shape[1], -1)
    # A row without key would be NaN, and its zeros come from the mask below.
    some = seen | ~seen.any(-1, keepdim=True)
    output = F.scaled_dot_product_attention(
        *heads[:3], attn_mask=None if bool(seen.all()) else some, scale=1.0
    )
    output = output * (heads.queries & heads.keys.any(-1, keepdim=True))[..., None]
    nothing = torch.zeros(len(output), dtype=output.dtype, device=output.device)
    return output, _Account(nothing, nothing + 1, nothing)


def _summarised(
    heads: Heads, root: float, n_groups: int, n_clusters: int, method: SummarisedAttention
) -> tuple[Tensor, _Account]:
    if method.target_error is None:
        tolerance = heads.x.new_full((len(heads.x),), float(method.tolerance))
    else:
        tolerance = _tolerance(heads, root, n_groups, n_clusters, method.target_error)
    traced = torch.is_grad_enabled() and any(t.requires_grad for t in heads[:3])
    keep = traced or method.report is not None
    if core.serves(*heads[:3]):
        found = Compiled(heads, root, n_groups, n_clusters, tolerance, keep=keep)
        share, plan = found.share, None if method.report is None else found.plan()
        output = _CoreGradients.apply(found, *heads[:3]) if traced else found.out
    else:
        scaled = heads.scaled(root)
        plan = make_plan(scaled, n_groups, n_clusters, tolerance)
        output, share = _with_gradients(scaled, plan) if traced else read(scaled, plan), _share(plan)
    error = tolerance
    if method.report is not None:
        assert plan is not None
        error = predicted_error(heads.scaled(root), plan, output.detach())
    return output, _Account(tolerance, share, error)


class _CoreGradients(torch.autograd.Function):
    """The output of the core, with the gradients of the core."""

    @staticmethod
    def forward(ctx: Any, found: Compiled, *inputs: Tensor) -> Tensor:
        out = found.out
        del found.out  # a tensor that its own node holds would never be freed
        ctx.save_for_backward(out, *inputs)
        ctx.found = found
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        out, *_ = ctx.saved_tensors  # says if one of them was changed in place
        return None, *ctx.found.gradients(out, grad)


def _attend(
    heads: Heads, scaled: Heads, root: float, n_groups: int, n_clusters: int, tolerance: Tensor
) -> tuple[Tensor, Plan]:
    """Return outputs and the plan."""
    if core.serves(*heads[:3]):
        found = Compiled(heads, root, n_groups, n_clusters, tolerance, keep=True)
        return found.out, found.plan()
    plan = make_plan(scaled, n_groups, n_clusters, tolerance)
    return read(scaled, plan), plan


@torch.no_grad()
def _tolerance(heads: Heads, root: float, n_groups: int, n_clusters: int, target: float) -> Tensor:
    """Search the largest τ of each head whose predicted error is at most a target, ``(N,)``; 0 is exact attention."""
    scaled = heads.scaled(root)
    tolerance = scaled.x.new_ones(len(scaled.x))
    good, bad = torch.zeros_like(tolerance), torch.full_like(tolerance, torch.inf)  # best and worst so far
    for _ in range(ROUNDS):
        output, plan = _attend(heads, scaled, root, n_groups, n_clusters, tolerance)
        error = predicted_error(scaled, plan, output)
        fits = error <= target
        good, bad = tolerance.where(fits, good), bad.where(fits, tolerance)
        # Errors grow more slowly than the tolerance.
        step = (target / error.clamp(min=target / 64)).clamp(1 / 16, 16)
        outside = tolerance * step.where(fits, step / 2)
        tolerance = (good * bad).sqrt().where((good > 0) & (bad < torch.inf), outside)
    return good


def _with_gradients(heads: Heads, plan: Plan) -> Tensor:
    """Return `read`, which the backward pass runs again."""
    return recompute(lambda x, y, v: (read(heads._replace(x=x, y=y, v=v), plan),), *heads[:3], learned=())[0]


def _share(plan: Plan) -> Tensor:
    """Return the share of exact pairs of each head, ``(N,)``."""
    sizes = plan.groups.filled.sum(-1)  # (N, G)
    pairs = (plan.starts.diff().reshape(sizes.shape) * sizes).sum(-1)
    head = plan.opened[:, 0] // plan.groups.tokens[0].numel()
    pairs = pairs.index_add(0, head, plan.unmet(slice(None)).sum(-1))
    return pairs / (sizes.sum(-1) * plan.clusters.filled.sum((1, 2)))
