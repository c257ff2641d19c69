"""Decoding with causal summarised attention: keys, values, some queries, and the summaries of finished blocks.

`SummarisedState` holds the tokens so far. New queries attend to all of them: many at once as `causal_sums` does, a few
of them one by one, by the compiled core, which reads summaries that are kept (`_Kept`). Both make the same choices, so
that continuing equals the whole to rounding. Blocks are functions of the tokens: they are computed when a step first
needs them, and a cropped, copied or restored state computes those it lacks.

A query at position p reads one block per binary digit of p / BASE. A block of B tokens keeps √B cells with √B summaries
each, which is B rows per query head, beside its keys and values.
"""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import Self

from hrf import _core as core
from hrf._attention.summarised.blocks import BASE, EVERY, OPENING, SINK, TEST, Choices, block_levels
from hrf._attention.summarised.causal import PAD, CausalRows, causal_sums
from hrf._attention.summarised.method import SummarisedAttention

__all__ = ["SummarisedState"]

FEW = 16  # new queries at most that are computed one by one
GROWTH = 1.5  # of the room for tokens, when it is used up


class _Kept(NamedTuple):
    """A finished block of one batch item, as ``struct Kept`` of the core describes it."""

    tensors: tuple[Tensor, ...]
    numbers: tuple[int, ...]

    def row(self) -> list[int]:
        """Return the fields of the structure."""
        return [t.data_ptr() for t in self.tensors] + list(self.numbers)

    def nbytes(self) -> int:
        """Return the memory it takes."""
        return sum(t.numel() * t.element_size() for t in self.tensors)


def pieces(position: int, base: int) -> list[tuple[int, int]]:
    """Return where the blocks that a query reads begin and end, from left to right."""
    found, start, rest = [], 0, position // base
    while rest:
        blocks = 1 << (rest.bit_length() - 1)
        found.append((start, start + blocks * base))
        start, rest = start + blocks * base, rest - blocks
    return found


class SummarisedState:
    """Tokens of one layer of a decoder, with H query heads and H_kv key heads.

    Args:
        choices: of the calls.

    Attributes:
        length: number of tokens so far, padding included.
    """

    def __init__(self, choices: Choices) -> None:
        self.choices, self.length = choices, 0
        self._first: Tensor | None = None  # padding before the tokens of each item, (B,)
        self._keys = self._values = self._earlier = self._masses = torch.empty(0)
        self._width = 0
        self._kept: list[dict[tuple[int, int], _Kept]] = []

    @classmethod
    def of(cls, method: SummarisedAttention, dim: int, scale: float) -> Self:
        """Return a state for calls with a method, for heads of ``dim`` dimensions."""
        if method.target_error is not None:
            raise ValueError(
                f"a cache came with {method}, whose tolerance depends on the call; expected a number"
            )
        base = BASE if method.tolerance else 1 << 62
        return cls(Choices(math.sqrt(scale), float(method.tolerance), method.angles(dim), base))

    @torch.no_grad()
    def attend(self, query: Tensor, key: Tensor, value: Tensor, ignore: Tensor | None = None) -> Tensor:
        """Add tokens, and return what their queries read: ``(B, H, L, d_v)``, zeros for padding.

        Args:
            query: ``(B, H, L, d)``, float32 or float64.
            key: ``(B, H_kv, L, d)``.
            value: ``(B, H_kv, L, d_v)``.
            ignore: padding among these tokens, booleans ``(B, L)``: before the first token of an item only.
        """
        batch, heads, length, _ = query.shape
        self._add_padding(batch, length, ignore)
        self._add(key, value, heads)
        assert self._first is not None
        served = core.serves(query, key, value)
        if length > FEW or not served:
            return self._many(query, served)
        outputs, start = [], 0
        while start < length:
            at = self.length - length + start - self._first  # positions of the next queries
            step = min(length - start, int((self.choices.base - at.clamp(min=0) % self.choices.base).min()))
            outputs.append(
                self._steps(query[:, :, start : start + step], self.length - length + start + step)
            )
            start += step
        return torch.cat(outputs, 2)

    def _add(self, key: Tensor, value: Tensor, heads: int) -> None:
        """Write keys and values behind the others."""
        batch, key_heads, length, dim = key.shape
        self._width = value.shape[-1]
        if not self._kept:
            d, w = (n + -n % PAD for n in (dim, self._width))
            self._keys, self._values = (
                key.new_zeros(batch, key_heads, 0, d),
                value.new_zeros(batch, key_heads, 0, w),
            )
            self._earlier, self._masses = key.new_zeros(batch, heads, 0, d), key.new_zeros(batch, heads, 0)
            self._kept = [{} for _ in range(batch)]
        before, end = self.length, self.length + length
        if end > self._keys.shape[2]:
            most = max(end, math.ceil(GROWTH * self.length)) + -max(end, math.ceil(GROWTH * self.length)) % 64
            grown = partial(_grown, length=before)
            self._keys, self._values = grown(self._keys, most), grown(self._values, most)
            known = -(-self.length // EVERY)
            self._earlier = _grown(self._earlier, most // EVERY, known)
            self._masses = _grown(self._masses[..., None], most // EVERY, known)[..., 0]
        own = slice(self.length, end)
        self._keys[:, :, own, :dim], self._values[:, :, own, : self._width] = key, value
        self.length = end

    def _add_padding(self, batch: int, length: int, ignore: Tensor | None) -> None:
        """Note where the tokens of each item begin."""
        if self._first is None:
            self._first = torch.zeros(batch, dtype=torch.long)
        if ignore is None:
            return
        real = ~ignore.cpu()
        leading = real.to(torch.uint8).argmax(-1).where(real.any(-1), length)
        if bool((length - leading != real.sum(-1)).any()) or bool(
            (leading > 0)[self._first < self.length].any()
        ):
            raise ValueError(
                "padding stands between tokens, or after them; a SummarisedCache expects padding on the left only"
            )
        self._first = self._first + leading

    def _many(self, query: Tensor, served: bool) -> Tensor:
        """Compute many new queries at once."""
        assert self._first is not None
        length, before = query.shape[2], self.length - query.shape[2]
        keys, values = self._keys[:, :, : self.length], self._values[:, :, : self.length]
        counts = self.length - self._first
        queries = counts.clamp(max=length)
        known = before > 0
        rows = CausalRows(
            *(_as_wide(query, keys), keys, values, length - queries, queries, self._first, counts),
            *((self._earlier, self._masses) if known else (None, None)),
        )
        choices = self.choices
        if not served and length <= FEW:  # exact: planning blocks for a few queries would take far longer
            choices = choices._replace(base=1 << (self.length - 1).bit_length())
        output, _, log_masses = causal_sums(rows, choices)
        self._remember(query, log_masses)
        return output[..., : self._width]

    def _steps(self, query: Tensor, end: int) -> Tensor:
        """Compute a few queries, the last of which is at ``end`` − 1, in one diagonal block of each item."""
        assert self._first is not None
        counts = end - self._first
        rows, items = [], [0]
        for b, count in enumerate(counts.tolist()):
            own = pieces(max(count - 1, 0), self.choices.base)
            self._kept[b] = {piece: self._kept[b].get(piece) or self._keep(b, piece) for piece in own}
            rows += [kept.row() for kept in self._kept[b].values()]
            items.append(len(rows))
        x = _as_wide(query, self._keys).contiguous()
        (batch, heads, length, d), w = x.shape, self._values.shape[-1]
        out, log_masses = x.new_zeros(batch, heads, length, w), x.new_zeros(batch, heads, length)
        core.run(
            "summarised_steps",
            *(
                d,
                w,
                batch * heads,
                batch,
                heads // self._keys.shape[1],
                length,
                self._keys.shape[2],
                self.choices.base,
            ),
            *(x, self._keys, self._values, self._first, counts, torch.tensor(items)),
            *(torch.tensor(rows or [0]), out, log_masses, float(self.choices.root)),
            *(float(self.choices.tolerance / OPENING), torch.get_num_threads(), x.dtype == torch.float64),
        )
        self._remember(query, log_masses, end)
        return out[..., : self._width]

    def _remember(self, query: Tensor, log_masses: Tensor, end: int | None = None) -> None:
        """Store every `EVERY`-th query of each item: the next blocks are made of them."""
        assert self._first is not None
        end, length = self.length if end is None else end, query.shape[2]
        for b, first in enumerate(self._first.tolist()):
            start = max(end - length - first, 0)
            start += -start % EVERY
            own = slice(start + first - (end - length), None, EVERY)
            if start + first < end:
                places = slice(start // EVERY, -(-(end - first) // EVERY))
                self._earlier[b, :, places, : query.shape[-1]] = query[b, :, own]
                self._masses[b, :, places] = log_masses[b, :, own]

    def _keep(self, b: int, piece: tuple[int, int]) -> _Kept:
        """Compute what a block of an item keeps."""
        assert self._first is not None
        start, end = piece
        size, dtype, base = end - start, self._keys.dtype, self.choices.base
        first_key = start or SINK
        n_keys, levels = end - first_key, block_levels(size)
        parts = 1 << levels
        heads, d, w = self._earlier.shape[1], self._keys.shape[-1], self._values.shape[-1]
        wide = parts + -parts % PAD
        numbers, integers, words = (partial(torch.empty, dtype=t) for t in (dtype, torch.long, torch.int32))
        starts = integers(heads * parts + 1)
        tensors = [
            *(numbers(heads, d, d), numbers(heads, d, wide), numbers(heads, wide), numbers(heads)),
            *(numbers(heads, parts, d), numbers(heads, parts, d), numbers(heads, parts)),
            *(numbers(heads, parts, parts, d + w), numbers(heads, parts, parts)),
            *(words(heads, n_keys), words(heads, parts, parts + 1), integers(heads, parts + 1), starts),
        ]
        sizes = [base << i for i in range((size // base).bit_length())]
        turns = [self.choices.turns(s, dtype) for s in sizes] if self.choices.rotary is not None else []
        cosines, sines = (
            (torch.stack([t[i] for t in turns if t is not None]) for i in (0, 1)) if turns else (None, None)
        )
        tau, one = self.choices.tolerance, partial(torch.tensor, dtype=torch.long)
        handle = core.run(
            "keep_block",
            *(d, w, heads, 1, heads // self._keys.shape[1], 0, self._keys.shape[2], base, len(sizes)),
            *(0 if cosines is None else cosines.shape[-1], 0, None, self._keys[b], self._values[b]),
            *(one([0]), one([0]), self._first[b : b + 1], one([end]), cosines, sines),
            *(torch.full((len(sizes), 2), levels), self._earlier[b], self._masses[b], self._earlier.shape[2]),
            *(None, None, one([0, 0, 0]), *[None] * 10, one([0] * heads), float(self.choices.root)),
            *(math.log2(tau) if tau else -1e4, float(tau / OPENING), float(tau / TEST)),
            *(0, torch.get_num_threads(), dtype == torch.float64, end // base),
            *(*tensors, None, levels, levels, first_key, n_keys),
        )
        exact, _ = core.found(handle)
        starts[0] = 0
        starts.copy_(starts.cumsum(0))
        return _Kept((*tensors, exact), (levels, levels, first_key, n_keys))

    def crop(self, length: int) -> None:
        """Forget all tokens from a position on."""
        self.length = length
        for kept, first in zip(self._kept, [] if self._first is None else self._first.tolist(), strict=False):
            for piece in [p for p in kept if p[1] + first > length]:
                del kept[piece]
        if self._first is not None:
            self._first = self._first.clamp(max=length)

    def reorder(self, index: Tensor) -> None:
        """Keep the batch elements of these indices, in their order."""
        if self._first is None:
            return
        own = index.to(self._keys.device)
        self._keys, self._values, self._earlier, self._masses = (
            u.index_select(0, own) for u in (self._keys, self._values, self._earlier, self._masses)
        )
        self._first = self._first.index_select(0, index.cpu())
        self._kept = [dict(self._kept[i]) for i in index.tolist()]

    def copy(self) -> Self:
        """Return a state that continues on its own; finished blocks, which never change, are shared."""
        other = copy.copy(self)
        other._keys, other._values, other._earlier, other._masses = (
            u.clone() for u in (self._keys, self._values, self._earlier, self._masses)
        )
        other._kept = [dict(kept) for kept in self._kept]
        return other

    def tensors(self) -> dict[str, Tensor]:
        """Return the tokens as tensors; empty before the first one."""
        if self._first is None:
            return {}
        n, known = self.length, -(-self.length // EVERY)
        return {
            "keys": self._keys[:, :, :n],
            "values": self._values[:, :, :n],
            "queries": self._earlier[:, :, :known],
            "masses": self._masses[:, :, :known],
            "padding": self._first,
        }

    def load(self, tensors: dict[str, Tensor]) -> Self:
        """Continue from what `tensors` returned."""
        if tensors:
            self._keys, self._values, self._earlier, self._masses = (
                tensors[name].clone(memory_format=torch.contiguous_format)
                for name in ("keys", "values", "queries", "masses")
            )
            self._first, self.length = tensors["padding"].cpu(), self._keys.shape[2]
            self._kept = [{} for _ in range(len(self._keys))]
        return self

    def nbytes(self) -> dict[str, int]:
        """Return the memory of keys and values, of queries, and of finished blocks."""
        size = {name: t.numel() * t.element_size() for name, t in self.tensors().items()}
        blocks = {id(kept): kept.nbytes() for own in self._kept for kept in own.values()}
        return {
            "keys and values": size.get("keys", 0) + size.get("values", 0),
            "queries": size.get("queries", 0) + size.get("masses", 0),
            "blocks": sum(blocks.values()),
        }


def _grown(u: Tensor, most: int, length: int) -> Tensor:
    """Return a tensor with room for more tokens, the first ``length`` of them kept."""
    grown = u.new_zeros(*u.shape[:2], most, u.shape[3])
    grown[:, :, :length] = u[:, :, :length]
    return grown


def _as_wide(u: Tensor, keys: Tensor) -> Tensor:
    return F.pad(u, (0, keys.shape[-1] - u.shape[-1])) if u.shape[-1] != keys.shape[-1] else u
