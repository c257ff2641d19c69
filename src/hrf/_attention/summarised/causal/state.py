"""Decoding with summaries: a state that holds all keys and values, of which a step reads few."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from hrf._attention.inputs import check
from hrf._attention.operator import uncompiled
from hrf._attention.summarised.causal.blocks import Blocks
from hrf._attention.summarised.causal.cells import Cells
from hrf._attention.summarised.causal.compiled import Forest, read_compiled, serves
from hrf._attention.summarised.causal.engine import causal_outputs, checked, in_heads, outputs_of, tokens_of
from hrf._attention.summarised.causal.levels import Tokens
from hrf._attention.summarised.causal.memory import Memory
from hrf._attention.summarised.causal.sizes import blocks_of
from hrf._attention.summarised.method import SummarisedAttention
from hrf._attention.summarised.tree import Parts
from hrf.numerics import full_precision

__all__ = ["SummarisedState"]

_OF_BLOCKS = ("centre", "root", "metric_root", "tokens", "filled", "keys", "values", "table")


class SummarisedState:
    """State of causal summarised attention after some tokens: the counterpart of `hrf.AttentionState`.

    It holds all keys and values, the last 512 queries, and summaries of finished blocks, which take one to two times
    the memory of keys and values. A step reads summaries, the keys that it picks, and up to 128 of the last keys.

    Tokens may come in pieces of any length; the outputs equal those of the whole sequence, up to rounding (which may
    move a key to another cluster).

    Args:
        method: tolerance; other choices are for bidirectional attention.
        scale: as in `hrf.attention`.

    >>> import torch, hrf
    >>> q, k, v = torch.randn(3, 1, 2, 300, 8)  # a batch of 1, 2 heads, 300 tokens
    >>> state = hrf.SummarisedState(hrf.SummarisedAttention(tolerance=0.5))
    >>> prompt = state.prefill(q[..., :299, :], k[..., :299, :], v[..., :299, :])
    >>> state.step(q[..., 299, :], k[..., 299, :], v[..., 299, :]).shape
    torch.Size([1, 2, 8])
    """

    def __init__(self, method: SummarisedAttention, *, scale: float | None = None) -> None:
        self.method, self.scale = method, scale
        self._tolerance = checked(method)
        self._memory: Memory | None = None
        self._heads = 0
        self._forest: tuple[list[Blocks], Forest] | None = None

    @uncompiled
    @full_precision
    def prefill(
        self, query: Tensor, key: Tensor, value: Tensor, *, key_padding_mask: Tensor | None = None
    ) -> Tensor:
        """Attend from the next L tokens to all so far: ``(..., H, L, d)`` and so on, as in `hrf.attention`."""
        inputs = check(
            query, key, value, None, paired=True, key_padding_mask=key_padding_mask, scale=self.scale
        )
        tokens = tokens_of(inputs)
        if self._memory is None:
            output = causal_outputs(tokens, self._tolerance)
            self._memory, self._heads = (
                Memory.empty(tokens).with_tokens(tokens).finished(),
                inputs.key.shape[1],
            )
        else:
            self._check_size(tokens, inputs.key.shape[1])
            output = self._resumed(tokens)
        return inputs.restored(in_heads(output, inputs))

    def step(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend from the next token to all so far: `prefill` without the axis of length."""
        return self.prefill(query.unsqueeze(-2), key.unsqueeze(-2), value.unsqueeze(-2)).squeeze(-2)

    def _resumed(self, tokens: Tokens) -> Tensor:
        """Return outputs ``(N, L, g, d_v)``, and remember the tokens."""
        memory = self._memory
        assert memory is not None
        outputs, start = [tokens.v[:, :0, None].expand(-1, -1, tokens.x.shape[2], -1)], 0
        while start < tokens.x.shape[1]:
            piece = Tokens(*(u[:, start : start + memory.room] for u in tokens))
            start += piece.x.shape[1]
            memory = memory.with_tokens(piece)
            outputs.append(self._read(memory, piece))
            memory = memory.finished()
        self._memory = memory
        return torch.cat(outputs, 1)

    def _read(self, memory: Memory, piece: Tokens) -> Tensor:
        if not (memory.blocks and serves(piece)):
            return outputs_of(memory.read(piece.x, self._tolerance), piece)
        if self._forest is None or self._forest[0] is not memory.blocks:
            self._forest = memory.blocks, Forest.of(memory.blocks, len(piece.x))
        return read_compiled(memory, self._forest[1], piece.x, self._tolerance)

    def tensors(self) -> dict[str, Tensor]:
        """Return the state as tensors, batch first, to be saved and given to `load`; empty before the first token."""
        if self._memory is None:
            return {}
        x, *own, length, blocks = self._memory
        named = dict(zip(Memory._fields, (torch.cat(x, 1), *own), strict=False))
        for i, block in enumerate(blocks):
            tensors = (*block.cells, *block.clusters, block.keys, block.values, block.table)
            named |= {f"{name}.{i}": u for name, u in zip(_OF_BLOCKS, tensors, strict=True)}
        found = {name: u.unflatten(0, (-1, self._heads)) for name, u in named.items()}
        return found | {"length": torch.full_like(found["seen"], length)}

    def load(self, tensors: Mapping[str, Tensor]) -> Self:
        """Continue from what `tensors` returned."""
        self._memory = None
        if not tensors:
            return self
        n_blocks = len(blocks_of(int(tensors["length"].flatten()[0]))) if "length" in tensors else 0
        expected = {f"{name}.{i}" for i in range(n_blocks) for name in _OF_BLOCKS} | set(Memory._fields[:-1])
        if set(tensors) != expected:
            raise ValueError(f"the tensors are {sorted(tensors)}; expected {sorted(expected)}, or none")
        self._heads = tensors["seen"].shape[1]
        flat = {name: u.flatten(0, 1) for name, u in tensors.items()}
        blocks = []
        for i in range(n_blocks):
            *cells, members, filled, keys, values, table = (flat[f"{name}.{i}"] for name in _OF_BLOCKS)
            blocks.append(Blocks(Cells(*cells), Parts(members, filled), keys, values, table))
        x, real, own, seen, length = (flat[name] for name in Memory._fields[:-1])
        self._memory = Memory((x,), real, own, seen, int(length[0]), blocks)
        return self

    def to(self, *args: Any, **kwargs: Any) -> SummarisedState:
        """Move the state to another device or dtype."""

        def move(tensor: Tensor) -> Tensor:
            moved = tensor.to(*args, **kwargs)
            return moved if tensor.is_floating_point() else tensor.to(moved.device)

        return self._mapped(move)

    def detach(self) -> SummarisedState:
        """Return the state without its history for autograd."""
        return self._mapped(torch.Tensor.detach)

    def reorder(self, index: Tensor) -> SummarisedState:
        """Return the states of the batch elements ``index``, in that order and as often: for beam search."""
        return self._mapped(lambda tensor: tensor.index_select(0, index))

    def _mapped(self, function: Callable[[Tensor], Tensor]) -> SummarisedState:
        other = SummarisedState(self.method, scale=self.scale)
        return other.load({name: function(tensor) for name, tensor in self.tensors().items()})

    def _check_size(self, tokens: Tokens, heads: int) -> None:
        memory = self._memory
        assert memory is not None
        received, kept = (
            (len(x) // n, n, *x.shape[2:], width - x.shape[3])
            for x, width, n in (
                (tokens.x, tokens.y.shape[-1] + tokens.v.shape[-1], heads),
                (memory.x[0], memory.own.shape[-1], self._heads),
            )
        )
        if received != kept:
            raise ValueError(
                f"the tokens have batch, key heads, queries per key, width and value width {received}, the state has "
                f"{kept}; expected the same"
            )
