"""Hashes of keys and values, to tell whether a cache still holds the ones that a state has summed up.

PyTorch counts the in-place operations on a tensor, but not under ``torch.inference_mode``. So the bits are read there:
a hash is the sum of the vectors of a head, taken as integers, with a random weight per token. A change of one token
always shows, and a change of several tokens is missed about once in 2³¹ times.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hrf._attention import loops

__all__ = ["hashes"]

_TOKENS = 1024  # tokens of all heads at a time, so that their copies stay in the processor's cache


def hashes(vectors: Tensor, before: int) -> Tensor:
    """Sum the words of vectors over the first ``before`` tokens, and over all, modulo 2⁶⁴.

    Args:
        vectors: keys or values ``(B, H, S, d)``, of any floating-point dtype.
        before: number of tokens of the first sum, S at most.

    Returns:
        Integers ``(2, B, H, n)``, with n words per vector.
    """
    vectors = vectors.detach()
    if vectors.stride(-1) != 1:
        vectors = vectors.contiguous()
    words = vectors.view({1: torch.uint8, 2: torch.int16}.get(vectors.element_size(), torch.int32))
    weights = _weights(1 << words.shape[2].bit_length())
    if words.is_cpu and words.numel() and loops.installed():
        return _compiled(words, weights, before)
    return _plain(words, weights, before)


@lru_cache(maxsize=32)
def _weights(count: int) -> NDArray[np.uint32]:
    """Draw odd weights; more of them begin with the same ones."""
    return np.random.default_rng(0).integers(0, 1 << 32, count, np.uint32) | np.uint32(1)


def _compiled(words: Tensor, weights: NDArray[np.uint32], before: int) -> Tensor:
    from hrf.integrations.transformers.hash_loop import add_hashes  # Numba is optional

    size, (b, h, s, n) = words.shape, words.stride()
    span = (size[0] - 1) * b + (size[1] - 1) * h + (size[2] - 1) * s + size[3]
    memory = words.as_strided((span,), (n,), words.storage_offset()).numpy()
    sums = np.empty((2, size[0], size[1], size[3]), np.uint64)
    add_hashes(memory.view(f"u{memory.itemsize}"), (b, h, s), weights, before, size[2], sums)
    return torch.from_numpy(sums.view(np.int64))


def _plain(words: Tensor, weights: NDArray[np.uint32], before: int) -> Tensor:
    """Do the same with PyTorch's operations."""
    step = max(1, _TOKENS // max(1, words.shape[0] * words.shape[1]))
    mask = (1 << 8 * words.element_size()) - 1  # without signs
    factors = torch.from_numpy(weights[: words.shape[2]].astype(np.int64)).to(words.device)[:, None]
    sums = words.new_zeros((2, *words.shape[:2], words.shape[3]), dtype=torch.int64)
    for start in range(0, words.shape[2], step):
        part = slice(start, start + step)
        terms = (words[:, :, part].long() & mask) * factors[part]
        sums[0] += terms[:, :, : max(0, before - start)].sum(2)
        sums[1] += terms.sum(2)
    return sums
