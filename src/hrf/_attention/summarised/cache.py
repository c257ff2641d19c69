"""Decoding with causal summarised attention: keys, values, some queries, and the summaries of finished blocks.

`SummarisedState` holds the tokens so far. New queries attend to all of them: many at once as `causal_sums` does, a few
of them one by one, by the compiled core, which reads summaries that are kept (`_Kept`). Both make the same choices, so
that continuing equals the whole to rounding. Blocks are functions of the tokens: they are computed when a step first
needs them, and a cropped, copied or restored state computes those it lacks.

A query at position p reads one block per binary digit of p / BASE. A block of B tokens keeps about √B cells with √B
summaries each, which is B/2 to 2B rows per query head, beside its keys and values.
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
from hrf._attention.summarised.method import SummarisedAttention
from hrf._attention.summarised.recursion import PAD, CausalRows, causal_sums

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
        self._counts = torch.empty(0, dtype=torch.long)  # tokens of each item, without padding
        self._longest = 0  # no item has more tokens
        self._present: list[Tensor] | None = None  # which tokens are no padding, (B, ·) each; None is all
        self._keys = self._values = self._earlier = self._masses = torch.empty(0)
        self._width = 0
        self._kept: list[dict[tuple[int, int], _Kept]] = []
        self._tables = (self._counts, self._counts)  # of `_kept`, for the core
        self._left = 0  # tokens that every item can take before `_tables` changes

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
            ignore: padding among these tokens, booleans ``(B, L)``, anywhere. It is not stored.
        """
        real, served = None, core.serves(query, key, value)
        if ignore is not None and bool(ignore.any()):
            real = ~ignore.cpu()
        self._expect(key, value, query.shape[1], real)
        if served and query.shape[2] <= FEW:
            return self._few(query, key, value, real)
        return self._many(query, key, value, real, served)

    def _expect(self, key: Tensor, value: Tensor, heads: int, real: Tensor | None) -> None:
        """Make room for tokens, and note which of them are padding."""
        batch, key_heads, length, dim = key.shape
        self._width = value.shape[-1]
        if not self._kept:
            d, w = (n + -n % PAD for n in (dim, self._width))
            self._keys = key.new_zeros(batch, key_heads, 0, d)
            self._values = value.new_zeros(batch, key_heads, 0, w)
            self._earlier, self._masses = key.new_zeros(batch, heads, 0, d), key.new_zeros(batch, heads, 0)
            self._kept = [{} for _ in range(batch)]
            self._counts = torch.zeros(batch, dtype=torch.long)
        if real is not None and self._present is None:
            self._present = [torch.ones(batch, self.length, dtype=torch.bool)]
        if self._present is not None:
            self._present.append(torch.ones(batch, length, dtype=torch.bool) if real is None else real)
        self._make_room(self._longest + length)
        self.length += length
        self._longest += length

    def _make_room(self, tokens: int) -> None:
        """Let a number of tokens fit."""
        if tokens <= self._keys.shape[2]:
            return
        before = int(self._counts.max())
        most = max(tokens, math.ceil(GROWTH * before))
        most += -most % 64
        known = -(-before // EVERY)
        self._keys, self._values = (_grown(u, most, before) for u in (self._keys, self._values))
        self._earlier = _grown(self._earlier, most // EVERY, known)
        self._masses = _grown(self._masses[..., None], most // EVERY, known)[..., 0]

    def _few(self, query: Tensor, key: Tensor, value: Tensor, real: Tensor | None) -> Tensor:
        """Compute a few new queries, in one call of the core for each diagonal block."""
        (batch, key_heads, room, d), w = self._keys.shape, self._values.shape[-1]
        heads, length, dim = query.shape[1:]
        tokens = [u.contiguous() for u in (query, key, value)]
        out = query.new_empty(batch, heads, length, w)
        real = None if real is None else real.contiguous()
        done = 0
        while done < length:
            if not self._left:
                self._find_blocks()
            some = min(self._left, length - done)
            core.run(
                "summarised_steps",
                *(d, w, dim, self._width, batch * heads, batch, heads // key_heads, length, done, some, room),
                *(self._earlier.shape[2], self.choices.base, *tokens, real, self._keys, self._values),
                *(self._earlier, self._masses, self._counts, *self._tables, out, float(self.choices.root)),
                *(float(self.choices.tolerance / OPENING), torch.get_num_threads()),
                query.dtype == torch.float64,
            )
            done += some
            self._left -= some
        return out if w == self._width else out[..., : self._width]

    def _find_blocks(self) -> None:
        """Find where the blocks of each item begin in a table of blocks, and the table."""
        counts, base = self._counts.tolist(), self.choices.base
        for b, count in enumerate(counts):
            own = self._kept[b]
            self._kept[b] = {piece: own.get(piece) or self._keep(b, piece) for piece in pieces(count, base)}
        rows = [kept.row() for own in self._kept for kept in own.values()]
        items = torch.tensor([0, *(len(own) for own in self._kept)]).cumsum(0)
        self._tables, self._left = (items, torch.tensor(rows or [0])), min(base - n % base for n in counts)

    def _many(self, query: Tensor, key: Tensor, value: Tensor, real: Tensor | None, served: bool) -> Tensor:
        """Compute many new queries at once."""
        before = self._counts
        self._counts = before + (query.shape[2] if real is None else real.sum(-1))
        self._longest, self._left = int(self._counts.max()), 0
        for b, (start, end) in enumerate(zip(before.tolist(), self._counts.tolist(), strict=True)):
            own = slice(None) if real is None else real[b]
            self._keys[b, :, start:end, : key.shape[-1]] = key[b, :, own]
            self._values[b, :, start:end, : self._width] = value[b, :, own]
        most, x = self._longest, _as_wide(query, self._keys)
        order = None if real is None else (~real).to(torch.uint8).argsort(dim=-1, stable=True)
        if order is not None:
            x = x.gather(2, order.to(x.device)[:, None, :, None].expand_as(x))
        none, known = torch.zeros_like(before), bool((before > 0).any())
        rows = CausalRows(
            *(
                x,
                self._keys[:, :, :most],
                self._values[:, :, :most],
                none,
                self._counts - before,
                none,
                self._counts,
            ),
            *((self._earlier, self._masses) if known else (None, None)),
        )
        choices = self.choices
        if not served and query.shape[2] <= FEW:  # exact: planning blocks would take far longer
            choices = choices._replace(base=1 << (most - 1).bit_length())
        output, _, log_masses = causal_sums(rows, choices)
        self._remember(x, log_masses, before, self._counts)
        if order is not None:
            output = torch.zeros_like(output).scatter(
                2, order.to(x.device)[:, None, :, None].expand_as(output), output
            )
        return output[..., : self._width]

    def _remember(self, query: Tensor, log_masses: Tensor, before: Tensor, after: Tensor) -> None:
        """Store every `EVERY`-th query of each item: the next blocks are made of them."""
        for b, (start, end) in enumerate(zip(before.tolist(), after.tolist(), strict=True)):
            own = slice(-start % EVERY, end - start, EVERY)
            places = slice(-(-start // EVERY), -(-end // EVERY))
            if places.start < places.stop:
                self._earlier[b, :, places] = query[b, :, own]
                self._masses[b, :, places] = log_masses[b, :, own]

    def _keep(self, b: int, piece: tuple[int, int]) -> _Kept:
        """Compute what a block of an item keeps."""
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
            *(words(heads, n_keys), integers(heads, parts + 1), starts),
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
            *(one([0]), one([0]), one([0]), one([end]), cosines, sines),
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
        self.length, self._left = length, 0
        self._counts = self._counts.clamp(max=length)
        if self._present is not None:
            self._present = [torch.cat(self._present, 1)[:, :length]]
            self._counts = self._present[0].sum(-1)
        self._longest = int(self._counts.max()) if self._kept else 0
        for kept, count in zip(self._kept, self._counts.tolist(), strict=True):
            for piece in [p for p in kept if p[1] > count]:
                del kept[piece]

    def reorder(self, index: Tensor) -> None:
        """Keep the batch elements of these indices, in their order."""
        if not self._kept:
            return
        own, rows = index.to(self._keys.device), index.cpu()
        self._keys, self._values, self._earlier, self._masses = (
            u.index_select(0, own) for u in (self._keys, self._values, self._earlier, self._masses)
        )
        self._counts = self._counts[rows]
        if self._present is not None:
            self._present = [u[rows] for u in self._present]
        self._kept, self._left = [dict(self._kept[i]) for i in index.tolist()], 0

    def copy(self) -> Self:
        """Return a state that continues on its own; finished blocks, which never change, are shared."""
        other = copy.copy(self)
        other._keys, other._values, other._earlier, other._masses, other._counts = (
            u.clone() for u in (self._keys, self._values, self._earlier, self._masses, self._counts)
        )
        other._kept = [dict(kept) for kept in self._kept]
        other._present = None if self._present is None else list(self._present)
        return other

    def tensors(self) -> dict[str, Tensor]:
        """Return the tokens as tensors; empty before the first one."""
        if not self._kept:
            return {}
        n = int(self._counts.max())
        known = -(-n // EVERY)
        present = [torch.ones(len(self._kept), self.length, dtype=torch.bool)]
        return {
            "keys": self._keys[:, :, :n],
            "values": self._values[:, :, :n],
            "queries": self._earlier[:, :, :known],
            "masses": self._masses[:, :, :known],
            "present": torch.cat(present if self._present is None else self._present, 1),
        }

    def load(self, tensors: dict[str, Tensor]) -> Self:
        """Continue from what `tensors` returned."""
        if tensors:
            self._keys, self._values, self._earlier, self._masses = (
                tensors[name].clone(memory_format=torch.contiguous_format)
                for name in ("keys", "values", "queries", "masses")
            )
            present = tensors["present"].cpu()
            self._present, self._counts, self.length = [present], present.sum(-1), present.shape[1]
            self._kept, self._left = [{} for _ in range(len(self._keys))], 0
            self._longest = int(self._counts.max())
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
