"""What Transformers hands to attention: masks and arguments, and names in its attention interface.

Most models take their attention from `transformers.AttentionInterface`. Older models ignore it without a word
(DeBERTa-v2), have a table of their own (Falcon) or use its masks alone (BLOOM). They are recognised by their source,
and refused when they are built with a name of ours.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    prepare_padding_mask,
    sdpa_mask,
)

__all__ = [
    "FITTED",
    "OBSERVED",
    "SUMMARISED",
    "AttentionCall",
    "add",
    "check_name",
    "has_window",
    "is_ours",
    "refuse",
    "why_unsupported",
]

# Masks for Hugging Face models, as far as linear attention can honour them: padding of keys, and causality.
#
# A model makes its mask once (`mask`, registered with Transformers) and passes it to the attention of every layer
# (`AttentionCall.of`). In between, a causal mask is ``(B, S)``, with S the number of keys up to the last query, and a
# bidirectional mask ``(B, 1, 1, S)``, which broadcasts to the weights; True marks keys to attend to. Layers with a
# sliding window shorter than the sequence get a mask of pairs, ``(B, 1, L, S)``, and keep exact attention.


_WHY = "linear attention never forms the weight of a pair: it honours causality and padding of keys, no other mask"

# Arguments that change the weights, and that models of Transformers may pass.
_REFUSED = ("position_bias", "softcap", "s_aux", "cache")

_ATTRIBUTE = "hrf_ignored"  # of a mask: which keys to ignore, in a tuple


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **others: Any,
) -> Tensor:
    """Make a mask for Transformers; see `transformers.masking_utils.sdpa_mask` for the arguments.

    Layers with a window of ``local_size`` keys get the mask of pairs of PyTorch's attention if the sequence is longer.
    Other patterns that are neither causal nor bidirectional are formed and compared with both: a window wider than
    the sequence, for instance, is no restriction.
    """
    if attention_mask is not None and attention_mask.ndim != 2:
        raise ValueError(
            f"attention_mask has shape {tuple(attention_mask.shape)}; expected (batch, keys) ({_WHY})"
        )

    def pattern(function: Callable[..., Any], padding: Tensor | None = None) -> Tensor:
        sizes = (batch_size, q_length, kv_length, int(q_offset), kv_offset)
        dense = sdpa_mask(
            *sizes, function, padding, allow_is_causal_skip=False, use_vmap=use_vmap, device=device
        )
        assert dense is not None
        return dense

    if local_size is not None and int(q_offset) + q_length > local_size:
        return pattern(mask_function, attention_mask)
    is_causal = mask_function is causal_mask_function
    if not is_causal and mask_function is not bidirectional_mask_function:
        dense = pattern(mask_function)
        why = (
            f"this model wants a mask that is neither causal nor bidirectional over its {q_length} queries and "
            f"{kv_length} keys, such as packed sequences ({_WHY})"
        )
        matches = (dense == pattern(causal_mask_function)).all()
        if torch.compiler.is_compiling():
            # A graph cannot look at values now, so it checks them when it runs. Compiled decoders come here whenever
            # they have no attention_mask, since sequences might be packed.
            torch._assert_async(matches, why)
            is_causal = True
        else:
            is_causal = bool(matches)
            if not is_causal and not bool(dense.all()):
                raise ValueError(why)
    width = int(q_offset) + q_length - kv_offset if is_causal else kv_length
    kept = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if kept is None:
        kept = torch.ones(batch_size, width, dtype=torch.bool, device=device)
    else:
        kept = kept[:, kv_offset : kv_offset + width]
    made = kept if is_causal else kept[:, None, None]
    if not torch.compiler.is_compiling():
        setattr(made, _ATTRIBUTE, (_ignored(kept),))  # once for all layers
    return made


class AttentionCall(NamedTuple):
    """One call of the attention of a layer: what Transformers passes, checked and in one form.

    Attributes:
        module: attention module.
        query: ``(B, H, L, d)``.
        key: ``(B, H_kv, S, d)``, up to the last query if causal.
        value: ``(B, H_kv, S, d_v)``.
        ignore: keys to ignore, booleans ``(B, S)``, or ``None``.
        is_causal: whether query i sees the keys 0 … S − L + i only.
        scale: factor of the logits.
        dropout: probability to drop a key.
        is_self: whether queries and keys are the same tokens, as far as the module tells: padding of the keys is
            padding of the queries then.
        pairs: pairs to attend to, booleans ``(B, 1, L, S)``, in a layer whose window is shorter than the sequence and
            which keeps exact attention; or ``None``.
        wants_weights: whether the model asks for the weights, too.
    """

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    ignore: Tensor | None
    is_causal: bool
    scale: float
    dropout: float = 0.0
    is_self: bool = False
    pairs: Tensor | None = None
    wants_weights: bool = False

    @classmethod
    def of(
        cls,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        is_causal: bool | None = None,
        **others: Any,
    ) -> AttentionCall:
        """Read the arguments of an attention function of Transformers; refuse those that cannot be honoured."""
        for name in _REFUSED:
            if others.get(name) is not None:
                raise ValueError(
                    f"{type(module).__name__} passes {name}, which changes the weights of pairs ({_WHY})"
                )
        pairs = attention_mask if _is_windowed(module, query, attention_mask) else None
        mask = attention_mask if pairs is None else None
        causal = pairs is None and _is_causal(module, query, key, mask, is_causal)
        ignore = None
        if mask is not None:
            width = mask.shape[-1]
            if width != key.shape[2]:
                key, value = key[:, :, :width], value[:, :, :width]
            ignore = _ignored(mask)
            ignore = None if ignore is None else ignore.expand(len(key), -1)
        return cls(
            *(module, query, key, value, ignore, causal),
            scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
            dropout=dropout,
            is_self=query.shape[2] == key.shape[2] and (causal or not _is_crossed(module)),
            pairs=pairs,
            wants_weights=bool(others.get("output_attentions")),
        )

    def rows(self) -> tuple[Tensor, bool]:
        """Return queries, one per key if causal, and whether they are: a cache may hold more keys than queries."""
        length, keys = self.query.shape[2], self.key.shape[2]
        paired = self.is_causal and length > 1
        # Outputs of added queries are dropped.
        return F.pad(self.query, (0, 0, keys - length, 0)) if paired and keys > length else self.query, paired

    def exact(self) -> Tensor:
        """Compute the attention exactly: ``(B, H, L, d_v)``."""
        length, keys = self.query.shape[2], self.key.shape[2]
        seen = self.pairs
        if seen is None:
            seen = self.query.new_ones(length, keys, dtype=torch.bool)
            if self.is_causal:
                seen = seen.tril(keys - length)
            if self.ignore is not None:
                seen = seen & ~self.ignore[:, None, None]
        key, value = (self.for_queries(tensor) for tensor in (self.key, self.value))
        return F.scaled_dot_product_attention(
            self.query, key, value, attn_mask=seen, dropout_p=self.dropout, scale=self.scale
        )

    def for_queries(self, tensor: Tensor) -> Tensor:
        """Repeat the heads of keys or values, one per query head."""
        return tensor.repeat_interleave(self.query.shape[1] // tensor.shape[1], 1)


def has_window(module: nn.Module) -> bool:
    """Return whether attention of a layer is local: within a sliding window, or within chunks."""
    if hasattr(module, "sliding_window"):
        return module.sliding_window is not None
    config, index = getattr(module, "config", None), getattr(module, "layer_idx", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and index is not None and index < len(kinds):
        return kinds[index] in ("sliding_attention", "chunked_attention")
    return getattr(config, "sliding_window", None) is not None


def _is_windowed(module: nn.Module, query: Tensor, attention_mask: Tensor | None) -> bool:
    """Return whether a mask is one of pairs, for a layer whose window is shorter than the sequence."""
    if attention_mask is None or attention_mask.ndim != 4 or attention_mask.shape[2] != query.shape[2]:
        return False
    return has_window(module)


def _is_causal(
    module: nn.Module, query: Tensor, key: Tensor, attention_mask: Tensor | None, is_causal: bool | None
) -> bool:
    """Tell causal calls from bidirectional ones by their masks, or without a mask by what the module says."""
    if attention_mask is None:
        causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
        if causal and query.shape[2] not in (1, key.shape[2]):
            raise ValueError(
                f"{type(module).__name__} is causal and has no mask for its {query.shape[2]} queries and "
                f"{key.shape[2]} keys; expected as many queries as keys, or a mask"
            )
        return causal
    if attention_mask.ndim == 2:
        return True
    if attention_mask.dtype == torch.bool and attention_mask.shape[1:-1] == (1, 1):
        return False
    raise ValueError(
        f"attention_mask is a tensor of {attention_mask.dtype} and shape {tuple(attention_mask.shape)}; "
        f"expected None, (batch, keys), or booleans (batch, 1, 1, keys) ({_WHY})"
    )


def _ignored(attended: Tensor) -> Tensor | None:
    """Return which keys to ignore, ``(B, S)``, or ``None`` if there are none; read from the mask if it was noted."""
    compiling = torch.compiler.is_compiling()  # graphs do not look at values
    if not compiling and (noted := getattr(attended, _ATTRIBUTE, None)):
        return cast("Tensor | None", noted[0])
    attended = attended if attended.ndim == 2 else attended[:, 0, 0]
    return None if not compiling and bool(attended.all()) else ~attended.bool()


def _is_crossed(module: nn.Module) -> bool:
    """Return whether a module may attend from a decoder to its encoder, which has a length of its own."""
    return any(getattr(module, name, False) for name in ("is_cross_attention", "is_decoder"))


FITTED = "hrf_fitted"  # name of the implementation that uses fitted maps
SUMMARISED = "hrf-summarised"  # name of attention by summaries, without maps
OBSERVED = "hrf_observed"  # name of exact attention that is watched

# Transformers reads a meaning into names that contain these.
_MEANINGS = ("sdpa", "flash", "flex_attention", "eager", "paged|", "/")

_ours: set[str] = set()  # names added so far


def check_name(name: str) -> None:
    """Refuse names that belong to Transformers, to another library, or to fitted maps."""
    taken = {*AttentionInterface().keys(), *AttentionMaskInterface().keys()} - _ours
    if not isinstance(name, str) or not name:
        raise ValueError(f"name is {name!r}; expected a name such as 'hrf'")
    if name in (FITTED, OBSERVED, SUMMARISED):
        raise ValueError(f"name is {name!r}, which is registered already; expected another, such as 'hrf'")
    if name in taken or any(part in name for part in _MEANINGS):
        raise ValueError(
            f"name is {name!r}, which means another implementation to Transformers; expected a name of your own, "
            "such as 'hrf'"
        )


def add(name: str, function: Callable[..., Any]) -> None:
    """Add an attention function to the interface, with masks for it."""
    AttentionMaskInterface.register(name, mask)
    AttentionInterface.register(name, function)
    _ours.add(name)


def is_ours(name: str | None) -> bool:
    """Return whether a name was added here."""
    return name in _ours


def why_unsupported(cls: type[PreTrainedModel]) -> str | None:
    """Return a sentence on why a class of models cannot use the interface, or ``None`` if nothing speaks against it.

    A file that defines attention and never asks the interface for a function has attention of its own. Models without
    attention in their file have it from others, and models without a file may use it.
    """
    module = sys.modules.get(cls.__module__)
    try:
        source = inspect.getsource(module) if module is not None else ""
    except (OSError, TypeError):
        return None
    own = re.search(r"^class \w*Attention\w*\(nn\.Module\):", source, re.MULTILINE)
    if own is None or "ALL_ATTENTION_FUNCTIONS" in source or "AttentionInterface" in source:
        return None
    return (
        f"{cls.__name__} computes attention by code of its own, not by Transformers' AttentionInterface, so that no "
        'attention can be put in its place; expected a model that takes attn_implementation="sdpa" from the interface, '
        "such as BERT, GPT-2 or Llama"
    )


def refuse(model: PreTrainedModel) -> None:
    """Raise an error if a model is known not to use the interface. Models made of several models pass."""
    reason = None if model.config.sub_configs else why_unsupported(type(model))
    if reason:
        raise ValueError(reason)


def _guard() -> None:
    """Let models refuse our names when they are built: Transformers itself accepts a name that it never uses."""
    original = PreTrainedModel.get_correct_attn_implementation

    @wraps(original)
    def guarded(self: PreTrainedModel, requested_attention: str | None, *args: Any, **options: Any) -> str:
        if requested_attention in _ours:
            refuse(self)
        return original(self, requested_attention, *args, **options)

    PreTrainedModel.get_correct_attn_implementation = guarded  # type: ignore[method-assign]


_guard()
