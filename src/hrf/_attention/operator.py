"""Attention as one operator of PyTorch, for compiled graphs: engines are loops over blocks that no compiler follows.

Uncompiled code never comes here. The operator takes tensors and numbers only, so the map travels as a handle
(``hrf/registry.py``), and its tensors travel along for autograd to see. The backward pass is an operator, too, and runs
the forward pass again: what that keeps for gradients differs between engines, and a graph needs a fixed set of tensors.

Summarised attention is an operator of its own. Its choices are numbers, so that a graph with it can be exported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from hrf._attention.denominator import Denominator, Rule
from hrf._attention.summarised.method import SummarisedAttention, SummaryReport
from hrf.features.base import FeatureMap
from hrf.registry import object_of

__all__ = [
    "MapSource",
    "Operands",
    "call_operator",
    "call_summarised",
    "implemented_by",
    "tensors_of",
    "uncompiled",
]

P = ParamSpec("P")
R = TypeVar("R")
Function = TypeVar("Function", bound=Callable[..., Tensor])

_ATTENTION: list[Callable[..., Tensor]] = []


def implemented_by(attention: Function) -> Function:
    """Let the operator call a function, `hrf.attention`, when a graph runs."""
    _ATTENTION[:] = [attention]
    return attention


@runtime_checkable
class MapSource(Protocol):
    """Object that makes maps when a graph runs, since a graph that is being compiled cannot."""

    def map_for(self, layer: int, query: Tensor) -> FeatureMap:
        """Return the map of a layer for these queries."""
        ...


class Operands(NamedTuple):
    """Operands of the operator, in its order; `hrf.attention` has the same arguments.

    Attributes:
        query: ``(..., H, L, d)``.
        key: ``(..., H_kv, S, d)``.
        value: ``(..., H_kv, S, d_v)``.
        source: handle of the map or of its `MapSource`.
        learned: tensors of the map that want gradients.
        constants: all other tensors of the map; a change of them before the backward pass is an error.
        attn_mask: or ``None``.
        key_padding_mask: or ``None``.
        cu_seqlens: or ``None``.
        counts: handle of a `Denominator` that counts, or ``None``.
        rule: of small denominators.
        layer: for a `MapSource`.
        is_causal: flag of `hrf.attention`.
        fixed_centres: whether moving centres of the map stay where they were fitted.
        scale: or ``None``.
        max_seqlen: or ``None``.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    source: Tensor
    learned: Sequence[Tensor] = ()
    constants: Sequence[Tensor] = ()
    attn_mask: Tensor | None = None
    key_padding_mask: Tensor | None = None
    cu_seqlens: Tensor | None = None
    counts: Tensor | None = None
    rule: Rule = "clamp"
    layer: int = 0
    is_causal: bool = False
    fixed_centres: bool = False
    scale: float | None = None
    max_seqlen: int | None = None

    def map(self) -> FeatureMap:
        """Return the map."""
        owner = object_of(self.source)
        phi = owner.map_for(self.layer, self.query) if isinstance(owner, MapSource) else owner
        assert isinstance(phi, FeatureMap)
        return phi.with_fixed_centres() if self.fixed_centres else phi

    def run(self, rule: Denominator) -> Tensor:
        """Attend."""
        return _ATTENTION[0](
            self.query,
            self.key,
            self.value,
            self.map(),
            denominator=rule,
            attn_mask=self.attn_mask,
            is_causal=self.is_causal,
            key_padding_mask=self.key_padding_mask,
            scale=self.scale,
            cu_seqlens=self.cu_seqlens,
            max_seqlen=self.max_seqlen,
        )


_OPERANDS = (
    "Tensor query, Tensor key, Tensor value, Tensor source, Tensor[] learned, Tensor[] constants, Tensor? attn_mask, "
    "Tensor? key_padding_mask, Tensor? cu_seqlens, Tensor? counts, str rule, int layer, bool is_causal, "
    "bool fixed_centres, float? scale, int? max_seqlen"
)
torch.library.define("hrf::attention", f"({_OPERANDS}) -> Tensor", tags=torch.Tag.pt2_compliant_tag)
torch.library.define(
    "hrf::attention_gradients",
    f"(Tensor grad, bool[] wanted, {_OPERANDS}) -> Tensor[]",
    tags=torch.Tag.pt2_compliant_tag,
)


@torch.library.impl("hrf::attention", "default")
def _attention(*args: Any) -> Tensor:
    operands = Operands(*args)
    rule = None if operands.counts is None else object_of(operands.counts)
    with torch.no_grad():
        return operands.run(
            rule if isinstance(rule, Denominator) else Denominator(operands.rule)
        ).contiguous()


def _attention_shape(*args: Any) -> Tensor:
    query, _, value, *_ = args
    return query.new_empty((*query.shape[:-1], value.shape[-1]))


@torch.library.impl("hrf::attention_gradients", "default")
def _gradients(grad: Tensor, wanted: list[bool], *args: Any) -> list[Tensor]:
    operands = Operands(*args)
    leaves = [t.detach().requires_grad_(w) for t, w in zip(operands[:3], wanted, strict=True)]
    operands = operands._replace(query=leaves[0], key=leaves[1], value=leaves[2])
    with torch.enable_grad():
        output = operands.run(Denominator(operands.rule))
    phi = operands.map()
    inputs = [t for t in leaves if t.requires_grad] + [t for t in _tensors(phi) if t.requires_grad]
    grads = torch.autograd.grad(output, inputs, grad, allow_unused=True, materialize_grads=True)
    return [g.contiguous() for g in grads]


def _gradient_shapes(grad: Tensor, wanted: list[bool], *args: Any) -> list[Tensor]:
    operands = Operands(*args)
    of = [t for t, w in zip(operands[:3], wanted, strict=True) if w] + list(operands.learned)
    return [t.new_empty(t.shape) for t in of]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    operands = Operands(*inputs)
    ctx.sizes = len(operands.learned), len(operands.constants)
    ctx.wanted = [t.requires_grad for t in operands[:3]]
    ctx.numbers = operands[10:]
    ctx.save_for_backward(*operands[:4], *operands.learned, *operands.constants, *operands[6:10])


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    saved, (n, m) = ctx.saved_tensors, ctx.sizes
    learned, constants, optional = saved[4 : 4 + n], saved[4 + n : 4 + n + m], saved[4 + n + m :]
    found = iter(
        torch.ops.hrf.attention_gradients(
            grad, ctx.wanted, *saved[:4], list(learned), list(constants), *optional, *ctx.numbers
        )
    )
    first = [next(found) if wanted else None for wanted in ctx.wanted]
    return *first, None, list(found), [None] * m, *[None] * 10


torch.library.register_fake("hrf::attention", _attention_shape)
torch.library.register_fake("hrf::attention_gradients", _gradient_shapes)
torch.library.register_autograd("hrf::attention", _backward, setup_context=_save)


def _tensors(feature_map: FeatureMap) -> list[Tensor]:
    return [*feature_map.parameters(), *feature_map.buffers()]


def tensors_of(feature_map: FeatureMap) -> tuple[list[Tensor], list[Tensor]]:
    """Return the tensors of a map that want gradients, and all others: operands beside its handle."""
    tensors = _tensors(feature_map)
    return [t for t in tensors if t.requires_grad], [t for t in tensors if not t.requires_grad]


def call_operator(operands: Operands) -> Tensor:
    """Put attention into a graph that is being compiled."""
    return torch.ops.hrf.attention(*operands)


_SUMMARISED = (
    "Tensor query, Tensor key, Tensor value, Tensor? attn_mask, Tensor? key_padding_mask, Tensor? query_padding_mask, "
    "Tensor? cu_seqlens, Tensor? report, Tensor? rotary, bool is_causal, float? scale, int? n_groups, int? n_clusters, "
    "float? tolerance, float? target_error"
)
torch.library.define(
    "hrf::summarised_attention", f"({_SUMMARISED}) -> Tensor", tags=torch.Tag.pt2_compliant_tag
)
torch.library.define(
    "hrf::summarised_attention_gradients",
    f"(Tensor grad, bool[] wanted, {_SUMMARISED}) -> Tensor[]",
    tags=torch.Tag.pt2_compliant_tag,
)


def call_summarised(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    method: SummarisedAttention,
    masks: tuple[Tensor | None, ...],
    is_causal: bool,
    scale: float | None,
) -> Tensor:
    """Put summarised attention into a graph that is being compiled or exported.

    ``masks`` are attn_mask, key_padding_mask, query_padding_mask and cu_seqlens of `hrf.attention`.
    """
    report = None if method.report is None else method.report.handle
    tolerance = None if method.tolerance == "auto" else method.tolerance
    rotary = method.angles(query.shape[-1])
    numbers = is_causal, scale, method.n_groups, method.n_clusters, tolerance, method.target_error
    return torch.ops.hrf.summarised_attention(query, key, value, *masks, report, rotary, *numbers)


def _run_summarised(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> Tensor:
    *masks, report, rotary, is_causal, scale, n_groups, n_clusters, tolerance, aim = others
    attn_mask, key_padding_mask, query_padding_mask, cu_seqlens = masks
    found = None if report is None else object_of(report)
    method = SummarisedAttention(
        n_groups,
        n_clusters,
        "auto" if tolerance is None else tolerance,
        target_error=aim,
        rotary=rotary,
        report=found if isinstance(found, SummaryReport) else None,
    )
    return _ATTENTION[0](
        query,
        key,
        value,
        method,
        attn_mask=attn_mask,
        is_causal=is_causal,
        key_padding_mask=key_padding_mask,
        query_padding_mask=query_padding_mask,
        scale=scale,
        cu_seqlens=cu_seqlens,
    )


@torch.library.impl("hrf::summarised_attention", "default")
def _summarised(*args: Any) -> Tensor:
    with torch.no_grad():
        return _run_summarised(*args).contiguous()


@torch.library.impl("hrf::summarised_attention_gradients", "default")
def _summarised_gradients(grad: Tensor, wanted: list[bool], *args: Any) -> list[Tensor]:
    leaves = [t.detach().requires_grad_(w) for t, w in zip(args[:3], wanted, strict=True)]
    with torch.enable_grad():
        # The forward pass has reported already.
        output = _run_summarised(*leaves, *args[3:7], None, *args[8:])
    inputs = [t for t in leaves if t.requires_grad]
    return [g.contiguous() for g in torch.autograd.grad(output, inputs, grad, materialize_grads=True)]


def _summarised_gradient_shapes(grad: Tensor, wanted: list[bool], *args: Any) -> list[Tensor]:
    return [t.new_empty(t.shape) for t, w in zip(args[:3], wanted, strict=True) if w]


def _save_summarised(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.wanted = [t.requires_grad for t in inputs[:3]]
    ctx.numbers = inputs[9:]
    ctx.save_for_backward(*inputs[:9])


def _summarised_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    found = torch.ops.hrf.summarised_attention_gradients(grad, ctx.wanted, *ctx.saved_tensors, *ctx.numbers)
    each = iter(found)
    return *(next(each) if wanted else None for wanted in ctx.wanted), *[None] * 12


torch.library.register_fake("hrf::summarised_attention", _attention_shape)
torch.library.register_fake("hrf::summarised_attention_gradients", _summarised_gradient_shapes)
torch.library.register_autograd(
    "hrf::summarised_attention", _summarised_backward, setup_context=_save_summarised
)


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """Let compiled code break its graph and call a function as it is."""

    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        # Only now: the compiler takes seconds to import.
        call = torch.compiler.disable(function) if torch.compiler.is_compiling() else function
        return call(*args, **kwargs)

    return functools.wraps(function)(wrapped)
