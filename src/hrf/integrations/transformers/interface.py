"""Names of implementations in Transformers' attention interface, and models that do not use the interface.

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
from typing import Any

from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from hrf.integrations.transformers.masks import mask

__all__ = ["FITTED", "OBSERVED", "SUMMARISED", "add", "check_name", "is_ours", "refuse", "why_unsupported"]

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
