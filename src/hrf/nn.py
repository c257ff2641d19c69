"""Layers to train: attention in linear time with PyTorch's interface, and a loss for very many classes."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from typing_extensions import Self, override

from hrf import distributed
from hrf._attention import SummarisedAttention, attention
from hrf._attention.inputs import drop_keys, unit_values
from hrf._attention.operator import uncompiled
from hrf.checks import check_count, check_tensors, generator_of
from hrf.distributed.ranks import Group, Ranks
from hrf.features.base import FeatureMap
from hrf.features.exponential import Positive, Trigonometric
from hrf.features.hybrid import AngularHybrid
from hrf.numerics import can_look
from hrf.sampling import Sampler, Samples

__all__ = ["MultiheadAttention", "SampledSoftmaxLoss", "TransformerEncoderLayer"]

# Feature maps by name, for layers that make their own map.


# Called as ``maker(dim, heads=heads, generator=generator)``: for instance a class of maps with its sizes filled in.
Maker = Callable[..., FeatureMap]

MapName = Literal["positive", "angular", "trigonometric"]

# 256 features, and the angular hybrid with m = n = 8 as in the paper's robotics part (288 features).
NAMES: dict[MapName, Maker] = {
    "positive": partial(Positive, n_projections=128),
    "angular": partial(AngularHybrid, n_projections=8, n_coefficient_projections=8),
    "trigonometric": partial(Trigonometric, n_projections=128),
}

_EXPECTED = (
    f"expected one of {', '.join(NAMES)}, a FeatureMap, or a function of (dim, heads=..., generator=...) that "
    "returns one"
)


def maker_of(name: MapName) -> Maker:
    """Look up the maker of a name."""
    if name not in NAMES:
        raise ValueError(f"feature_map is {name!r}; {_EXPECTED}")
    return NAMES[name]


def feature_map_for(
    feature_map: MapName | Maker | FeatureMap, dim: int, heads: int, generator: Generator | None = None
) -> FeatureMap:
    """Return a map for ``heads`` heads of width ``dim``: by name, from its maker, or the given map if it fits."""
    if isinstance(feature_map, str):
        feature_map = maker_of(feature_map)
    if not isinstance(feature_map, FeatureMap):
        made = feature_map(dim, heads=heads, generator=generator) if callable(feature_map) else feature_map
        if not isinstance(made, FeatureMap):
            raise TypeError(f"feature_map is or returned {made!r}; {_EXPECTED}")
        feature_map = made
    if feature_map.dim != dim or feature_map.heads not in (None, heads):
        raise ValueError(
            f"the feature map has dim={feature_map.dim}, heads={feature_map.heads}; "
            f"expected dim={dim}, heads={heads} or None"
        )
    return feature_map


# Masks of `torch.nn.MultiheadAttention`, in the form that `hrf.attention` takes.


def for_weights(mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Bring a mask ``(L, S)`` or ``(N·H, L, S)``, True to ignore, to the weights ``(N, H, L, S)``, True to attend.

    A mask to be added to logits has one meaning everywhere.
    """
    check_tensors(attn_mask=mask)
    *leading, length, keys = shape
    each = (math.prod(leading), length, keys)
    if tuple(mask.shape) not in (each, each[1:]):
        raise ValueError(
            f"attn_mask has shape {tuple(mask.shape)}; expected {each[1:]}, or {each} with one mask per head"
        )
    mask = ~mask if mask.dtype == torch.bool else mask
    return mask if mask.ndim == 2 else mask.reshape(shape)


# Multi-head attention in linear time, with the parameters of PyTorch's layer.


class MultiheadAttention(nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention` with its weights estimated by a feature map: linear in the lengths.

    Parameters have the same names, so the ``state_dict`` of a trained `torch.nn.MultiheadAttention` loads. The map
    has buffers of its own, ``feature_map.…``; a ``state_dict`` without them leaves the map as it is.

    Three things differ. ``need_weights`` is False by default (the matrix is quadratic). ``attn_mask`` can only be the
    causal mask or padding. Dropout drops a key for all queries of a head at once, where PyTorch drops weights of single
    pairs: weights are never formed, but each is dropped equally often, and means are the same.

    Args:
        embed_dim: width of the model.
        num_heads: number of heads, a divisor of ``embed_dim``.
        dropout: probability to drop a key, in training.
        bias: whether projections have a bias.
        add_bias_kv: must be False.
        add_zero_attn: must be False.
        kdim: width of keys, if not ``embed_dim``.
        vdim: width of values, if not ``embed_dim``.
        batch_first: ``(N, L, embed_dim)`` rather than ``(L, N, embed_dim)``.
        device: device of the parameters.
        dtype: dtype of the parameters.
        attention: a `hrf.SummarisedAttention`, to be used in place of a feature map.
        feature_map: ``"positive"``, ``"angular"`` or ``"trigonometric"``; or a map with ``dim = embed_dim /
            num_heads``; or a function of ``(dim, heads=..., generator=...)`` that returns a map, for instance
            ``functools.partial(hrf.Positive, n_projections=64)``.
        normalize: give queries and keys length 1 (paper, appendix on robotics): logits are then cosines, and
            are not divided by √dim. For training from scratch: it is a different function of the same parameters.
        redraw_every: redraw ω after this many forward passes in training; ``None`` means never. The buffer
            ``passes`` counts them; a pass that activation checkpointing recomputes counts twice. Under
            `torch.compile`, redraws break the graph: ``fullgraph=True`` allows none in training.
        sequence_group: a process group, or a `DeviceMesh` with one axis, over whose ranks sequences are split: each
            rank passes and receives its own part, with its own padding, as in `hrf.distributed.attention`;
            ``attn_mask`` and weights are refused. ``None`` is this process alone. Maps have to be equal on all ranks:
            give a ``seed``, or let `DistributedDataParallel` broadcast the maps of the first.
        generator: the source of ω; redraws come from PyTorch's global generator.
        seed: seed of a new generator, in place of ``generator``.

    >>> import torch, hrf
    >>> layer = hrf.nn.MultiheadAttention(64, 4, batch_first=True)
    >>> x = torch.randn(2, 1000, 64)
    >>> output, _ = layer(x, x, x, is_causal=True)
    >>> output.shape
    torch.Size([2, 1000, 64])
    """

    feature_map: FeatureMap
    passes: Tensor

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        attention: SummarisedAttention | None = None,
        feature_map: MapName | Maker | FeatureMap = "positive",
        normalize: bool = False,
        redraw_every: int | None = None,
        sequence_group: Group = None,
        generator: Generator | None = None,
        seed: int | None = None,
    ) -> None:
        if add_bias_kv or add_zero_attn:
            raise ValueError("add_bias_kv and add_zero_attn add a key to every sequence; expected False")
        generator = generator_of(generator, seed)
        super().__init__(
            embed_dim,
            num_heads,
            dropout,
            bias,
            kdim=kdim,
            vdim=vdim,
            batch_first=batch_first,
            device=device,
            dtype=dtype,
        )
        if redraw_every is not None:
            check_count("redraw_every", redraw_every)
        if attention is not None and not isinstance(attention, SummarisedAttention):
            raise TypeError(f"attention is {attention!r}; expected a hrf.SummarisedAttention, or None")
        if attention is not None and sequence_group is not None:
            raise ValueError(
                "attention and sequence_group are both given; summaries follow all keys of a sequence"
            )
        self.attention = attention
        self._ranks = None if sequence_group is None else Ranks(sequence_group)
        self.normalize, self.redraw_every = normalize, redraw_every
        # Half precision is for the parameters only: the map computes in float32 or wider.
        weight = self.out_proj.weight
        self.feature_map = feature_map_for(feature_map, self.head_dim, num_heads, generator)
        self.feature_map.to(weight.device, torch.promote_types(weight.dtype, torch.float32))
        self.register_buffer("passes", torch.zeros((), dtype=torch.long, device=device))

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention, **options: Any) -> Self:
        """Copy a `torch.nn.MultiheadAttention`; options are the keyword arguments from ``feature_map`` on."""
        weight = module.out_proj.weight
        copied = cls(
            module.embed_dim,
            module.num_heads,
            module.dropout,
            module.in_proj_bias is not None,
            module.bias_k is not None,
            module.add_zero_attn,
            module.kdim,
            module.vdim,
            module.batch_first,
            weight.device,
            weight.dtype,
            **options,
        )
        copied.load_state_dict(module.state_dict())
        for name, parameter in module.named_parameters():
            copied.get_parameter(name).requires_grad_(parameter.requires_grad)
        return copied.train(module.training)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend, with the arguments and shapes of `torch.nn.MultiheadAttention.forward`.

        Args:
            query: ``(L, embed_dim)``, or ``(L, N, embed_dim)``, or ``(N, L, embed_dim)`` with ``batch_first``.
            key: likewise with S rows of width ``kdim``.
            value: likewise with S rows of width ``vdim``.
            key_padding_mask: ``(S,)`` or ``(N, S)``: True, or −inf, for keys to ignore.
            need_weights: also return the estimated attention matrix, in quadratic time, before dropout.
            attn_mask: ``None``, the causal mask, or the same padding for all queries; True, or −inf, to ignore.
            average_attn_weights: return the mean of the matrices over heads.
            is_causal: attend to no key after the query, with or without ``attn_mask``.

        Returns:
            The output, shaped like the query, and the weights: ``None``, ``(N, L, S)`` or ``(N, H, L, S)``,
            without N if the query has none.
        """
        check_tensors(query=query, key=key, value=value)
        batched, own = query.ndim == 3, self.attention is not None and query is key
        if batched and not self.batch_first:
            query, key, value = (u.transpose(0, 1) for u in (query, key, value))
        q, k, v = self._projected(query, key, value)
        if self.normalize:
            q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        if self.training and self.dropout:
            v = drop_keys(v, self.dropout)
        if self.redraw_every is not None and self.training:
            self._redraw_if_due()
        options: dict[str, Any] = {
            "attn_mask": None if attn_mask is None else for_weights(attn_mask, (*q.shape[:-1], k.shape[-2])),
            "is_causal": is_causal,
            "key_padding_mask": key_padding_mask,
            "scale": 1.0 if self.normalize else None,
        }
        method = self.feature_map if self.attention is None else self.attention
        if own and key_padding_mask is not None:  # padding of self-attention is padding of queries, too
            options["query_padding_mask"] = key_padding_mask != 0
        weights = None
        if self._ranks is not None:
            mixed = self._over_ranks(self._ranks, q, k, v, need_weights, options)
        elif need_weights:
            weights = attention(q, k, unit_values(k), method, **options)
            mixed = weights @ v
            weights = weights.mean(-3) if average_attn_weights else weights
        else:
            mixed = attention(q, k, v, method, **options)
        output = self.out_proj(mixed.transpose(-3, -2).flatten(-2))
        return output.transpose(0, 1) if batched and not self.batch_first else output, weights

    def _over_ranks(
        self, ranks: Ranks, q: Tensor, k: Tensor, v: Tensor, need_weights: bool, options: dict[str, Any]
    ) -> Tensor:
        if need_weights or options.pop("attn_mask") is not None:
            raise ValueError(
                "need_weights or attn_mask came with a sequence_group; expected neither: no rank has all keys"
            )
        return distributed.attention(q, k, v, self.feature_map, group=ranks.group, **options)

    def _projected(self, *inputs: Tensor) -> list[Tensor]:
        """Project queries, keys and values, and split heads: ``(..., L, ·) -> (..., H, L, head_dim)``."""
        separate = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
        weights = separate if self.in_proj_weight is None else self.in_proj_weight.chunk(3)
        biases = [None] * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        projected = (F.linear(*each) for each in zip(inputs, weights, biases, strict=True))
        return [u.unflatten(-1, (self.num_heads, -1)).transpose(-3, -2) for u in projected]

    def reset_parameters(self) -> None:
        """Draw parameters and ω as the constructor does, for a layer made on the meta device and then emptied."""
        self.out_proj.reset_parameters()
        self._reset_parameters()
        self.feature_map.reset_parameters()
        self.passes.zero_()

    def _reset_parameters(self) -> None:
        """Draw the parameters, as the constructor of PyTorch's layer does."""
        self._qkv_same_embed_dim = self.in_proj_weight is not None
        super()._reset_parameters()
        # PyTorch's encoder layers compute exact attention from our parameters, past `forward`, if this is True.
        self._qkv_same_embed_dim = False

    @uncompiled
    def _redraw_if_due(self) -> None:
        assert self.redraw_every is not None
        if self.passes and self.passes % self.redraw_every == 0:
            # A copy: pending backward passes recompute features with the old map.
            drawn = copy.deepcopy(self.feature_map)
            ranks = self._ranks
            self.feature_map = drawn.redraw_() if ranks is None else distributed.redraw_(drawn, ranks.group)
        self.passes += 1

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Keep the map and the count if the state comes from a plain `torch.nn.MultiheadAttention`."""
        own = {f"{prefix}feature_map.{name}": value for name, value in self.feature_map.state_dict().items()}
        own[f"{prefix}passes"] = self.passes
        if not own.keys() & state_dict.keys():
            state_dict.update(own)
        super()._load_from_state_dict(state_dict, prefix, *args)


# A Transformer encoder layer with attention in linear time.


class TransformerEncoderLayer(nn.TransformerEncoderLayer):
    """`torch.nn.TransformerEncoderLayer` with `hrf.nn.MultiheadAttention`; loads the ``state_dict`` of PyTorch's layer.

    Pass it to `torch.nn.TransformerEncoder` with ``enable_nested_tensor=False`` (PyTorch warns otherwise: nested
    tensors belong to its own fast path). The encoder copies one layer: call ``redraw_`` on the maps for independent ω.

    Args:
        d_model: as in `torch.nn.TransformerEncoderLayer`, like all arguments up to ``dtype``.
        nhead: see there.
        dim_feedforward: see there.
        dropout: see there; in attention it drops keys, as in `hrf.nn.MultiheadAttention`.
        activation: see there.
        layer_norm_eps: see there.
        batch_first: see there.
        norm_first: see there.
        bias: see there.
        device: see there.
        dtype: see there.
        attention: as in `hrf.nn.MultiheadAttention`, like all arguments that follow.
        feature_map: see there.
        normalize: see there.
        redraw_every: see there.
        generator: see there.
        seed: see there.

    >>> import torch, hrf
    >>> layer = hrf.nn.TransformerEncoderLayer(64, 4, batch_first=True, feature_map="positive")
    >>> encoder = torch.nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
    >>> encoder(torch.randn(2, 100, 64)).shape
    torch.Size([2, 100, 64])
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Literal["relu", "gelu"] | Callable[[Tensor], Tensor] = F.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        attention: SummarisedAttention | None = None,
        feature_map: MapName | Maker | FeatureMap = "positive",
        normalize: bool = False,
        redraw_every: int | None = None,
        generator: Generator | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            d_model,
            nhead,
            dim_feedforward,
            dropout,
            activation,
            layer_norm_eps,
            batch_first,
            norm_first,
            bias,
            device,
            dtype,
        )
        self.self_attn = MultiheadAttention.from_torch(
            self.self_attn,
            attention=attention,
            feature_map=feature_map,
            normalize=normalize,
            redraw_every=redraw_every,
            generator=generator,
            seed=seed,
        )


# Cross-entropy over very many classes from a few drawn classes (Bengio and Senécal, 2008).
#
# With logits o, target t and k classes drawn from q, Σ_c exp(o_c) is estimated without bias by
#
#     exp(o_t) + Σ_{drawn c ≠ t} exp(o_c − log(k q_c)),
#
# where the target counts once and exactly, so a drawn target is left out.


Reduction = Literal["mean", "sum", "none"]
_REDUCTIONS = get_args(Reduction)


class SampledSoftmaxLoss(nn.Module):
    """Cross-entropy of the softmax layer ``hidden @ weight.T + bias``, with logits of the drawn classes only.

    In evaluation mode it is the full cross-entropy. In training the loss is too low on average, as the logarithm of an
    unbiased estimate is; a larger k or a q closer to the softmax reduces that bias. No gradient flows through the
    draws.

    The sampler holds its own copy of the embeddings: refresh it with ``sampler.update_(ids, weight[ids])`` or
    ``sampler.rebuild_(weight)`` every few steps. A stale copy makes draws less good, and the loss stays right.

    Args:
        sampler: draws the classes.
        k: number of draws per target.
        sparse: give ``weight`` a sparse gradient, for `torch.optim.SGD` or `torch.optim.SparseAdam`; a dense gradient
            is as large as the weight itself.
        ignore_index: target to leave out.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``, over the targets that are not left out; the mean of no target
            is NaN, as in `torch.nn.functional.cross_entropy`.

    >>> import torch, hrf
    >>> weight = torch.nn.Parameter(0.1 * torch.randn(10_000, 64))
    >>> sampler = hrf.sampling.SoftmaxSampler(weight, hrf.Positive(64, n_projections=64))
    >>> loss = hrf.nn.SampledSoftmaxLoss(sampler, k=40)
    >>> hidden, targets = torch.randn(20, 35, 64), torch.randint(10_000, (20, 35))
    >>> loss(hidden, targets, weight).backward()
    """

    def __init__(
        self,
        sampler: Sampler,
        k: int,
        *,
        sparse: bool = False,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        if not isinstance(sampler, Sampler):
            raise TypeError(
                f"sampler is of type {type(sampler).__name__}; expected a sampler of hrf.sampling"
            )
        if check_count("k", k) > sampler.n_classes:
            raise ValueError(f"k is {k}; expected at most the number of classes, {sampler.n_classes}")
        if reduction not in _REDUCTIONS:
            raise ValueError(f"reduction is {reduction!r}; expected one of {', '.join(_REDUCTIONS)}")
        self.sampler, self.k, self.sparse = sampler, k, sparse
        self.ignore_index, self.reduction = ignore_index, reduction

    @override
    def extra_repr(self) -> str:
        return f"k={self.k}, sparse={self.sparse}, ignore_index={self.ignore_index}, reduction={self.reduction!r}"

    def forward(
        self,
        hidden: Tensor,
        targets: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        generator: Generator | None = None,
        seed: int | None = None,
    ) -> Tensor:
        """Compute the loss.

        Args:
            hidden: ``(..., d)``.
            targets: classes, ``(...)``.
            weight: ``(C, d)``.
            bias: ``(C,)``.
            generator: the source of randomness.
            seed: seed of a new generator, in place of ``generator``.
        """
        self._check(hidden, targets, weight, bias)
        generator = generator_of(generator, seed, hidden.device)
        rows, classes = hidden.reshape(-1, hidden.shape[-1]), targets.flatten()
        if not self.training:
            losses = F.cross_entropy(
                F.linear(rows, weight, bias),
                classes,
                ignore_index=self.ignore_index,
                reduction=self.reduction,
            )
            return losses.view(targets.shape) if self.reduction == "none" else losses
        if not len(classes):
            raise ValueError(f"targets has shape {tuple(targets.shape)}; expected at least one target")
        counted = classes != self.ignore_index
        chosen = classes.where(counted, 0)
        self.sampler.check_ids(chosen, "targets")
        if can_look(hidden):
            found = self._sampled(rows[counted], chosen[counted], weight, bias, generator)
            losses = found.new_zeros(classes.shape).masked_scatter(counted, found)
        else:  # the number of targets that count would have to be read
            found = self._sampled(rows, chosen, weight, bias, generator)
            losses = found.masked_fill(~counted, 0)
        if self.reduction == "none":
            return losses.view(targets.shape)
        return losses.sum() / counted.sum() if self.reduction == "mean" else losses.sum()

    def _sampled(
        self, rows: Tensor, classes: Tensor, weight: Tensor, bias: Tensor | None, generator: Generator | None
    ) -> Tensor:
        """Compute the losses of targets that count: ``(N, d), (N,) -> (N,)``."""
        drawn, log_q = self._drawn(rows, generator)
        ids = torch.cat([classes.unsqueeze(-1), drawn], -1)  # (N, 1 + k), the target first
        logits = (F.embedding(ids, weight, sparse=self.sparse) @ rows.unsqueeze(-1)).squeeze(-1)
        if bias is not None:
            logits = logits + bias[ids]
        correction = (log_q + math.log(self.k)).masked_fill(drawn == classes.unsqueeze(-1), torch.inf)
        logits = logits.to(correction.dtype) - F.pad(correction, (1, 0))
        return logits.logsumexp(-1) - logits[:, 0]

    def _drawn(self, rows: Tensor, generator: Generator | None) -> Samples:
        if len(rows):
            return self.sampler.sample(rows.detach(), self.k, generator)
        # All targets are left out: empty draws give the mean, NaN, and the gradients, 0, of PyTorch's cross-entropy.
        log_q = rows.new_empty(0, self.k, dtype=torch.promote_types(rows.dtype, torch.float32))
        return Samples(log_q.long(), log_q)

    def _check(self, hidden: Tensor, targets: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        n_classes = self.sampler.n_classes
        check_tensors(
            hidden=hidden, targets=targets, weight=weight, **({} if bias is None else {"bias": bias})
        )
        if hidden.shape[:-1] != targets.shape or not hidden.ndim:
            raise ValueError(
                f"hidden and targets have shapes {tuple(hidden.shape)} and {tuple(targets.shape)}; "
                "expected (..., d) and (...)"
            )
        expected = (n_classes, hidden.shape[-1])
        if tuple(weight.shape) != expected or (bias is not None and tuple(bias.shape) != expected[:1]):
            received = (
                f"{tuple(weight.shape)}" if bias is None else f"{tuple(weight.shape)}, {tuple(bias.shape)}"
            )
            raise ValueError(
                f"weight and bias have shapes {received}; expected {expected} and {expected[:1]}"
            )
