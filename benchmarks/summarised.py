"""Summarised attention on queries and keys of a trained Transformer, and PyTorch's exact attention.

MiniLM-L6 reads one long passage of WikiText-2, with positions repeated after 512; times are those of one layer in the
middle: 12 heads, d = 32. For d = 64, pairs of heads of this layer and the next are joined to 8 heads, divided by ⁴√2 so
that logits keep their size. Without the text ($HRF_DATA) or the model's package there are no cases.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import hrf
from benchmarks import minilm
from benchmarks.cases import Case, faster_than
from benchmarks.field.measure import TIMED_LAYER, capture

__all__ = ["CASES", "EXACT", "LENGTHS", "NAME", "SETTINGS", "group"]

LENGTHS = {1024: 1.5, 4096: 4.5, 16384: 12.0}  # with the speed-ups aimed at
TRAINED = {1024: 0.8, 4096: 2.0}  # likewise, with the backward pass
JOINED = {32: 1, 64: 2}  # heads of the model per head, by width
HEADS = {32: 12, 64: 8}
ROUNDS = {16384: 5}  # exact attention takes seconds there
NAME, EXACT = "SummarisedAttention", "exact (scaled_dot_product_attention)"
WITH_BACKWARD = ", forward + backward"


def group(length: int, dim: int) -> str:
    return f"summarised, {length:,} tokens, d = {dim}"


@cache
def long_text(length: int) -> tuple[Tensor, ...]:
    """Return queries, keys and values ``(1, 24, L, 32)`` of two layers; exp(qᵀk) is the kernel."""
    tokenizer, model = minilm.load()
    ids = minilm.encode(tokenizer, minilm.read_text("test")[: length * minilm.CHARACTERS], length)
    layers = capture(model, ids)[TIMED_LAYER : TIMED_LAYER + 2]
    return tuple(torch.cat(heads, 1) for heads in zip(*layers, strict=True))


@cache
def inputs(length: int, dim: int) -> tuple[Tensor, ...]:
    """Return queries, keys and values ``(1, heads, L, dim)``."""
    joined, heads = JOINED[dim], HEADS[dim]
    q, k, v = (
        u[:, : heads * joined].unflatten(1, (heads, joined)).transpose(2, 3).flatten(3).contiguous()
        for u in long_text(length)
    )
    return q / joined**0.25, k / joined**0.25, v


def exact(length: int, dim: int) -> partial[Tensor]:
    return partial(scaled_dot_product_attention, *inputs(length, dim), scale=1.0)


def summarised(length: int, dim: int) -> partial[Tensor]:
    return partial(hrf.attention, *inputs(length, dim), hrf.SummarisedAttention(), scale=1.0)


def trained(attention: Callable[..., partial[Tensor]], length: int, dim: int) -> Callable[[], Tensor]:
    """Return a forward and a backward pass."""
    forward = attention(length, dim)
    with torch.inference_mode(False):
        leaves = [u.clone().requires_grad_() for u in inputs(length, dim)]

    def run() -> Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            output = forward.func(*leaves, *forward.args[3:], **forward.keywords)
            return torch.autograd.grad(output.square().sum(), leaves)[0]

    return run


def cases(length: int, dim: int) -> list[Case]:
    """Return the cases of one length and width."""
    work = 4.0 * HEADS[dim] * length**2 * dim
    options = {"group": group(length, dim), "flops": work, "size": length, "rounds": ROUNDS.get(length)}
    against = (faster_than(EXACT, at_least=LENGTHS[length]),)
    found = [
        Case(NAME, setup=partial(summarised, length, dim), against=against, **options),
        Case(EXACT, setup=partial(exact, length, dim), own=False, **options),
    ]
    if length in TRAINED:
        options["flops"], name = 3 * work, f"{EXACT}{WITH_BACKWARD}"
        against = (faster_than(name, at_least=TRAINED[length]),)
        ours, theirs = (partial(trained, attention, length, dim) for attention in (summarised, exact))
        found.append(Case(NAME + WITH_BACKWARD, setup=ours, against=against, **options))
        found.append(Case(name, setup=theirs, own=False, **options))
    return found


_SIZES = [(length, dim) for dim in JOINED for length in LENGTHS]
_AVAILABLE = find_spec(minilm.PACKAGE) is not None and (minilm.data_folder() / "wikitext2").is_dir()
CASES = tuple(case for sizes in _SIZES for case in cases(*sizes)) if _AVAILABLE else ()
SETTINGS = {group(length, dim): {"tokens": length, "dim": dim, "heads": HEADS[dim]} for length, dim in _SIZES}
