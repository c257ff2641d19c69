"""Masks of scaled dot-product attention, as far as linear attention can honour them: padding of keys, and causality."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["padding", "read_mask"]

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
