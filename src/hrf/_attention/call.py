"""A call of attention on its way through an engine: tokens by label, gradients, quotients, rows.

`LabelBlocks` puts tokens of one label side by side, so that one batched product serves all labels. A segment is all
tokens of one row (a head of one sequence) with one label. It is cut into blocks; only its last block is not full, so
the work is that of the tokens plus half a block per segment, however uneven the labels. It holds what this loop would
build::

    for row, group, label in segments:                      # in this order
        tokens = [l for l in range(L) if labels[row, group, l] == label]
        for start in range(0, len(tokens), size):           # one block each
            members.append(tokens[start : start + size])    # padded with its first token

A `Call` is everything that a call of attention fixes, its tensors aside; `runner` runs a `Path` through an engine with
or without gradients.

`Quotients` divides sums by their denominators under the rule, for engines that autograd follows and for those by hand.

`by_rows` gives an engine a few rows at a time, and gives them again in the backward pass. A row is one head of one
sequence. What an engine computes for its rows (codes, clusters, states) never exists for all of them at once: the
backward pass runs it again, this time with a graph, which is pulled back and dropped before the next rows. Engines
treat parts of a long row the same way (`recompute`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from hrf import tuning
from hrf._attention.denominator import (
    Denominator,
    Visible,
    VisibleChunk,
    bounded,
    log_bound,
    of_all,
    per_row,
    put_in_box,
    total_moments,
)
from hrf._attention.inputs import Inputs
from hrf.features.base import FeatureMap, of_heads
from hrf.numerics import Features, can_look, full_precision, without_autocast

__all__ = [
    "Call",
    "LabelBlocks",
    "Outputs",
    "Part",
    "Path",
    "at_once",
    "by_rows",
    "nothing",
    "parts",
    "prepare",
    "recompute",
    "runner",
    "with_ones",
]


Part = tuple[slice, slice]  # of batch elements and of heads

_ALL = slice(None)


class LabelBlocks(NamedTuple):
    """Tokens by segment, for R rows of L tokens with G labels each.

    Attributes:
        members: token r·L + l at each place, ``(N, size)``; places left over repeat the block's first.
        filled: which places hold a token, ``(N, size)``.
        segment: (r·G + g)·n_labels + label of each block, ascending, ``(N,)``.
        counts: number of tokens in each segment, ``(R, G, n_labels)``.
        place: where each token is among all N·size places, ``(R, G, L)``; anywhere if it is left out.
    """

    members: Tensor
    filled: Tensor
    segment: Tensor
    counts: Tensor
    place: Tensor

    @classmethod
    def of(cls, labels: Tensor, n_labels: int, size: int) -> LabelBlocks:
        """Sort tokens into blocks by ``labels (R, G, L)``; a label of ``n_labels`` leaves a token out."""
        n_rows, n_groups, length = labels.shape
        every = torch.arange(n_rows * n_groups, device=labels.device)
        n_segments = len(every) * n_labels
        own = labels + n_labels * every.view(n_rows, n_groups, 1)
        own = own.masked_fill(labels == n_labels, n_segments).flatten()
        counts = torch.bincount(own, minlength=n_segments + 1)[:-1]
        n_blocks = (counts + size - 1) // size
        # Sorted tokens of a segment are neighbours, and so are their places: the two differ by a constant.
        gap = (n_blocks * size - counts).cumsum(0) - (n_blocks * size - counts)
        gaps = gap.repeat_interleave(counts)
        # The narrowest dtype is sorted fastest.
        order = (
            own.to(torch.int16 if n_segments < 1 << 15 else torch.int32)
            .sort(stable=True)
            .indices[: len(gaps)]
        )
        ranked = torch.arange(len(gaps), device=labels.device) + gaps
        tokens = torch.arange(n_rows * length, device=labels.device).view(n_rows, 1, length)
        members = order.new_full((int(n_blocks.sum()) * size,), -1)
        members.index_copy_(0, ranked, tokens.expand_as(labels).flatten().index_select(0, order))
        members = members.view(-1, size)
        filled = members >= 0
        return cls(
            members.where(filled, members[:, :1]),
            filled,
            torch.repeat_interleave(n_blocks),
            counts.view(n_rows, n_groups, n_labels),
            torch.zeros_like(own).index_copy_(0, order, ranked).view_as(labels),
        )

    def pieces(self, step: int) -> list[slice]:
        """Cut all blocks into even pieces of about ``step`` blocks."""
        n_blocks = len(self.members)
        n_pieces = max(1, round(n_blocks / max(1, step)))
        step = max(1, -(-n_blocks // n_pieces))
        return [slice(block, min(block + step, n_blocks)) for block in range(0, n_blocks, step)]

    def take(self, tokens: Tensor, some: slice = _ALL) -> Tensor:
        """Gather ``tokens (R·L, d)`` into the places of some blocks: ``(n, size, d)``."""
        members = self.members[some]
        return tokens.index_select(0, members.flatten()).view(*members.shape, tokens.shape[-1])

    def take_once(self, tokens: Tensor, some: slice = _ALL) -> Tensor:
        """Gather tokens as `take` does, with zeros in the places left over."""
        members = self.members[some]
        left_over = (~self.filled[some]).flatten().nonzero().squeeze(-1)
        return self.take(tokens, some).flatten(0, 1).index_fill_(0, left_over, 0).unflatten(0, members.shape)

    def give(self, places: Tensor) -> Tensor:
        """Go back from places ``(N, size, d)`` to tokens, for one label per token: ``(R·L, d)``."""
        return places.flatten(0, 1).index_select(0, self.place.flatten())

    def add(self, blocks: Tensor) -> Tensor:
        """Sum over the blocks of each segment: ``(N, d) -> (R·G·n_labels, d)``."""
        return blocks.new_zeros(self.counts.numel(), blocks.shape[-1]).index_add_(0, self.segment, blocks)

    def largest(self, blocks: Tensor) -> Tensor:
        """Take the maximum over the blocks of each segment, −∞ without any: ``(N, d) -> (R·G·n_labels, d)``."""
        segments = blocks.new_full((self.counts.numel(), blocks.shape[-1]), -torch.inf)
        return segments.scatter_reduce_(0, self.segment.unsqueeze(-1).expand_as(blocks), blocks, "amax")

    def lists(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """List tokens of several labels, one list after the other, and return how many tokens each list has.

        Args:
            table: which labels are in which list, booleans ``(R, n, n_labels)``, for one label per token.
        """
        counts = table * self.counts  # (R, n, n_labels)
        flat, own = counts.flatten(), self.counts.flatten()
        start = (own.cumsum(0) - own).view(self.counts.shape).expand(counts.shape).flatten()
        shift = (start - (flat.cumsum(0) - flat)).repeat_interleave(flat)
        tokens = self.members[self.filled]  # segment by segment
        return tokens[shift + torch.arange(len(shift), device=shift.device)], counts.sum(-1).flatten()


def at_once(x: Tensor, limit: int) -> int:
    """Return the limit of what a CPU computes at a time; an accelerator, which would wait for each part, has none."""
    return 1 << 62 if _waits(x) else limit


def _waits(x: Tensor) -> bool:
    return not x.is_cpu


def parts(x: Tensor, y: Tensor, tokens: int) -> Iterator[Part]:
    """Cut the rows of ``(B, H, L, d)`` and ``(B, H, S, d)`` into parts of about ``tokens`` tokens, at least one row.

    A part has some heads of one batch element, or all heads of several.
    """
    size, heads = x.shape[:2]
    n_rows = max(1, tokens // max(1, x.shape[2], y.shape[2]))
    elements, some = max(1, n_rows // heads), min(n_rows, heads)
    for b in range(0, size, elements):
        for h in range(0, heads, some):
            yield slice(b, min(b + elements, size)), slice(h, min(h + some, heads))


def nothing(x: Tensor, y: Tensor, values: Tensor) -> Features:
    """Return the sums for no queries or over no keys, ``(R, L, c)``, connected to autograd."""
    x, y, values = (t.flatten(0, -3) for t in (x, y, values))
    return Features(x @ y.mT @ values, torch.zeros_like(x[..., :1]))


def with_ones(values: Tensor) -> Tensor:
    """Append a column of ones, whose sums are the denominators."""
    return pad(values, (0, 1), value=1.0)


@dataclass(frozen=True)
class Call:
    """Everything that a call of attention fixes, its tensors aside.

    Attributes:
        feature_map: the map.
        rule: what to do with small denominators.
        moments: sums of the keys that each row sees, ``(B, H, 1 or L, ·)`` (`hrf._attention.denominator`).
        ignore: keys to leave out, ``(B, S)``, or ``None``.
        root: √scale.
        dtype: of the computation.
        learned: tensors of the map that want gradients.
        resumed: whether a state of earlier tokens is continued.
        past: keys and values so far, where exact pairs of clusters need them.
        visible: values of the keys before this call, for causal calls.
    """

    feature_map: FeatureMap
    rule: Denominator
    moments: Tensor
    ignore: Tensor | None
    root: float
    dtype: torch.dtype
    learned: tuple[Tensor, ...]
    resumed: bool = False
    past: Any = None
    visible: Any = None

    @classmethod
    def of(
        cls, inputs: Inputs, moments: Tensor, feature_map: FeatureMap, rule: Denominator, **extra: Any
    ) -> Call:
        """Describe a call on ``inputs``."""
        learned = [t for t in (*feature_map.parameters(), *feature_map.buffers()) if t.requires_grad]
        return cls(
            feature_map, rule, moments, inputs.ignore, inputs.root, inputs.dtype, tuple(learned), **extra
        )

    def part(self, part: Part) -> Call:
        """Restrict the call to some batch elements and heads."""
        ignore = None if self.ignore is None else self.ignore[part[0]]
        feature_map = of_heads(self.feature_map, part[1])
        return replace(self, feature_map=feature_map, moments=self.moments[part], ignore=ignore)


class Path(NamedTuple):
    """One way to compute attention.

    Attributes:
        prepare: from `Inputs`, a map, a `Denominator` and perhaps a `Carry` to a `Call` and its tensors.
        forward: from a call and its tensors to outputs, of which the first two may have gradients. Where gradients
            will be needed, it appends the tensors that ``backward`` uses to the list ``saved``.
        backward: from a call, the saved tensors, the gradients of the outputs and which inputs need gradients, to
            the gradients of the tensors and of ``call.learned``.
    """

    prepare: Callable[..., tuple[Call, tuple[Tensor | None, ...]]]
    forward: Callable[..., tuple[Tensor, ...]]
    backward: Callable[..., Sequence[Tensor | None]]


def runner(path: Path, call: Call, tensors: Sequence[Tensor | None]) -> Callable[[], tuple[Tensor, ...]]:
    """Bind ``path.forward`` to a call: with gradients where some tensor wants them, without autograd elsewhere."""
    wanted = call.learned or any(t is not None and t.requires_grad for t in tensors)
    if torch.is_grad_enabled() and wanted:
        return partial(_Attend.apply, path, call, *tensors, *call.learned)
    return partial(torch.no_grad()(path.forward), call, *tensors)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, path: Path, call: Call, *tensors: Tensor | None) -> Any:
        saved: list[Tensor | None] = []
        outputs = path.forward(call, *tensors[: len(tensors) - len(call.learned)], saved=saved)
        # The backward pass needs neither keys so far nor, unless they are saved, moments.
        ctx.call = replace(call, moments=call.moments[:0], past=None)
        ctx.path, ctx.n_saved = path, len(saved)
        # It uses the map again: saved here, a redraw or a step of an optimiser in between is an error.
        ctx.save_for_backward(*saved, *call.learned, *call.feature_map.buffers())
        ctx.mark_non_differentiable(*outputs[2:])
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        saved = ctx.saved_tensors[: ctx.n_saved]
        # Autocast may be on where ``backward`` is called, and would take matrix products to half precision.
        with without_autocast(grads[0].device):
            return None, None, *ctx.path.backward(ctx.call, saved, grads, ctx.needs_input_grad[2:])


Function = Callable[..., tuple[Any, ...]]


def recompute(function: Function, *tensors: Tensor | None, learned: Sequence[Tensor]) -> Any:
    """Return ``function(*tensors)``, a tuple, and run the function again in the backward pass.

    Only the first entry of the tuple has gradients. ``learned`` are tensors that the function uses beyond its
    arguments and that may want gradients. (PyTorch's own checkpoints load the compiler: more than a second, and
    memory.)
    """
    return _Recompute.apply(function, learned, *tensors, *learned)


class _Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Function, learned: Sequence[Tensor], *tensors: Tensor | None) -> Any:
        ctx.function, ctx.learned = function, learned
        arguments = tensors[: len(tensors) - len(learned)]
        ctx.save_for_backward(*arguments)
        values, *others = function(*arguments)
        ctx.mark_non_differentiable(*(t for t in others if isinstance(t, Tensor)))
        return values, *others

    @staticmethod
    @once_differentiable
    @full_precision
    def backward(ctx: Any, grad: Tensor, *_: Any) -> Any:
        needed = ctx.needs_input_grad[2:]
        arguments = [
            t if t is None else t.detach().requires_grad_(n)
            for t, n in zip(ctx.saved_tensors, needed, strict=False)
        ]
        with torch.enable_grad():
            values, *_ = ctx.function(*arguments)
        if not values.requires_grad:  # all keys are masked, so the values depend on nothing
            return (None,) * (2 + len(needed))
        wanted = [t for t, n in zip((*arguments, *ctx.learned), needed, strict=True) if n]
        found = iter(torch.autograd.grad(values, wanted, grad, allow_unused=True))
        return None, None, *(next(found) if n else None for n in needed)


class Quotients:
    """Outputs from sums that arrive block by block, with the denominators in their last column.

    Blocks are ``(rows, L, d_v + 1)`` for some of all B·H rows, or ``(1, tokens, d_v + 1)`` for part of a row, in order.
    Each is divided when it arrives, so that the sums never exist for all queries unless autograd needs them.

    Args:
        call: the map, the rule, the moments and √scale.
        query: ``(B, H, L, d)``.
        value: ``(B, H, S, d_v)``.
        out: where to write the outputs, ``(B, H, L, d_v)``; not used where autograd follows along.
    """

    def __init__(self, call: Call, query: Tensor, value: Tensor, out: Tensor | None = None) -> None:
        self._call, self._lead = call, query.shape[:3]
        self._x, self._seen = query.to(call.dtype).flatten(0, 1), call.moments.flatten(0, 1)
        self._visible = of_all(value, call.ignore, call.dtype, signed=not call.feature_map.nonnegative)
        self._out = self._x.new_empty(*self._lead, value.shape[-1]) if out is None else out
        self._places = self._out.view(*self._x.shape[:2], value.shape[-1])
        self._small = torch.empty_like(self._x[..., :1], dtype=torch.bool)
        self._clipped = torch.zeros_like(self._small)
        self._traced: list[Tensor] = []
        self._row = self._token = 0

    def add(self, sums: Features) -> None:
        """Divide the next block."""
        values, log_scale = sums
        rows = slice(self._row, self._row + values.shape[0])
        some = rows, slice(self._token, self._token + values.shape[1])
        with torch.no_grad():
            keys = self._seen[rows] if self._seen.shape[1] == 1 else self._seen[some]
            bound = log_bound(self._call.feature_map, self._x[some], keys, self._call.root)
        used, small = self._call.rule.settle(values[..., -1:].contiguous(), log_scale, bound)
        self._small[some] = small
        if values.requires_grad:
            out = values[..., :-1] / used
            if self._call.rule.replaces:
                out, _ = bounded(out, small, self._visible.part(rows))
            self._traced.append(out.flatten(0, 1))
        else:
            out = torch.div(values[..., :-1], used, out=self._places[some])
            if self._call.rule.replaces:
                clipped = put_in_box(out, small, self._visible.part(rows))
                if clipped is not None:
                    self._clipped[some] = clipped
        end = some[1].stop
        self._row, self._token = (self._row, end) if end < self._x.shape[1] else (rows.stop, 0)

    @property
    def small(self) -> Tensor:
        """Which denominators are too small, ``(B, H, L, 1)``."""
        return self._small.unflatten(0, self._lead[:2])

    @property
    def clipped(self) -> Tensor:
        """Which rows were clipped, ``(B, H, L, 1)``."""
        return self._clipped.unflatten(0, self._lead[:2])

    def values(self) -> Tensor:
        """Return all outputs, ``(B, H, L, d_v)``."""
        return torch.cat(self._traced).unflatten(0, self._lead) if self._traced else self._out


class Outputs(NamedTuple):
    """Outputs of all rows, and what a backward pass by hand needs of them.

    Attributes:
        values: ``(N, L, d_v)``.
        used: the numbers divided by, ``(N, L, 1)``, at the scale of the sums.
        log_scale: the scale of the sums, ``(N, L, 1)``.
        small: which denominators were too small, ``(N, L, 1)``.
        clipped: rows with an output that was moved into the box, ``(N, L, 1)``.
        moved: which outputs were moved into the box, ``(N, L, d_v)``; ``None`` for maps without signs, and where no
            gradient is wanted.
        exponents: the largest exponent of each query, ``(N, L, 1)``, where kernels of an accelerator need it.
    """

    values: Tensor
    used: Tensor
    log_scale: Tensor
    small: Tensor
    clipped: Tensor
    moved: Tensor | None = None
    exponents: Tensor | None = None

    @classmethod
    def empty(cls, sums: Tensor, length: int, *, moved: bool = False) -> Outputs:
        """Allocate outputs for sums like ``(N, ·, d_v + 1)``; with a place for marks where ``moved``."""
        n, _, width = sums.shape
        used, values = sums.new_empty(n, length, 1), sums.new_empty(n, length, width - 1)
        small, clipped = (torch.zeros_like(used, dtype=torch.bool) for _ in range(2))
        marks = torch.zeros_like(values, dtype=torch.bool) if moved else None
        return cls(values, used, torch.empty_like(used), small, clipped, marks)

    def fill(self, call: Call, rows: slice, x: Tensor, sums: Features, seen: Visible | VisibleChunk) -> None:
        """Divide the sums of some rows, ``(N, rows, d_v + 1)``; x are their queries, ``(B, H, rows, d)``, scaled."""
        moments = call.moments if call.moments.shape[2] == 1 else call.moments[:, :, rows]
        bound = log_bound(call.feature_map, x, moments)
        denominators = sums.values[..., -1:]
        used, small = call.rule.settle(
            denominators, sums.log_scale, None if bound is None else bound.flatten(0, 1)
        )
        self.used[:, rows], self.log_scale[:, rows], self.small[:, rows] = used, sums.log_scale, small
        out = torch.div(sums.values[..., :-1], used, out=self.values[:, rows])
        if call.rule.replaces:
            clipped = put_in_box(out, small, seen, None if self.moved is None else self.moved[:, rows])
            if clipped is not None:
                self.clipped[:, rows] = clipped

    def part(self, rows: slice) -> Outputs:
        """Restrict to some rows."""
        values, used, log_scale, small, clipped = (u[:, rows] for u in self[:5])
        moved, exponents = (None if u is None else u[:, rows] for u in self[5:])
        return Outputs(values, used, log_scale, small, clipped, moved, exponents)

    def settled(self, call: Call, query: Tensor, seen: Visible | VisibleChunk) -> Outputs:
        """Apply the rule to quotients and denominators that kernels left as they are; ``query (B, H, L, d)``."""
        moments, phi = call.moments, call.feature_map
        bound = None if phi.nonnegative else log_bound(phi, query.to(call.dtype), moments, call.root)
        bound = None if bound is None else bound.flatten(0, 1)
        used, small = call.rule.settle(self.used, self.log_scale, bound)
        if call.rule.replaces and (bound is not None or not can_look(small) or small.any()):
            clipped = put_in_box(self.values, small, seen, self.moved)
            if clipped is not None:
                self.clipped.copy_(clipped)
        return self._replace(used=used, small=small)

    def gradient_of_quotients(self, grad: Tensor) -> Tensor:
        """Return the gradients of quotients, ``(N, L, d_v)``: none where an output was moved."""
        if self.moved is not None and (not can_look(grad) or self.clipped.any()):
            return grad.masked_fill(self.moved, 0)
        return grad.contiguous()

    def gradient_of_sums(self, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of numerators as ``(N, L, d_v)`` and a factor, and of denominators, ``(N, L, 1)``."""
        grad, factor = self.gradient_of_quotients(grad), self.used.reciprocal()
        return grad, factor, (grad * self.values).sum(-1, keepdim=True).mul_(factor).neg_()

    def count_rows(self, call: Call, lead: torch.Size) -> None:
        """Count small denominators and clipped rows of B and H = ``lead``."""
        call.rule.count(self.small.unflatten(0, lead), call.moments[..., :1], self.clipped.unflatten(0, lead))

    def pull(self, grad: Tensor, rows: slice, log_scale: Tensor, rule: Denominator) -> Tensor:
        """Return the gradients of the sums of some rows at ``log_scale``: ``(N, rows, d_v + 1)``.

        Rows with a small denominator and outputs that were moved have none. Numerator and denominator share their
        scale, so it has no gradient.
        """
        values, used, before, small = (tensor[:, rows] for tensor in self[:4])
        used = used * (before - log_scale).exp()
        if self.moved is not None and (not can_look(grad) or self.clipped[:, rows].any()):
            grad = grad.masked_fill(self.moved[:, rows], 0)
        out = grad.new_empty(*grad.shape[:-1], grad.shape[-1] + 1)
        torch.div(grad, used, out=out[..., :-1])
        out[..., -1:] = ((grad * values).sum(-1, keepdim=True) / used).neg_()
        return out.masked_fill_(small, 0) if rule.replaces else out


# From queries, keys, values, the map, keys to keep, √scale and whether to add a column of ones, to the sums
# Σ K̂(x, y) v(y): (rows, L, c) for a few rows at a time, or (1, tokens, c) for parts of a long one.
Stream = Callable[..., Iterator[Features]]


def by_rows(stream: Stream) -> Path:
    """Return the path of an engine that streams sums."""
    return Path(prepare, partial(_forward, stream), partial(_backward, stream))


def prepare(inputs: Inputs, feature_map: FeatureMap, rule: Denominator) -> tuple[Call, tuple[Tensor, ...]]:
    """Describe a bidirectional call: every row sees all keys."""
    moments = per_row(inputs, total_moments(inputs, feature_map))
    return Call.of(inputs, moments, feature_map, rule), inputs[:3]


def _forward(
    stream: Stream,
    call: Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    saved: list[Tensor | None] | None = None,
) -> tuple[Tensor, ...]:
    out = query.new_empty(*query.shape[:-1], value.shape[-1], dtype=call.dtype)
    small = torch.empty_like(out[..., :1], dtype=torch.bool)
    clipped = torch.empty_like(small)
    tokens = tuning.ROWS_INFERENCE if saved is None else tuning.ROWS_FORWARD
    for part in parts(query, key, at_once(query, tokens)):
        own = call.part(part)
        quotients = Quotients(own, query[part], value[part], out[part])
        for sums in stream(*_arguments(own, query[part], key[part], value[part]), ones=True):
            quotients.add(sums)
        small[part], clipped[part] = quotients.small, quotients.clipped
    call.rule.count(small, call.moments[..., :1], clipped)
    if saved is not None:
        saved += [query, key, value, call.moments]
    return (out,)


def _backward(
    stream: Stream, call: Call, saved: Sequence[Tensor], grads: Sequence[Tensor], needed: Sequence[bool]
) -> Sequence[Tensor]:
    query, key, value, moments = saved
    inputs, call = (query, key, value), replace(call, moments=moments)
    found = [torch.zeros_like(t) for t in (*inputs, *call.learned)]
    for part in parts(query, key, at_once(query, tuning.ROWS_BACKWARD)):
        some = [t[part].detach().requires_grad_(n) for t, n in zip(inputs, needed, strict=False)]
        with torch.enable_grad():
            own = call.part(part)
            quotients = Quotients(own, some[0], some[2])
            for sums in stream(*_arguments(own, *some), ones=True):
                quotients.add(sums)
            out = quotients.values()
        places = (*(g[part] for g in found[:3]), *found[3:])
        pairs = [p for p in zip((*some, *call.learned), places, strict=True) if p[0].requires_grad]
        wanted = [t for t, _ in pairs]
        pulled = torch.autograd.grad(out, wanted, grads[0][part], materialize_grads=True)
        for (_, place), g in zip(pairs, pulled, strict=True):
            place += g
    return found


def _arguments(
    call: Call, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor, FeatureMap, Tensor | None, float]:
    """Return what a stream takes: checked vectors in the dtype of the computation, zeros where keys are ignored."""
    x, y, v = (tensor.to(call.dtype) for tensor in (query, key, value))
    keep: Tensor | None = None
    if call.ignore is not None:
        keep = ~call.ignore[:, None]
        y, v = (u.masked_fill(~keep.unsqueeze(-1), 0) for u in (y, v))  # NaN there must not count
    call.feature_map.check_values(x, "query")
    call.feature_map.check_values(y, "key")
    return x, y, v, call.feature_map, keep, call.root
