"""Random calls of attention, and how many cases a property gets."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Generator, Tensor
from torch.nn import functional as F

import hrf
from features.registry import DIM, MAPS, PARTLY_EXACT, build
from hrf import _core as core
from hrf import tuning

HALF = (torch.float16, torch.bfloat16)
seeds = st.integers(0, 2**32 - 1)
either = st.booleans()

# Several blocks, chunks, parts of rows and spans, the last not full, for short sequences.
SMALL_BLOCKS = {
    "CAUSAL_CHUNK": 4,
    "DENSE_FLOATS": 1,
    "DENSE_LEAST_ROWS": 4,
    "TASK_TOKENS": 1,
    "ROWS_INFERENCE": 27,
    "ROWS_FORWARD": 18,
    "ROWS_BACKWARD": 9,
    "CLUSTER_TOKENS": 4,
    "PAIR_FLOATS": 200,
}


def cases(share: float) -> Callable[[Any], Any]:
    """Let a property have so many times the profile's number of cases."""
    return settings(max_examples=max(1, round(share * settings.default.max_examples)))


@dataclass(frozen=True)
class Call:
    """Arguments of one call of attention, as numbers that shrink well; tensors come from the seed."""

    name: str
    kind: str
    map_has_heads: bool
    batch: tuple[int, ...]
    key_heads: int
    groups: int
    length: int
    keys: int
    width: int
    is_causal: bool
    padding: float
    cuts: tuple[int, ...] | None
    dtype: torch.dtype
    norm: float
    small_blocks: bool
    compiled: bool
    seed: int

    @property
    def heads(self) -> int:
        return self.key_heads * self.groups

    def feature_map(self) -> hrf.FeatureMap:
        phi = build(
            self.name, heads=self.heads if self.map_has_heads else None, kind=self.kind, seed=self.seed
        )
        return phi if self.dtype == torch.float64 else phi.float()

    def tensors(self) -> list[Tensor]:
        """Return query, key and value that ask for gradients; norms of rows run from 0 to `norm`."""
        generator = Generator().manual_seed(self.seed)

        def vectors(heads: int, length: int, width: int) -> Tensor:
            shape = *self.batch, heads, length
            unit = F.normalize(torch.randn(*shape, width, generator=generator, dtype=torch.float64), dim=-1)
            share = torch.rand(*shape, 1, generator=generator, dtype=torch.float64)
            return unit * (1.25 * share - 0.25).clamp(0, 1)

        q, k = (
            self.norm * vectors(self.heads, self.length, DIM),
            self.norm * vectors(self.key_heads, self.keys, DIM),
        )
        v = 2 * vectors(self.key_heads, self.keys, self.width)
        return [t.to(self.dtype).requires_grad_() for t in (q, k, v)]

    def ignored(self) -> Tensor | None:
        """Return keys to ignore, ``(*batch, S)``; about as many as `padding` says."""
        if not self.padding:
            return None
        return torch.rand(*self.batch, self.keys, generator=Generator().manual_seed(self.seed)) < self.padding

    def options(self) -> dict[str, Any]:
        """Return arguments by name that `hrf.attention` and its twin share."""
        bounds = None if self.cuts is None else torch.tensor([0, *self.cuts, self.length])
        return {
            "is_causal": self.is_causal,
            "key_padding_mask": self.ignored(),
            "scale": 1.0,
            "cu_seqlens": bounds,
        }

    def visible(self) -> Tensor:
        """Return which query sees which key, ``(*batch, 1, L, S)``."""
        rows, columns = torch.arange(self.length)[:, None], torch.arange(self.keys)
        seen = torch.ones(self.length, self.keys, dtype=torch.bool)
        if self.is_causal:
            seen &= columns <= rows
        if self.cuts is not None:
            bounds = torch.tensor(self.cuts)
            seen &= torch.bucketize(rows, bounds, right=True) == torch.bucketize(columns, bounds, right=True)
        ignored = self.ignored()
        if ignored is None:
            return seen.expand(*self.batch, 1, self.length, self.keys)
        return seen & ~ignored[..., None, None, :]

    def surroundings(self) -> ExitStack:
        """Set block sizes, and whether the core is used."""
        stack = ExitStack()
        if self.small_blocks:
            stack.enter_context(patch.multiple(tuning, **SMALL_BLOCKS))
        if not self.compiled:
            stack.enter_context(patch.object(core, "serves", lambda *_: False))
        return stack


def in_float64(phi: hrf.FeatureMap) -> hrf.FeatureMap:
    """Return the same map, number for number, in float64."""
    return copy.deepcopy(phi).double()


def gradients(out: Tensor, tensors: list[Tensor], weights: Tensor | float = 1.0) -> tuple[Tensor, ...]:
    """Return gradients of a weighted sum; zeros for tensors that do not reach it."""
    return torch.autograd.grad((out * weights).sum() + sum(0 * t.sum() for t in tensors), tensors)


def calls(
    *,
    norms: st.SearchStrategy[float],
    dtypes: tuple[torch.dtype, ...] = (torch.float64, torch.float32, *HALF),
    causal: st.SearchStrategy[bool] = either,
    packed: bool = True,
    names: tuple[str, ...] = (*MAPS, *PARTLY_EXACT),
) -> st.SearchStrategy[Call]:
    """Draw calls over the whole registry of maps."""
    lengths = st.one_of(st.integers(0, 12), st.integers(0, 12), st.integers(0, 12), st.integers(13, 150))
    drawn = st.builds(
        Call,
        name=st.sampled_from(names),
        kind=st.sampled_from(["iid", "orthogonal"]),
        map_has_heads=st.booleans(),
        batch=st.sampled_from([(), (1,), (2,), (0,), (2, 1)]),
        key_heads=st.sampled_from([1, 2]),
        groups=st.sampled_from([1, 2, 3]),
        length=lengths,
        keys=lengths,
        width=st.sampled_from([1, 3]),
        is_causal=causal,
        padding=st.sampled_from([0.0, 0.3, 0.9]),
        cuts=st.lists(st.integers(0, 150), max_size=4) if packed else st.none(),
        dtype=st.sampled_from(dtypes),
        norm=norms,
        small_blocks=st.booleans(),
        compiled=st.booleans(),
        seed=seeds,
    )
    return st.builds(_fitting, drawn, st.booleans())


def _fitting(call: Call, is_packed: bool) -> Call:
    """Give causal and packed calls a key per query; packed ones get cuts inside the sequence and no batch."""
    is_packed = is_packed and call.cuts is not None
    keys = call.length if call.is_causal or is_packed else call.keys
    cuts = tuple(sorted(min(cut, call.length) for cut in call.cuts or ())) if is_packed else None
    batch = call.batch if cuts is None or call.batch in ((), (1,)) else (1,)
    return replace(call, keys=keys, cuts=cuts, batch=batch)
