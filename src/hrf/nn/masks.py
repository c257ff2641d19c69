"""PyTorch's masks, as far as linear attention can honour them: padding of keys, and causality."""

from __future__ import annotations

import torch
from torch import Tensor

from hrf.sampling.arguments import check_tensors

__all__ = ["booleans", "causal"]

_WHY = (
    "linear attention never forms the logits or the weight of a pair, so it can honour only padding of keys"
)


def booleans(mask: Tensor, name: str) -> Tensor:
    """Convert a mask to booleans, True to ignore: from booleans, or from 0 and −inf, to be added to logits."""
    check_tensors(**{name: mask})
    if mask.dtype == torch.bool:
        return mask
    ignored = mask.isneginf()
    if not mask.is_floating_point() or not bool((ignored | (mask == 0)).all()):
        raise ValueError(
            f"{name} of {mask.dtype} has values besides 0 and −inf; expected booleans, True to ignore ({_WHY})"
        )
    return ignored


def causal(attn_mask: Tensor | None, is_causal: bool, shape: tuple[int, int, int]) -> bool:
    """Tell whether attention is causal, by the flag or by the mask; refuse any other mask.

    ``shape`` is the shape of the weights, ``(N·H, L, S)``.
    """
    if attn_mask is None:
        return is_causal
    check_tensors(attn_mask=attn_mask)
    if tuple(attn_mask.shape) not in (shape, shape[1:]):
        raise ValueError(
            f"attn_mask has shape {tuple(attn_mask.shape)}; expected {shape[1:]}, or {shape} with one mask per head"
        )
    future = torch.ones(attn_mask.shape[-2:], dtype=torch.bool, device=attn_mask.device).triu(1)
    if not bool((booleans(attn_mask, "attn_mask") == future).all()):
        raise ValueError(
            f"attn_mask of shape {tuple(attn_mask.shape)} is not the causal mask ({_WHY} and is_causal)"
        )
    return True
