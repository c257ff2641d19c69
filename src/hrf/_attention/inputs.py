"""Inputs of attention, checked once and brought to one form for all engines.

Query heads may outnumber key heads (grouped queries): each key head serves a run of ``groups`` consecutive
query heads. Engines see them as rows: position p of the query is rows p·groups … (p + 1)·groups − 1.
"""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from hrf._attention.masks import padding
from hrf.features.base import FeatureMap, of_heads
from hrf.numerics import can_look

__all__ = ["AccuracyWarning", "Inputs", "check", "check_map"]


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
        return self._replace(
            key=self.key.repeat_interleave(groups, 1), value=self.value.repeat_interleave(groups, 1)
        )

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
    _check_shapes(query, key, value)
    phi = None if feature_map is None else check_map(feature_map)
    if phi is not None:
        _check_fit(query, key, phi)
    length, keys = query.shape[-2], key.shape[-2]
    if paired and length != keys:
        raise ValueError(
            f"causal or packed attention got {length} queries and {keys} keys; expected one key for each query"
        )
    if not query.shape[-1]:
        raise ValueError(f"query has shape {tuple(query.shape)}; expected at least one dimension per head")
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1])
    if not (scale > 0 and math.isfinite(scale)):
        raise ValueError(f"scale is {scale}; expected a positive number: its root scales query and key")
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
    typical = float((weights * error.square()).sum(-1).sqrt().median())
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
