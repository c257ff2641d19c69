"""Attention by Triton kernels, for maps whose features are functions of affine exponents; the twin of `CompiledMaps`.

Every method makes the launches of one pass. States in kernels are flat, (N, slots, S then z): `_flat` and `_columns` go
between them and ``(N, D, d_v + 1)``. Causal passes cut positions into chunks, and keep the state before each.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import Self

from hrf._attention.call import Call, Outputs, with_ones
from hrf._attention.compiled_maps import KINDS, Attended
from hrf._attention.denominator import Running, of_all
from hrf._attention.triton.pull_tokens import pull_tokens
from hrf._attention.triton.read_state import read_state, scale_keys
from hrf._attention.triton.step import step
from hrf._attention.triton.sum_tokens import sum_tokens
from hrf.features.affine_exponents import Affine
from hrf.numerics import check_finite

__all__ = ["Blocks", "TritonMaps", "blocks_for", "launch"]

WIDEST = 256  # dimension of tokens and values
CHUNK = 64  # positions per state of a causal call: more have fewer states in memory, and more pairs
PIECE = 1 << 12  # positions of a causal call to which the rule for denominators is applied at a time
PROGRAMS = 512  # at least, where a sum over keys is cut into parts: a few per multiprocessor
AMD = torch.version.hip is not None


class Blocks(NamedTuple):
    """Sizes of blocks, powers of two of 16 or more.

    Attributes:
        T: tokens, the length of a chunk.
        M: projections of a sum.
        D: dimensions.
        V: columns of values.
        few: projections at a time where tokens stay and projections pass.
        pulled: likewise, for causal gradients of tokens.
        SPAN: blocks of T positions per chunk of a causal call: each has a state in memory.
    """

    T: int
    M: int
    D: int
    V: int
    few: int
    pulled: int
    SPAN: int


def blocks_for(dim: int, width: int, *, short: bool, turns: bool) -> Blocks:
    """Choose sizes that leave registers unspilled up to d = 128, in float32 up to 64 (``benchmarks.gpu.compile``)."""
    d, v = (max(16, 1 << (n - 1).bit_length()) for n in (dim, width))
    small = max(d, v) <= 64
    tokens = 32 if short and small else 16
    pulled = 16 if tokens == 32 or AMD else 32  # all warps would hold a block of (16, 16)
    return Blocks(tokens, 16 if turns or max(d, v) > 128 else 32, d, v, 16, pulled, CHUNK // tokens)


class _Side(NamedTuple):
    """Tokens ``(B, H, L, d)``, their strides, and their map as kernels read it."""

    tokens: Tensor
    matrix: Tensor
    offset: Tensor

    def fields(self) -> tuple[Any, ...]:
        """Return the arguments of a kernel."""
        return self.tokens, *self.tokens.stride()[:3], self.matrix, self.offset, len(self.matrix)


class _Scales(NamedTuple):
    """Log weights, log scales s and the largest so far c, of keys ``(N, S)``; c before and after chunks, ``(N, K)``."""

    logs: Tensor
    own: Tensor
    tops: Tensor
    starts: Tensor
    ends: Tensor

    @property
    def decays(self) -> Tensor:
        """Return exp(c before − c after) per chunk."""
        return (self.starts - self.ends).exp()


def launch(kernel: Any, grid: tuple[int, ...], arguments: dict[str, Any], num_warps: int) -> None:
    """Run a kernel on the device of its first argument; reports replace this function to see all launches."""
    with torch.cuda.device_of(arguments["x"]):
        kernel[grid](**arguments, num_warps=num_warps, num_stages=1)


@dataclass(frozen=True)
class TritonMaps:
    """A call that the kernels serve.

    Attributes:
        call: the call.
        query: rows and their map.
        key: keys and their map.
        value: ``(B, H, S, d_v)``.
        n_projections: m.
        square: factor of −‖x‖²/2 in the log weight.
        kind: number of the kind of exponents.
        blocks: sizes.
        ignore: keys to leave out, bytes ``(B, S)``.
    """

    call: Call
    query: _Side
    key: _Side
    value: Tensor
    n_projections: int
    square: float
    kind: int
    blocks: Blocks
    ignore: Tensor | None

    @classmethod
    def of(cls, call: Call, query: Tensor, key: Tensor, value: Tensor) -> Self | None:
        """Prepare ``(B, H, ·, ·)``; ``None`` if the kernels do not serve the map or these tensors."""
        if (
            call.learned
            or call.dtype != torch.float32
            or not (query.numel() and key.numel() and value.numel())
        ):
            return None
        dim, width = key.shape[-1], value.shape[-1]
        affine = call.feature_map.affine() if max(dim, width) <= WIDEST else None
        if affine is None:
            return None
        hidden = None if call.ignore is None else call.ignore.contiguous()
        _check(query, key, hidden)
        query_side = _Side(_by_rows(query), *_weights(affine.query, call))
        key_side = _Side(_by_rows(key), *_weights(affine.key, call))
        square, kind = (-1 if affine.kind == "turns" else 1) * call.root**2, KINDS.index(affine.kind)
        sizes = blocks_for(dim, width, short=_is_bfloat16(query, key, value), turns=affine.kind == "turns")
        ignore = None if hidden is None else hidden.view(torch.uint8)
        m = affine.n_projections
        return cls(call, query_side, key_side, _by_rows(value), m, square, kind, sizes, ignore)

    def bidirectional(self, *, traced: bool) -> tuple[Outputs, Tensor, Tensor]:
        """Return outputs, state ``(N, D, d_v + 1)`` and its scale, ``(N, 1, 1)``."""
        parts, chunk = self._parts(self.key)
        states = self._states(parts)
        scales = states.new_empty(self._rows, parts, self._n_blocks)
        self._sum(self.key, self.value, (None, None, None), (scales, None, states), parts, chunk)
        by_feature = scales.repeat_interleave(self.blocks.M, -1)[..., : self.n_projections]
        by_feature = by_feature.repeat(1, 1, self._features // self.n_projections)
        top = scales.amax((1, 2)).view(-1, 1, 1)
        state = (self._columns(states) * (by_feature - top).exp().unsqueeze(-1)).sum(1)
        outputs = self._read(_flat(state).unsqueeze(1), state, traced=traced)
        outputs.log_scale.add_(top)
        seen = of_all(self.value, self.call.ignore, self.call.dtype, signed=self._signed)
        return outputs.settled(self.call, self.query.tokens, seen), state, top

    def bidirectional_backward(
        self, state: Tensor, scale: Tensor, outputs: Outputs, grad: Tensor
    ) -> list[Tensor]:
        """Return the gradients of query, key and value."""
        given = outputs.gradient_of_sums(grad)
        parts, chunk = self._parts(self.query)
        states, shift = self._states(parts), -_known(outputs.exponents)
        self._sum(
            self.query, self._as_rows(given[0]), (shift, *given[1:]), (None, None, states), parts, chunk
        )
        grad_query, _ = self._pull(
            self.query, self._as_rows(given[0]), (shift, None, *given[1:]), _flat(state)
        )
        over_queries = states.sum(1)
        grad_key, grad_value = self._pull(self.key, self.value, (None, None, None, None), over_queries, scale)
        return [grad_query, grad_key, grad_value]

    def causal(self, state: Tensor, scale: Tensor, *, traced: bool) -> Attended:
        """Attend from a state ``(N, D, d_v + 1)``."""
        scales = self._scales(scale)
        states = self._states_of_chunks(state, scales)
        outputs = self._read(states, state, scales, traced=traced)
        outputs.log_scale.add_(self._per_row(scales.tops).unsqueeze(-1))
        last = self._columns(states[:, -1]).contiguous()
        return self._attended(outputs, last, scales.ends[:, -1:, None], scales.tops.unsqueeze(-1))

    def causal_backward(
        self, state: Tensor, scale: Tensor, tops: Tensor, outputs: Outputs, grads: tuple[Tensor, Tensor]
    ) -> list[Tensor]:
        """Return the gradients of query, key, value and state, given those of outputs and of the last state."""
        grad, factor, extra = outputs.gradient_of_sums(grads[0])
        scales, tops = self._scales(scale), self._per_row(tops.squeeze(-1))
        starts, n_chunks = self._per_row(self._per_chunk(scales.starts)), scales.starts.shape[1]
        exponents, share = _known(outputs.exponents).squeeze(-1), (starts - tops).exp()
        later = self._states(n_chunks + 1)
        later[:, -1] = _flat(grads[1])
        sums = None, scales.decays, later
        given = self._as_rows(grad), (starts - tops - exponents, factor, extra)
        self._sum(self.query, *given, sums, n_chunks, self._chunk * self._groups, scan=True)
        before = self._states_of_chunks(state, scales)
        queries = self.query, self._as_rows(grad), (-exponents, share, factor, extra)
        key_share = (scales.own - self._per_chunk(scales.ends)).exp()
        keys = self.key, self.value, (scales.logs - scales.own, key_share, None, None)
        grad_query, _ = self._pull(*queries, before, None, keys, scales)
        grad_key, grad_value = self._pull(*keys, later[:, 1:], None, queries, scales)
        return [grad_query, grad_key, grad_value, self._columns(later[:, 0])]

    def step(self, state: Tensor, scale: Tensor) -> Attended:
        """Attend from a state to a single position more; there are no gradients."""
        outputs, new = Outputs.empty(state, self.query.tokens.shape[2]), state.new_empty(state.shape)
        after, columns = scale.new_empty(scale.shape), -(-self.value.shape[-1] // self.blocks.V)
        tokens = *self.query.fields(), *self.key.fields(), self.value, *self.value.stride()[:3], self.ignore
        results = (
            state.contiguous(),
            scale.contiguous(),
            new,
            after,
            outputs.values,
            outputs.used,
            outputs.log_scale,
        )
        sizes, queries = self._sizes(self.query), self.query.tokens.shape[2]
        rows = 16 if queries <= 16 else 32
        grid = self._rows, columns, -(-queries // rows)
        self._launch(step, grid, *tokens, *results, *sizes, T=rows)
        outputs.log_scale.add_(after)
        return self._attended(outputs, new, after, after)

    # Launches.

    def _launch(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        tokens, sums = (self.query.tokens, self.key.tokens, self.value), kernel in (sum_tokens, scale_keys)
        given = dict(zip(kernel.arg_names, arguments, strict=False))
        constants: dict[str, Any] = {
            "KIND": self.kind,
            "SHIFTED": self.key.matrix.shape[-1] > self.n_projections,
        }
        constants |= {"HIDDEN": self.ignore is not None, "PRECISION": _precision(*tokens)}
        constants |= self.blocks._asdict() | ({} if sums else {"M": self.blocks.few}) | options
        given |= {name: value for name, value in constants.items() if name in kernel.arg_names}
        # Half as many warps where registers suffice.
        given_sums = sums and options.get("SCAN") is False and not options["ONLINE"] and self.blocks.M > 16
        launch(kernel, grid, given, 4 if kernel is step or (sums and not given_sums) else 8)

    def _sizes(self, side: _Side, *more: int) -> tuple[int | float, ...]:
        """Return heads, tokens, further sizes, and those of maps, as all kernels end their arguments."""
        heads, length, dim = side.tokens.shape[1:]
        return (heads, length, *more, dim, self.value.shape[-1], *self._map, self._features)

    def _sum(
        self,
        side: _Side,
        value: Tensor,
        given: tuple[Tensor | None, Tensor | None, Tensor | None],
        sums: tuple[Tensor | None, Tensor | None, Tensor],
        parts: int,
        chunk: int,
        *,
        scan: bool = False,
    ) -> None:
        """Sum over tokens with a shift, factors and last columns into scales, with decays, and states."""
        shift, *factors = given
        online, with_factors = shift is None, factors[0] is not None
        tokens = *side.fields(), shift, value, *value.stride()[:3], *factors, self.ignore, *sums
        sizes = self._sizes(side, chunk, parts if scan else 1, sums[-1].shape[1])
        columns = min(self.blocks.V, 64)
        grid = self._rows * self._n_blocks, (1 if scan else parts) * -(-self.value.shape[-1] // columns)
        options = {"ONLINE": online, "SCAN": scan, "REVERSE": scan and with_factors, "FACTORS": with_factors}
        hidden = self.ignore is not None and not with_factors
        self._launch(sum_tokens, grid, *tokens, *sizes, **options, V=columns, HIDDEN=hidden)

    def _read(self, states: Tensor, like: Tensor, scales: _Scales | None = None, *, traced: bool) -> Outputs:
        outputs = Outputs.empty(like, self.query.tokens.shape[2], moved=self._signed and traced)
        exponents, columns = torch.empty_like(outputs.used), -(-self.value.shape[-1] // self.blocks.V)
        of_keys = (None,) * 4 if scales is None else (scales.logs - scales.own, scales.own, *scales[2:4])
        tokens = *self.query.fields(), states, *self.key.fields(), self.value, *self.value.stride()[:3]
        results = outputs.values, outputs.used, outputs.log_scale, exponents
        groups = 1 if scales is None else self._groups
        sizes = self._sizes(self.query, self.key.tokens.shape[2], groups, states.shape[1])
        grid, causal = (self._rows * self._blocks_of(self.query), columns), scales is not None
        self._launch(read_state, grid, *tokens, *of_keys, self.ignore, *results, *sizes, CAUSAL=causal)
        return outputs._replace(exponents=exponents)

    def _pull(
        self,
        side: _Side,
        value: Tensor,
        given: tuple[Tensor | None, ...],
        states: Tensor,
        scale: Tensor | None = None,
        others: tuple[Any, ...] | None = None,
        scales: _Scales | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients of tokens and, for keys, of values; given shift, share, factors, last columns."""
        keys, causal = side is self.key, others is not None
        partner, other_value, (other_shift, _, *other_factors) = others or (side, value, (None,) * 4)
        found = torch.empty_like(side.tokens, memory_format=torch.contiguous_format)
        found_value = torch.empty_like(value, memory_format=torch.contiguous_format) if keys else None
        groups = (1, self._groups if causal else 1) if keys else (self._groups if causal else 1, 1)
        tokens = (
            *side.fields(),
            *given[:2],
            value,
            *value.stride()[:3],
            *given[2:],
            self.ignore,
            scale,
            states,
        )
        more = *partner.fields(), other_shift, other_value, *other_value.stride()[:3], *other_factors
        levels = (None, None) if scales is None else (scales.own, scales.tops)
        n_slots = states.shape[1] + keys if causal else 1  # a view of the slots after the first, for keys
        sizes = self._sizes(side, partner.tokens.shape[2], *groups, n_slots)
        grid: tuple[int, ...] = (self._rows * self._blocks_of(side),)
        options: dict[str, Any] = {"KEYS": keys, "CAUSAL": causal}
        for wanted in ((True, False), (False, True)) if keys and causal else ((True, keys),):
            options |= {"TOKENS": wanted[0], "VALUES": wanted[1]}
            options["M"] = self.blocks.pulled if causal and wanted[0] else self.blocks.few
            self._launch(pull_tokens, grid, *tokens, *more, *levels, found, found_value, *sizes, **options)
        return found, found if found_value is None else found_value

    def _scales(self, scale: Tensor) -> _Scales:
        length, size = self.key.tokens.shape[2], self._chunk
        logs, own = (self.value.new_empty(self._rows, length, dtype=torch.float32) for _ in range(2))
        sizes = self._sizes(self.key)
        arguments = *self.key.fields(), self.ignore, logs, own, *sizes[:3], *sizes[4:-1]
        self._launch(scale_keys, (self._rows * self._blocks_of(self.key),), *arguments)
        first = scale.reshape(-1, 1)
        tops = torch.maximum(own.cummax(1).values, first)
        ends = torch.cat([tops[:, size - 1 : length - 1 : size], tops[:, -1:]], 1)
        return _Scales(logs, own, tops, torch.cat([first, ends[:, :-1]], 1), ends)

    def _states_of_chunks(self, state: Tensor, scales: _Scales) -> Tensor:
        n_chunks = scales.starts.shape[1]
        states = self._states(n_chunks + 1)
        states[:, 0] = _flat(state)
        given = scales.logs - self._per_chunk(scales.ends), None, None
        sums = None, scales.decays, states
        self._sum(self.key, self.value, given, sums, n_chunks, self._chunk, scan=True)
        return states

    def _attended(self, outputs: Outputs, state: Tensor, scale: Tensor, tops: Tensor) -> Attended:
        """Apply the rule to causal outputs, piece by piece: means of the values so far take memory."""
        call, groups, seen = self.call, self._groups, Running(self.call.visible)
        used, small = torch.empty_like(outputs.used), torch.empty_like(outputs.small)
        for start in range(0, self.value.shape[2], PIECE):
            values = with_ones(self.value[:, :, start : start + PIECE].to(call.dtype))
            if call.ignore is not None:
                values.masked_fill_(call.ignore[:, None, start : start + PIECE, None], 0)
            rows = slice(start * groups, (start + PIECE) * groups)
            part = outputs.part(rows)
            own, query = replace(call, moments=call.moments[:, :, rows]), self.query.tokens[:, :, rows]
            part = part.settled(own, query, seen.chunk(values.flatten(0, 1), groups))
            used[:, rows], small[:, rows] = part.used, part.small
        return Attended(outputs._replace(used=used, small=small), state, scale, tops, seen.last)

    # Sizes and forms.

    @property
    def _signed(self) -> bool:
        return not self.call.feature_map.nonnegative

    @property
    def _rows(self) -> int:
        return self.value.shape[0] * self.value.shape[1]

    @property
    def _groups(self) -> int:
        return self.query.tokens.shape[2] // self.key.tokens.shape[2]

    @property
    def _features(self) -> int:
        return self.n_projections * (1 if KINDS[self.kind] == "single" else 2)

    @property
    def _chunk(self) -> int:
        return self.blocks.T * self.blocks.SPAN

    @property
    def _n_blocks(self) -> int:
        return -(-self.n_projections // self.blocks.M)

    @property
    def _map(self) -> tuple[int | float, ...]:
        return self.n_projections, self.key.matrix.shape[-1], self.square

    def _blocks_of(self, side: _Side) -> int:
        return -(-side.tokens.shape[2] // self.blocks.T)

    def _parts(self, side: _Side) -> tuple[int, int]:
        """Return into how many parts tokens are cut for a sum, and tokens per part, a multiple of T."""
        blocks = self._blocks_of(side)
        parts = min(blocks, -(-PROGRAMS // (self._rows * self._n_blocks)))
        per_part = -(-blocks // parts)
        return -(-blocks // per_part), per_part * self.blocks.T

    def _states(self, slots: int) -> Tensor:
        size = self._features * (self.value.shape[-1] + 1)
        return self.value.new_empty(self._rows, slots, size, dtype=torch.float32)

    def _columns(self, states: Tensor) -> Tensor:
        """Return flat states as ``(..., D, d_v + 1)``."""
        width = self.value.shape[-1]
        sums, last = states.split([self._features * width, self._features], -1)
        return torch.cat([sums.unflatten(-1, (self._features, width)), last.unsqueeze(-1)], -1)

    def _as_rows(self, u: Tensor) -> Tensor:
        """Return ``(N, L, ·)`` as ``(B, H, L, ·)``."""
        return u.unflatten(0, self.value.shape[:2])

    def _per_chunk(self, u: Tensor) -> Tensor:
        """Repeat numbers of chunks, ``(N, K)``, for positions."""
        return u.repeat_interleave(self._chunk, 1)[:, : self.key.tokens.shape[2]]

    def _per_row(self, u: Tensor) -> Tensor:
        """Repeat numbers of positions, ``(N, S)``, for the rows of the query."""
        return u if self._groups == 1 else u.repeat_interleave(self._groups, 1)


def _flat(state: Tensor) -> Tensor:
    """Return states ``(N, D, d_v + 1)`` as kernels have them."""
    return torch.cat([state[..., :-1].flatten(-2), state[..., -1]], -1)


def _is_bfloat16(*tokens: Tensor) -> bool:
    return all(u.dtype == torch.bfloat16 for u in tokens)


def _precision(*tokens: Tensor) -> str:
    """Return how products are computed: TF32 rounds maps, features and states no coarser than float16.

    So it is fine enough for bfloat16. Three products of it hold float32.
    """
    if AMD:
        return "ieee"  # not all of AMD's GPUs have TF32
    if _is_bfloat16(*tokens) or torch.get_float32_matmul_precision() != "highest":
        return "tf32"
    return "tf32x3"


def _known(u: Tensor | None) -> Tensor:
    assert u is not None, "the forward pass wrote it"
    return u


def _by_rows(u: Tensor) -> Tensor:
    """Return tokens whose numbers are neighbours in memory."""
    u = u.detach()
    return u if u.stride(-1) == 1 else u.contiguous()


def _weights(affine: Affine, call: Call) -> tuple[Tensor, Tensor]:
    return (affine.matrix * call.root).float().contiguous(), affine.offset.float().contiguous()


def _check(query: Tensor, key: Tensor, hidden: Tensor | None) -> None:
    """Let the device assert that tokens are finite, if that is asked for; ignored keys need not be."""
    if os.environ.get("HRF_ASSERT") != "1" or query.is_cpu:
        return
    shown = key if hidden is None else key.masked_fill(hidden[:, None, :, None], 0)
    check_finite(query, query, "query")
    check_finite(shown, shown, "key")
