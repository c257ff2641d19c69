"""Attention with an angular hybrid by sign codes, exactly: K̂ = λ̂ K̂₁ + (1 − λ̂) K̂₂ (paper, Sec. 2.4).

λ̂ is the share of the n sign bits that differ. The features of the composition lemma are n + 1 times as wide
as the bases'. Instead, the bits are cut into groups, with a state for every code c of a group,

    S_c = Σ_{y of code c} φ(y) v(y)ᵀ,

φ the features of both bases side by side. A query of code c reads Σ_{c'} h(c, c') S_{c'} for the first base,
h the number of bits that differ, and the same with those that agree for the second: one product per group.

Reading order: codes of sign bits; sums over the tokens of each code; the engine in PyTorch's operations; the same in
the compiled core; and `stream`, which takes one of them for some rows at a time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, pad

from hrf import _core as core
from hrf import tuning
from hrf._attention.call import LabelBlocks, nothing, recompute, with_ones
from hrf._attention.dense import Scratch
from hrf.features.base import Side
from hrf.features.coefficients import Angular
from hrf.features.exponential import Exponential
from hrf.features.hybrid import Hybrid
from hrf.numerics import Features, can_look, check_finite, finite, half_square

__all__ = [
    "Codes",
    "serves",
    "split",
    "stream",
]


class Codes(NamedTuple):
    """A partition of n bits into G groups of g bits; the last group may have fewer.

    Attributes:
        bits: number of bits per group, ``(G,)``.
        weights: of each bit in the code of each group, ``(G, n)``.
        same: which of the 2g values of bits each code has, ``(G, 2g, 2^g)``; zeros for missing bits.
        differ: which values each code does not have, likewise.
    """

    bits: Tensor
    weights: Tensor
    same: Tensor
    differ: Tensor

    @classmethod
    def of(cls, n: int, n_codes: float, like: Tensor) -> Codes:
        """Cut into as few groups as possible with at most ``n_codes`` codes each."""
        least, most = tuning.CODE_BITS
        n_groups = -(-n // min(max(int(math.log2(max(1, n_codes))), least), most))
        g = -(-n // n_groups)
        bits = torch.arange(n_groups * g, device=like.device).view(n_groups, 1, g)
        weights = torch.block_diag(*(2.0 ** (group % g) for group in bits))[:, :n]
        ones = torch.arange(2**g, device=like.device) >> bits[0].mT & 1  # (g, 2^g)
        real = (bits < n).repeat_interleave(2, -1).mT
        same = torch.stack([1 - ones, ones], 1).flatten(0, 1)
        tables = (table.to(like.dtype) for table in (weights, same * real, (1 - same) * real))
        return cls((bits < n).sum((1, 2)), *tables)

    @property
    def shape(self) -> tuple[int, int]:
        """G and 2^g."""
        return self.same.shape[0], self.same.shape[2]

    def of_signs(self, products: Tensor) -> Tensor:
        """Return the codes of tokens with products ``(R, L, n)``: ``(R, G, L)``."""
        return (self.weights @ (products >= 0).to(products.dtype).mT).long()

    def counts(self, codes: Tensor) -> Tensor:
        """Count tokens with each value of each bit, given codes ``(R, G, L)``: ``(R, G, 2g)``."""
        n_groups, n_codes = self.shape
        group = torch.arange(len(codes) * n_groups, device=codes.device).view(-1, n_groups, 1)
        n = group.numel() * (n_codes + 1)  # the last of each counts tokens left out
        by_code = torch.bincount((codes + (n_codes + 1) * group).flatten(), minlength=n).view(
            -1, n_groups, n_codes + 1
        )
        return (self.same @ by_code[..., :-1, None].to(self.same.dtype)).squeeze(-1)

    def spread(self, states: Tensor, widths: Sequence[int], out: Tensor | None = None) -> Tensor:
        """Return what each code reads of states by bit: ``(R, G, 2g, ·) -> (R, G, 2^g, ·)``.

        For the first base it is the sum of the states of the other value of each bit, for the second that of its own
        value; ``widths`` says how columns divide between the bases. No difference is taken: a base whose weight is 0
        for all keys gets exactly 0.
        """
        same, differ = (table.mT.repeat(len(states), 1, 1) for table in (self.same, self.differ))
        into = [None, None] if out is None else split(out.flatten(0, 1), widths)
        parts = [
            torch.bmm(table, part, out=place)
            for table, part, place in zip(
                (differ, same), split(states.flatten(0, 1), widths), into, strict=True
            )
        ]
        return torch.cat(parts, -1).unflatten(0, states.shape[:2]) if out is None else out


def split(states: Tensor, widths: Sequence[int]) -> Sequence[Tensor]:
    """Split columns of numbers per feature by base."""
    each = states.shape[-1] // sum(widths)
    return states.split([each * width for width in widths], -1)


class CodeSums:
    """Turn keys into states by value of each bit, and let queries read them.

    Args:
        n: number of sign bits.
        length: tokens per row at a time.
        widths: widths of the features of both bases.
        like: a tensor with the dtype and device of all.
        columns: columns of the values, or one more for ones.
        in_place: reuse scratch buffers, so that they stay in the cache; not if autograd needs their content.
    """

    def __init__(
        self, n: int, length: int, widths: Sequence[int], like: Tensor, columns: int, *, in_place: bool
    ) -> None:
        self.codes = Codes.of(n, length / tuning.CODE_BLOCK, like)
        self.widths, self.columns, self.in_place = widths, columns, in_place
        self.places: defaultdict[str, Scratch] = defaultdict(Scratch)

    def write(self, features: Tensor, codes: Tensor, values: Tensor) -> Tensor:
        """Sum φ(y) v(y)ᵀ over the keys with each value of each bit, ``(R, G, 2g, D·c)``.

        Args:
            features: φ, ``(R·S + 1, D)``, the last row of which is zero.
            codes: ``(R, G, S)``; 2^g leaves a key out.
            values: ``(R, S, c)``.
        """
        blocks, v, c = self._blocks(codes), values.flatten(0, 1), self.columns
        sums = values.new_zeros(blocks.counts.numel(), features.shape[-1] * c)
        for some in blocks.pieces(tuning.CODE_PLACES // blocks.members.shape[-1]):
            members, filled = blocks.members[some], blocks.filled[some]
            phi = self._take(features, members.where(filled, len(v)), "left")
            place = self._place("product", len(phi), phi.shape[-1], c, like=phi)
            product = torch.bmm(phi.mT, self._values(v, members), out=place)
            sums = sums.index_add_(0, blocks.segment[some], product.flatten(1))
        by_code = sums.view(-1, self.codes.shape[1], sums.shape[-1])
        return torch.bmm(self.codes.same.repeat(len(codes), 1, 1), by_code).unflatten(0, codes.shape[:2])

    def read(self, features: Tensor, codes: Tensor, states: Tensor) -> Tensor:
        """Sum φ(x)ᵀ S over the states S of the bits of each query: ``(R, L, c)``."""
        blocks, c = self._blocks(codes), self.columns
        size, shape = blocks.members.shape[-1], (*blocks.counts.shape, states.shape[-1])
        states = self.codes.spread(states, self.widths, self._place("spread", *shape, like=states)).flatten(
            0, 2
        )
        places = self._place("result", len(blocks.members), size, c, like=features)
        parts = []
        for some in blocks.pieces(tuning.CODE_PLACES // size):
            phi = self._take(features, blocks.members[some], "left")
            own = self._take(states, blocks.segment[some], "right").view(len(phi), -1, c)
            parts.append(torch.bmm(phi, own, out=None if places is None else places[some]))
        result = (torch.cat(parts) if places is None else places).flatten(0, 1)
        total = embedding_bag(blocks.place.mT.flatten(0, 1), result, mode="sum")
        return total.view(len(codes), -1, c)

    def _blocks(self, codes: Tensor) -> LabelBlocks:
        n_codes = self.codes.shape[1]
        return LabelBlocks.of(
            codes, n_codes, min(max(codes.shape[-1] // (2 * n_codes), 8), tuning.CODE_BLOCK)
        )

    def _take(self, table: Tensor, index: Tensor, name: str) -> Tensor:
        """Gather rows of a table, ``(*index.shape, ·)``, into a scratch buffer."""
        out = self._place(name, index.numel(), table.shape[-1], like=table)
        return torch.index_select(table, 0, index.flatten(), out=out).view(*index.shape, -1)

    def _values(self, values: Tensor, members: Tensor) -> Tensor:
        """Gather the values of some tokens, with the column of ones if there is to be one."""
        if values.shape[-1] == self.columns:
            return self._take(values, members, "right")
        out = self._place("right", members.numel(), self.columns, like=values)
        if out is None:
            return with_ones(self._take(values, members, "right"))
        torch.index_select(values, 0, members.flatten(), out=out[:, :-1])
        out[:, -1] = 1
        return out.view(*members.shape, -1)

    def _place(self, name: str, *shape: int, like: Tensor) -> Tensor | None:
        return self.places[name].of(*shape, like=like) if self.in_place else None


class _Tokens(NamedTuple):
    """Queries or keys, R rows of L: their codes and the ingredients of their features.

    Attributes:
        codes: G codes per token, ``(R, G, L)``; 2^g for tokens to leave out.
        projected: ωᵀu for all ω, side by side, ``(R, L, ·)``.
        log_weight: log of the factor of each row's features, for both bases, ``(R, L, 2)``.
        small: whether all features are far from overflow and underflow without a scale.
    """

    codes: Tensor
    projected: Tensor
    log_weight: Tensor
    small: bool

    def largest(self, bases: list[Exponential]) -> Tensor:
        """Return the log of the largest feature of both bases, constant for autograd: ``(R, L, 2)``."""
        logs = []
        for base, p in zip(bases, _by_base(self.projected.detach(), bases), strict=True):
            if base.query_matrix.has_real:
                logs.append((p.abs() if base.antithetic else p).amax(-1))
            else:
                logs.append(torch.zeros_like(p[..., 0]))
        return self.log_weight.detach() + torch.stack(logs, -1)


class CodeState(NamedTuple):
    """Sums over the keys with each value of each bit.

    Attributes:
        sums: Σ φ(y) v(y)ᵀ, ``(R, G, 2g, D·c)``.
        counts: how many keys have each value, ``(R, G, 2g)``.
        scale: the log scale of both bases, ``(R, 1, 2)``; −∞ without keys.
        small: whether the scale is 0 for all rows with keys.
    """

    sums: Tensor
    counts: Tensor
    scale: Tensor
    small: bool

    def plus(self, other: CodeState, widths: Sequence[int]) -> CodeState:
        """Add the state of other keys; ``widths`` are those of the features of both bases."""
        small = self.small and other.small
        scale = torch.maximum(self.scale, other.scale)
        mine, theirs = (self.sums, other.sums) if small else (s._at(scale, widths) for s in (self, other))
        return CodeState(mine + theirs, self.counts + other.counts, scale, small)

    def _at(self, scale: Tensor, widths: Sequence[int]) -> Tensor:
        """Return the sums at another scale."""
        factors = (self.scale - finite(scale)).exp().unsqueeze(1).unbind(-1)  # (R, 1, 1) each
        parts = split(self.sums, widths)
        return torch.cat([part * f.unsqueeze(-1) for part, f in zip(parts, factors, strict=True)], -1)


class CodeEngine:
    """Turn keys into a state, and let queries read it: some tokens of some rows at a time."""

    def __init__(
        self, feature_map: Hybrid, x: Tensor, length: int, columns: int, root: float, *, in_place: bool
    ) -> None:
        coefficient = cast("Angular", feature_map.coefficient_maps[0])
        self.bases, self.root, self.in_place = (
            cast("list[Exponential]", feature_map.base_maps),
            root,
            in_place,
        )
        self.n, self.widths = coefficient.n_projections, [base.feature_dim for base in self.bases]
        self.products = CodeSums(self.n, length, self.widths, x, columns, in_place=in_place)
        # One product projects for both bases and for the signs; ω is the same for all rows, or one per row.
        projections = [*dict.fromkeys(base.projection for base in self.bases), coefficient.projection]
        omega = root * torch.cat([p.omega for p in projections], -2).to(x.dtype)
        self.omega = omega if omega.ndim == 2 else omega.expand(*x.shape[:-2], -1, -1).flatten(0, -3)
        self.table = Scratch()

    def write(self, rows: slice, y: Tensor, values: Tensor, keep: Tensor | None) -> CodeState:
        """Return the state of some keys."""
        keys = self._tokens(y, "key", rows, keep)
        counts = self.products.codes.counts(keys.codes)
        scale = y.new_zeros(len(y), 1, 2).masked_fill_(counts.sum((1, 2)).view(-1, 1, 1) == 0, -torch.inf)
        if not keys.small:
            scale = keys.largest(self.bases).amax(-2, keepdim=True)
            keys = keys._replace(log_weight=keys.log_weight - finite(scale))
        sums = self.products.write(self._features(keys, empty=True), keys.codes, values)
        return CodeState(sums, counts, scale, keys.small)

    def read(self, rows: slice, state: CodeState, x: Tensor, sums: Tensor) -> Features:
        """Return the sums for some queries, ``(R, L, c)``; ``sums`` are those of the state of all keys."""
        queries, scale = self._tokens(x, "query", rows, None), x.new_zeros(*x.shape[:2], 1)
        small = queries.small and state.small
        if not small:
            queries, scale = self._rescaled(queries, state)
        total = self.products.read(self._features(queries._replace(small=small)), queries.codes, sums)
        return Features(total, scale - math.log(self.n))

    def _rescaled(self, queries: _Tokens, state: CodeState) -> tuple[_Tokens, Tensor]:
        """Shift log weights so that no feature overflows; return also the log scale of the sums, ``(R, L, 1)``."""
        weights = self.products.codes.spread(state.counts.unsqueeze(-1).expand(-1, -1, -1, 2), [1, 1])
        absent = weights.take_along_dim(queries.codes.unsqueeze(-1), -2).sum(1) == 0  # (R, L, 2)
        key_scale = finite(state.scale)
        largest = (queries.largest(self.bases) + key_scale).masked_fill(absent, -torch.inf)
        scale = finite(largest.amax(-1, keepdim=True))
        log_weight = (queries.log_weight + (key_scale - scale)).masked_fill(absent, -torch.inf)
        return queries._replace(log_weight=log_weight), scale

    def _tokens(self, u: Tensor, side: Side, rows: slice, keep: Tensor | None) -> _Tokens:
        omega = self.omega if self.omega.ndim == 2 else self.omega[rows]
        products, square = u @ omega.mT, self.root**2 * half_square(u)
        codes = self.products.codes.of_signs(products[..., -self.n :])
        # Contiguous: exponentials of part of the columns are far slower.
        projected = products[..., : -self.n].contiguous()
        if keep is not None:
            keep = keep.unsqueeze(-1)
            projected, square = (t.masked_fill(~keep, 0) for t in (projected, square))
            codes = codes.where(keep.mT, self.products.codes.shape[1])
        weights = [base.isotropic_log_weight(square) for base in self.bases]
        log_weight = torch.cat(weights, -1)
        check_finite(log_weight, u, side)
        # Queries and keys get a third of the range each, and the sums with the values the last.
        room = math.log(torch.finfo(u.dtype).max) / 3
        small = can_look(u) and _largest(projected) + _largest(log_weight) < room
        if keep is not None:
            log_weight = log_weight.masked_fill(~keep, -torch.inf)
        return _Tokens(codes, projected, log_weight, small)

    def _features(self, tokens: _Tokens, *, empty: bool = False) -> Tensor:
        """Return the features of both bases of all tokens, ``(R·L, D)``, and a row of zeros if ``empty``."""
        projected, logs = (t.flatten(0, 1) for t in (tokens.projected, tokens.log_weight))
        by_base = _by_base(projected, self.bases)
        if self.in_place and tokens.small:
            table = self.table.of(len(logs) + empty, sum(self.widths), like=logs)
            weights, parts = logs.exp().split(1, -1), table[: len(logs)].split(self.widths, -1)
            for base, p, weight, part in zip(self.bases, by_base, weights, parts, strict=True):
                base.fill_isotropic(p, weight, part)
            table[len(logs) :] = 0
            return table
        phi = []
        for base, p, log_weight in zip(self.bases, by_base, logs.split(1, -1), strict=True):
            phi.append(base.isotropic_features(p, log_weight))
        return pad(torch.cat(phi, -1), (0, 0, 0, int(empty)))


def _largest(numbers: Tensor) -> float:
    """Return the largest magnitude."""
    low, high = numbers.detach().aminmax()
    return max(-float(low), float(high))


def _by_base(projected: Tensor, bases: list[Exponential]) -> Sequence[Tensor]:
    """Return the columns ωᵀu of either base; bases may share them."""
    if bases[0].projection is bases[1].projection:
        return projected, projected
    return projected.split([base.n_projections for base in bases], -1)


PAD = 16  # of products.h


class CompiledCodes:
    """The compiled twin of `CodeEngine`, for all tokens of some rows.

    Args:
        bases: two of `Exponential`.
        omega: projections for the bases and then for n signs, ``(M, d)`` or ``(R, M, d)``, times ``root``.
        n: number of sign bits.
        length: tokens per row.
        root: √scale, which multiplies tokens.
        ones: add a column of ones to the values.
    """

    def __init__(
        self, bases: list[Exponential], omega: Tensor, n: int, length: int, root: float, *, ones: bool
    ) -> None:
        self.n, self.ones = n, ones
        self.codes = Codes.of(n, length / tuning.COMPILED_CODE_TOKENS, omega)
        self.omega = pad(omega, (0, 0, 0, -omega.shape[-2] % PAD)).mT.contiguous()
        self.width = sum(base.feature_dim for base in bases)
        kinds = [2 if b.query_matrix.has_imag else 1 if b.antithetic else 0 for b in bases]  # as in codes.h
        starts = [0, 0 if bases[0].projection is bases[1].projection else bases[0].n_projections]
        self.bases = torch.tensor([*zip(kinds, starts, (b.n_projections for b in bases), strict=True)])
        # Logs of weights are linear in the square, and the same for queries and keys: two values tell all.
        squares = omega.new_tensor([[0.0], [1.0]])
        found = torch.stack([b.isotropic_log_weight(squares).flatten() for b in bases])
        self.logs = torch.stack([found[:, 0], (found[:, 1] - found[:, 0]) * root**2], -1)
        self.buffers = (Scratch(), Scratch()), (Scratch(), Scratch())

    def sums(self, rows: slice, x: Tensor, y: Tensor, values: Tensor, keep: Tensor | None) -> Features | None:
        """Return the sums of some rows, ``(R, L, c)``; ``None`` if features come too near to overflow or underflow."""
        if keep is not None:
            y = y.masked_fill(~keep.unsqueeze(-1), 0)  # padding must not count
        prepared = self._prepare(rows, x, y)
        if prepared is None:
            return None
        queries, keys = prepared
        if keep is not None:
            keys[2].masked_fill_(~keep.unsqueeze(-1), self.codes.shape[1])
        columns = values.shape[-1]
        size = core.task_tokens(*y.shape[:2])
        state = self.width + -self.width % PAD, columns + -columns % PAD + 1
        n_states, parts = self.codes.same.shape[:2], -(-y.shape[1] // size)
        states = y.new_zeros(len(y), parts, *n_states, state[0] * state[1])
        out = x.new_empty(*x.shape[:2], state[1])
        self._run("write_codes", keys, values.contiguous(), out, states, y.shape[1], columns, size)
        total = states.sum(1)
        size = core.task_tokens(*x.shape[:2])
        self._run("read_codes", queries, values, out, total, x.shape[1], columns, size)
        scale = out.new_full((1, 1, 1), -math.log(self.n)).expand(*x.shape[:2], 1)
        # Sums over ones stand after those over values.
        return Features(out[..., : columns + self.ones], scale)

    def _run(
        self,
        name: str,
        prepared: list[Tensor],
        values: Tensor,
        out: Tensor,
        states: Tensor,
        length: int,
        width: int,
        size: int,
    ) -> None:
        bits = self.codes.bits
        numbers = len(states), length, self.omega.shape[-1], len(bits), states.shape[-2] // 2, width, size
        threads, is_double = torch.get_num_threads(), out.dtype == torch.float64
        given = values if name == "write_codes" else None
        core.run(name, *prepared, given, out, states, bits, self.bases, *numbers, threads, is_double)

    def _prepare(self, rows: slice, *sides: Tensor) -> list[list[Tensor]] | None:
        """Return products, weights and codes of queries and keys, if all features are far from over- and underflow."""
        omega = self.omega if self.omega.ndim == 2 else self.omega[rows].contiguous()
        largest, found = [], []
        stride = 0 if omega.ndim == 2 else omega[0].numel()
        for u, buffers in zip(sides, self.buffers, strict=True):
            shapes = omega.shape[-1], 2
            mine = [buffer.of(*u.shape[:2], n, like=u) for buffer, n in zip(buffers, shapes, strict=True)]
            mine.append(torch.empty(*u.shape[:2], len(self.codes.bits), dtype=torch.int32))
            largest.append(u.new_empty(2))
            numbers = *u.shape, omega.shape[-1], len(self.codes.bits), stride, core.task_tokens(*u.shape[:2])
            given = u.contiguous(), omega, self.codes.bits, self.bases, self.logs
            threads, is_double = torch.get_num_threads(), u.dtype == torch.float64
            core.run("prepare_codes", *given, *mine, largest[-1], *numbers, threads, is_double)
            found.append(mine)
        # Queries and keys get a third of the range each, and the sums with the values the last.
        limit = math.log(torch.finfo(omega.dtype).max) / 3
        return found if all(float(t.sum()) < limit for t in largest) else None


Result = TypeVar("Result")


def serves(feature_map: object) -> bool:
    """Return whether the map has two isotropic exponential bases and an angular coefficient."""
    return (
        isinstance(feature_map, Hybrid)
        and len(feature_map.bases) == 2
        and all(isinstance(base, Exponential) and base.isotropic for base in feature_map.bases)
        and isinstance(feature_map.coefficients[0], Angular)
    )


def stream(
    x: Tensor,
    y: Tensor,
    values: Tensor,
    feature_map: Hybrid,
    keep: Tensor | None = None,
    root: float = 1,
    *,
    ones: bool = False,
) -> Iterator[Features]:
    """Yield Σ_y K̂(x, y) v(y) over the keys to keep, block by block of queries.

    A block is ``(rows, L, c)``, several rows, or ``(1, tokens, c)``, part of a long row.

    Args:
        x: queries ``(..., H, L, d)``, checked.
        y: keys ``(..., H, S, d)``.
        values: ``(..., H, S, c)``.
        feature_map: one that this engine `serves`.
        keep: booleans that broadcast to ``(..., H, S)``; ``None`` keeps all.
        root: √scale, which multiplies queries and keys.
        ones: add a column of ones to the values.
    """
    if not (x.numel() and y.numel()):
        yield nothing(x, y, with_ones(values) if ones else values)
        return
    if keep is not None:
        keep = keep.expand(y.shape[:-1]).flatten(0, -2)
    traced = any(feature_map.needs_graph(u) for u in (x, y, values))
    tokens = tuning.ANGULAR_GRAPH_TOKENS if traced else tuning.ANGULAR_TOKENS
    length, columns = min(y.shape[-2], tokens), values.shape[-1] + ones
    engine = CodeEngine(feature_map, x, length, columns, root, in_place=not traced)
    compiled: CompiledCodes | None = None
    if not traced and core.serves(x, y, values):
        compiled = CompiledCodes(engine.bases, engine.omega, engine.n, y.shape[-2], root, ones=ones)
    x, y, values = (u.flatten(0, -3) for u in (x, y, values))
    length = max(x.shape[1], y.shape[1])
    learned = [engine.omega] if engine.omega.requires_grad else []
    run = partial(recompute, learned=learned) if traced and length > tokens else _run
    step = max(1, tokens // length)
    for start in range(0, len(x), step):
        rows = slice(start, start + step)
        some = x[rows], y[rows], values[rows], None if keep is None else keep[rows]
        if compiled and (found := compiled.sums(rows, *some)):
            yield found
            continue
        compiled = None  # other rows will be like these
        queries, keys, seen = (t.split(tokens, 1) for t in some[:3])
        masks = repeat(None) if some[3] is None else some[3].split(tokens, 1)
        state: CodeState | None = None
        for part in zip(keys, seen, masks, strict=False):
            new = CodeState(*run(partial(engine.write, rows), *part))
            state = new if state is None else state.plus(new, engine.widths)
        assert state is not None
        for q in queries:
            yield Features(*run(partial(engine.read, rows, state), q, state.sums))


def _run(function: Callable[..., Result], *tensors: Tensor | None) -> Result:
    """Call a function at once; the twin of `recompute`."""
    return function(*tensors)
