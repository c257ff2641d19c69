"""Arguments of attention, checked once and brought to one form for all engines.

`check` makes `Inputs` of query, key, value and masks, or raises an error that says what does not fit. Query heads may
outnumber key heads (grouped queries): each key head serves a run of ``groups`` consecutive query heads. Engines see
them as rows: position p of the query is rows p·groups … (p + 1)·groups − 1. `read_mask` reads ``attn_mask``, as far as
linear attention can honour it; `Packing` turns packed sequences, as flash-attn has them, into batches of sequences of
similar length; `drop_keys` is dropout.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from numbers import Real
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F

from hrf.features.base import FeatureMap, of_heads
from hrf.numerics import can_look

__all__ = [
    "AccuracyWarning",
    "Inputs",
    "Packing",
    "check",
    "check_map",
    "check_packed",
    "check_starts",
    "drop_keys",
    "padding",
    "read_mask",
    "unit_values",
]


_WHY = (
    "linear attention never forms the weight of a pair, so it cannot honour arbitrary masks: "
    "only padding of keys and is_causal"
)


def read_mask(mask: Tensor, shape: tuple[int, ...]) -> tuple[bool, Tensor]:
    """Tell whether a mask is causal, and which keys it hides from all queries.

    Args:
        mask: what broadcasts to the weights; booleans, True to attend, or 0 and −inf, to be added to logits.
        shape: of the weights, ``(..., H, L, S)``.

    Returns:
        Whether query i sees no key after i, and the keys to ignore, booleans ``(..., S)``.
    """
    if not isinstance(mask, Tensor):
        raise TypeError(f"attn_mask is of type {type(mask).__name__}; expected a tensor or None")
    received = f"attn_mask of {mask.dtype} and shape {tuple(mask.shape)}"
    pairs = zip(reversed(mask.shape), reversed(shape), strict=False)
    if mask.ndim > len(shape) or not all(
        m in (1, n) for m, n in pairs
    ):  # torch.broadcast_shapes imports SymPy
        raise ValueError(f"{received} does not broadcast to the weights, {shape}")
    if not mask.numel():
        return False, mask.new_zeros((*shape[:-3], shape[-1]), dtype=torch.bool)
    seen = mask if mask.dtype == torch.bool else ~_hidden(mask, received, "True to attend")
    batch, (length, keys) = shape[:-3], shape[-2:]
    seen = seen[(None,) * (len(shape) - seen.ndim)]  # (... or 1, H or 1, L or 1, S or 1)
    rows = seen[..., 0, :, :]
    if seen.shape[-3] > 1 and not bool((seen == rows.unsqueeze(-3)).all()):
        raise ValueError(f"{received} differs between heads; expected one mask for all heads ({_WHY})")
    last = rows[..., -1:, :]  # a causal mask lets the last query see all keys but padding
    is_causal = not bool((rows == last).all())
    if is_causal:
        past = torch.ones(length, keys, dtype=torch.bool, device=mask.device).tril()
        if length != keys or not bool((rows == (past & last)).all()):
            raise ValueError(
                f"{received} differs between queries and is not causal over {length} queries and {keys} keys; expected "
                f"the same keys for all queries, or keys up to each query, with or without padding ({_WHY})"
            )
    return is_causal, ~last[..., 0, :].expand(*batch, keys)


def padding(mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a padding mask as booleans of the given shape, True to ignore; refuse anything else."""
    if not isinstance(mask, Tensor):
        raise TypeError(
            f"key_padding_mask is of type {type(mask).__name__}; expected a tensor, True to ignore ({_WHY})"
        )
    if tuple(mask.shape) != shape:
        raise ValueError(f"key_padding_mask has shape {tuple(mask.shape)}; expected {shape} ({_WHY})")
    return (
        mask
        if mask.dtype == torch.bool
        else _hidden(mask, f"key_padding_mask of {mask.dtype}", "True to ignore")
    )


def _hidden(mask: Tensor, received: str, meaning: str) -> Tensor:
    """Return where a mask to be added to logits hides keys: −inf, or the least number of its dtype."""
    if mask.is_floating_point():
        hidden = mask <= torch.finfo(mask.dtype).min
        if bool((hidden | (mask == 0)).all()):
            return hidden
    raise ValueError(
        f"{received} has values besides 0 and −inf; expected these or booleans, {meaning} ({_WHY})"
    )


class Inputs(NamedTuple):
    """Checked inputs as given: neither scaled nor converted.

    Attributes:
        query: ``(B, H, L, d)``, all batch axes in one.
        key: ``(B, H_kv, S, d)``.
        value: ``(B, H_kv, S, d_v)``.
        ignore: keys to leave out, booleans ``(B, S)``, or ``None``.
        root: √scale, for query and key each.
        dtype: of the computation, float32 or wider.
        batch: the batch axes of the query.
        present: positions of the query that hold a token, booleans ``(B, L)``; ``None`` is all.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    ignore: Tensor | None
    root: float
    dtype: torch.dtype
    batch: tuple[int, ...]
    present: Tensor | None = None

    @property
    def groups(self) -> int:
        """Number of query heads that share a key head."""
        return self.query.shape[1] // self.key.shape[1]

    def hiding(self, keys: Tensor | None) -> Inputs:
        """Return the inputs with more keys to ignore, booleans ``(..., S)``."""
        if keys is None or not bool(keys.any()):
            return self
        keys = keys.reshape(len(self.key), -1)
        return self._replace(ignore=keys if self.ignore is None else self.ignore | keys)

    def for_map(self, feature_map: FeatureMap) -> Inputs:
        """Give each grouped query a row of its own; repeat key heads instead if the map has heads."""
        groups = self.groups
        if groups == 1:
            return self
        if feature_map.heads is None:
            heads = self.query.unflatten(1, (-1, groups))  # (B, H_kv, groups, L, d)
            return self._replace(query=heads.movedim(2, 3).flatten(2, 3))
        # Gradients of a group are summed up in the dtype that is repeated: half precision may overflow on the way.
        shared = (u.to(self.dtype) if u.requires_grad else u for u in (self.key, self.value))
        key, value = (u.repeat_interleave(groups, 1) for u in shared)
        return self._replace(key=key, value=value)

    def restored(self, output: Tensor) -> Tensor:
        """Bring rows ``(B, ·, ·, d_v)`` to the query's shape, ``(..., H, L, d_v)``, and dtype."""
        shape = self.query.shape[:3]
        if output.shape[1] != shape[1]:
            output = output.unflatten(2, (shape[2], self.groups)).movedim(3, 2)
        dtype = self.query.dtype
        if dtype != output.dtype:  # a row blown up by noise may exceed float16
            output = output.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max).to(dtype)
        if output.ndim == 4 and len(self.batch) == 1:
            return output  # to reshape is an operation even where it changes nothing
        return output.reshape(*self.batch, *shape[1:], output.shape[-1])


def check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    feature_map: object | None,
    *,
    paired: bool = False,
    key_padding_mask: Tensor | None = None,
    query_padding_mask: Tensor | None = None,
    scale: float | None = None,
) -> Inputs:
    """Bring the inputs to one form, or raise an error that says which of them does not fit, and why.

    Causal and packed attention are ``paired``: they need a key for each query. Attention without features has no map.
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            received = f"a tensor of {tensor.dtype}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise TypeError(f"{name} is {received}; expected a real floating-point tensor")
        if tensor.ndim < 3:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected (..., heads, length, width)")
    phi = None if feature_map is None else check_map(feature_map)
    if phi is not None:
        _check_fit(query, key, phi)
    _check_shapes(query, key, value)
    length, keys = query.shape[-2], key.shape[-2]
    if paired and length != keys:
        raise ValueError(
            f"causal or packed attention got {length} queries and {keys} keys; expected one key for each query"
        )
    if not query.shape[-1]:
        raise ValueError(f"query has shape {tuple(query.shape)}; expected at least one dimension per head")
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1])
    if not isinstance(scale, Real) or not (scale > 0 and math.isfinite(scale)):
        raise ValueError(f"scale is {scale!r}; expected a positive number: its root scales query and key")
    batch = tuple(query.shape[:-3])
    size = math.prod(batch)
    dtype = torch.promote_types(torch.float32 if phi is None else phi.dtype, torch.float32)
    for tensor in (query, key, value):
        dtype = torch.promote_types(dtype, tensor.dtype)
    query, key, value = (tensor.reshape(size, *tensor.shape[-3:]) for tensor in (query, key, value))
    ignore = None
    if key_padding_mask is not None:
        ignore = padding(key_padding_mask, (*batch, keys)).reshape(size, keys)
    present = None
    if query_padding_mask is not None:
        present = ~_query_padding(query_padding_mask, (*batch, length)).reshape(size, length)
    inputs = Inputs(query, key, value, ignore, math.sqrt(scale), dtype, batch, present)
    if phi is not None and can_look(query) and not phi.fitted_tensors():
        _warn_if_inaccurate(inputs, phi)
    return inputs


class AccuracyWarning(UserWarning):
    """A map without fitted tensors is too noisy for the queries and keys it was given."""


_calls: WeakKeyDictionary[FeatureMap, int] = WeakKeyDictionary()


def _warn_if_inaccurate(inputs: Inputs, phi: FeatureMap) -> None:
    """Warn, once per map, where its weights have a relative error above 1 by the closed form, on a few rows.

    Rows are looked at in calls 1, 2, 4, 8, …: norms grow in training.
    """
    calls = _calls[phi] = _calls.get(phi, 0) + 1
    if calls < 0 or calls & (calls - 1) or not inputs.query.numel() or not inputs.key.numel():
        return
    x, y = (
        _few_rows(u, keep) * inputs.root for u, keep in ((inputs.query, None), (inputs.key, inputs.ignore))
    )
    norms = [torch.linalg.vector_norm(u, dim=-1).square().mean(-1) for u in (x, y)]  # (H,), (H_kv,)
    head = int(norms[0].argmax())
    largest = norms[0][head] + norms[1][head // inputs.groups]
    # The error is at most 1 for short vectors; NaN is the business of the engines.
    if not 3 < largest < torch.inf:
        return
    own, x, y = of_heads(phi, slice(head, head + 1)), x[head][None], y[head // inputs.groups][None]
    try:
        error = own.relative_error(x, y)
    except NotImplementedError:
        return
    weights = own.log_kernel(x.double(), y.double()).softmax(-1)
    # Errors that overflow are infinite or NaN, and weights of 0 do not count.
    squares = error.double().nan_to_num(nan=torch.inf, posinf=torch.inf).square()
    typical = float((weights * squares).masked_fill(weights == 0, 0).sum(-1).sqrt().median())
    if typical > 1:
        _calls[phi] = -(1 << 62)
        sizes = (f"{float(u.sqrt()):.1f}" for u in (norms[0][head], norms[1][head // inputs.groups]))
        warnings.warn(
            f"queries and keys have norms of about {' and '.join(sizes)} (times √scale), where the weights of "
            f"{type(phi).__name__} have a relative error of {typical:.2g}: expect a wrong output. Use "
            "hrf.SummarisedAttention(), which needs no fitting; or fit a map (hrf.advise, and convert for Hugging Face "
            "models); or normalise queries and keys",
            AccuracyWarning,
            stacklevel=4,
        )


def _few_rows(u: Tensor, ignore: Tensor | None) -> Tensor:
    """Return eight rows of each head of the first batch item, spread over its length: ``(H, 8, d)``."""
    rows = torch.arange(u.shape[2]) if ignore is None else (~ignore[0]).nonzero()[:, 0]
    picks = torch.linspace(0, max(len(rows) - 1, 0), 8).long()
    return u[0].detach()[:, rows[picks] if len(rows) else picks[:0]].float()


def check_map(feature_map: object) -> FeatureMap:
    """Return a feature map; refuse anything else."""
    if not isinstance(feature_map, FeatureMap):
        raise TypeError(f"feature_map is {feature_map!r}; expected a FeatureMap, such as hrf.Positive")
    return feature_map


def _query_padding(mask: Tensor, expected: tuple[int, ...]) -> Tensor:
    """Refuse anything but booleans, one per position of the query."""
    if mask.dtype != torch.bool or tuple(mask.shape) != expected:
        raise ValueError(
            f"query_padding_mask is a tensor of {mask.dtype} and shape {tuple(mask.shape)}; expected booleans "
            f"{expected}"
        )
    return mask


def _check_shapes(query: Tensor, key: Tensor, value: Tensor) -> None:
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    if query.shape[:-3] != key.shape[:-3] or key.shape[:-1] != value.shape[:-1]:
        raise ValueError(
            f"the shapes are {shapes}; expected (..., H, L, d), (..., H_kv, S, d) and (..., H_kv, S, d_v) "
            "with the same batch axes"
        )
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"the shapes are {shapes}; expected queries and keys of the same last dimension")
    heads, key_heads = query.shape[-3], key.shape[-3]
    if key_heads == 0 or heads % key_heads:
        raise ValueError(f"{heads} query heads cannot share {key_heads} key heads; expected a multiple")


def _check_fit(query: Tensor, key: Tensor, feature_map: FeatureMap) -> None:
    for name, tensor in (("query", query), ("key", key)):
        if tensor.shape[-1] != feature_map.dim:
            raise ValueError(
                f"{name} has last dimension {tensor.shape[-1]}, the map was built for dim={feature_map.dim}"
            )
    if feature_map.heads not in (None, query.shape[-3]):
        raise ValueError(
            f"query has {query.shape[-3]} heads, the map has {feature_map.heads}; expected the same or None"
        )


class Packing:
    """Packed sequences as batches, and back.

    Args:
        inputs: a batch of 1 with all sequences along the length.
        cu_seqlens: where each of n sequences begins, and the total length, ``(n + 1,)``; best on the CPU.
        max_seqlen: length of the longest sequence, with which ``cu_seqlens`` is not read; ``None`` to read it.
    """

    def __init__(self, inputs: Inputs, cu_seqlens: Tensor, max_seqlen: int | None = None) -> None:
        check_packed(inputs, cu_seqlens)
        length = inputs.key.shape[2]
        self._inputs, self._groups = inputs, inputs.query.shape[2] // max(1, length)
        self._starts = None if max_seqlen is None else cu_seqlens.to(inputs.key.device, torch.long)
        # Without the longest length there is one read: everything about places is known on the host then.
        starts = cu_seqlens.cpu() if self._starts is None else self._starts
        if can_look(starts):
            check_starts(starts, length)
            longest = int(starts.diff().max()) if len(starts) > 1 else 0
            if max_seqlen is not None and longest > max_seqlen:
                raise ValueError(
                    f"max_seqlen is {max_seqlen}; expected at least {longest}, the longest length"
                )
        self._batches = (
            list(_batches(starts)) if max_seqlen is None else [_padded(starts, max_seqlen)] * (length > 0)
        )

    def batches(self) -> Iterator[Inputs]:
        """Yield sequences of similar length as batches; without any token, the inputs themselves."""
        inputs = self._inputs
        if not self._batches:
            yield inputs
        for host in self._batches:
            index, filled = (u.to(inputs.key.device, non_blocking=True) for u in host)
            ignore = ~filled if inputs.ignore is None else ~filled | inputs.ignore[0, index]
            sides = (inputs.query, self._groups), (inputs.key, 1), (inputs.value, 1)
            q, k, v = (_take(u, index, groups) for u, groups in sides)
            yield inputs._replace(query=q, key=k, value=v, ignore=ignore, present=filled)

    def unpacked(self, outputs: Sequence[Tensor]) -> Tensor:
        """Put the outputs of all batches in the order of the tokens: ``(1, H, L, d_v)``."""
        if not self._batches:
            return outputs[0]
        if self._starts is not None:
            return self._by_places(outputs[0], self._starts)
        places = torch.cat([filled.flatten() for _, filled in self._batches]).nonzero().squeeze(-1)
        order = torch.cat([index[filled] for index, filled in self._batches]).argsort()
        tokens = [out.transpose(0, 1).unflatten(2, (-1, self._groups)).flatten(1, 2) for out in outputs]
        found = torch.cat(tokens, 1)  # (H, places, groups, d_v)
        return found[:, places[order].to(found.device, non_blocking=True)].flatten(1, 2).unsqueeze(0)

    def _by_places(self, out: Tensor, starts: Tensor) -> Tensor:
        """Return what `unpacked` does from one batch, without a read."""
        token = torch.arange(self._inputs.key.shape[2], device=out.device)
        sequence = torch.searchsorted(starts[1:].contiguous(), token, right=True)
        tokens = out.transpose(0, 1).unflatten(2, (-1, self._groups))  # (H, n, longest, groups, d_v)
        return tokens[:, sequence, token - starts[sequence]].flatten(1, 2).unsqueeze(0)


def _padded(starts: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """Return tokens of all sequences, ``(n, longest)``, and which places hold one."""
    place = torch.arange(longest, device=starts.device)
    filled = place < starts.diff()[:, None]
    return (starts[:-1, None] + place).where(filled, 0), filled


def check_packed(inputs: Inputs, cu_seqlens: Tensor) -> None:
    """Refuse a batch, and anything but whole numbers."""
    batch = len(inputs.key)
    if batch != 1:
        raise ValueError(f"packed sequences came in a batch of {batch}; expected a batch axis of 1 or none")
    if cu_seqlens.ndim != 1 or cu_seqlens.is_floating_point() or not len(cu_seqlens):
        raise ValueError(
            f"cu_seqlens is a tensor of {cu_seqlens.dtype} and shape {tuple(cu_seqlens.shape)}; expected "
            "integers (n + 1,): where each of n sequences begins, and the total length"
        )


def check_starts(cu_seqlens: Tensor, length: int) -> None:
    """Refuse starts of sequences that do not go from 0 to the length."""
    if cu_seqlens[0] != 0 or cu_seqlens[-1] != length or (cu_seqlens.diff() < 0).any():
        raise ValueError(
            f"cu_seqlens runs from {int(cu_seqlens[0])} to {int(cu_seqlens[-1])}; expected from 0 to the "
            f"length {length}, never falling"
        )


def _batches(cu_seqlens: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield tokens of sequences of similar length, ``(n, longest)``, and which places hold one."""
    first, lengths = cu_seqlens[:-1].long(), cu_seqlens.diff().long()
    power = lengths.double().log2().ceil()
    for p in power[lengths > 0].unique():
        chosen = power == p
        place = torch.arange(int(lengths[chosen].max()), device=cu_seqlens.device)
        filled = place < lengths[chosen, None]
        yield (first[chosen, None] + place).where(filled, 0), filled


def _take(u: Tensor, index: Tensor, groups: int) -> Tensor:
    """Gather tokens of ``u (1, H, L·groups, d)`` into a batch: ``(n, H, longest·groups, d)``."""
    return u[0].unflatten(1, (-1, groups))[:, index].flatten(2, 3).transpose(0, 1)


def drop_keys(value: Tensor, probability: float) -> Tensor:
    """Drop rows of values ``(..., S, d_v)`` at random and scale up the rest, so that means stay.

    As in dropout of weights, denominators stay and each weight is dropped with the given probability; here all
    queries of a head lose the same keys.
    """
    return value * F.dropout(torch.ones_like(value[..., :1]), probability)


def unit_values(key: Tensor) -> Tensor:
    """Return unit vectors for keys ``(..., S, d)``, for which attention returns its weights: ``(..., S, S)``."""
    keys = key.shape[-2]
    return torch.eye(keys, dtype=key.dtype, device=key.device).expand(*key.shape[:-2], keys, keys)
