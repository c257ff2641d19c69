"""Causal summarised attention on queries and keys of trained Transformers, and PyTorch's exact attention.

Prompts: one layer of SmolLM2-135M, a decoder with rotary positions (9 query heads on 3 key heads, d = 64), up to its
8,192 positions; one layer of MiniLM-L6, an encoder, read causally with positions repeated after 512 (12 heads, d = 32).
Steps: one new token half a block before the number that the group says, from a state that holds the summaries of
finished blocks; other cases of a round leave little of it in the processor's caches, as layers of a model do. Beyond
32,768 tokens MiniLM itself runs with summarised attention to get there. Without texts or packages there are no cases.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import hrf
from benchmarks import minilm, smollm
from benchmarks.cases import Case, faster_than
from benchmarks.field.measure import TIMED_LAYER
from hrf._attention.summarised.cache import SummarisedState

__all__ = ["CASES", "EXACT", "MODELS", "NAME", "SETTINGS"]

NAME, EXACT = "SummarisedAttention", "exact (scaled_dot_product_attention)"
MODELS = {"SmolLM2-135M": (smollm.PACKAGE, 64), "MiniLM-L6": (minilm.PACKAGE, 32)}
# Lengths, with the speed-ups aimed at.
PROMPTS = {
    "SmolLM2-135M": {512: 0.95, 1024: 0.95, 2048: 0.95, 4096: 1.5, 8192: 2.5},
    "MiniLM-L6": {1024: 0.95, 4096: 1.5, 8192: 2.5, 16384: 3.5, 32768: 6.0},
}
STEPS = {"SmolLM2-135M": {4096: 1.2}, "MiniLM-L6": {4096: 1.2, 16384: 3.0, 65536: 5.0}}
ROUNDS = {16384: 5, 32768: 3}  # exact attention takes seconds there
THETA = 1e5  # of SmolLM's rotary embeddings
EXACT_CAPTURE = 32768
BEFORE, SPAN = 448, 64  # steps go to the middle of a diagonal block, from one token to the next


@cache
def _smollm(length: int) -> tuple[Tensor, ...]:
    tokenizer, model = smollm.load()
    return smollm.capture(model, smollm.passages(tokenizer, "wikitext2", "valid", 1, length)[0])[
        smollm.LAYERS[2]
    ]


@cache
@torch.inference_mode()
def _minilm(length: int) -> tuple[Tensor, ...]:
    tokenizer, model = minilm.load()
    ids = minilm.encode(tokenizer, minilm.read_text("train")[: length * minilm.CHARACTERS], length)
    found: list[tuple[Tensor, ...]] = []

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if layer == TIMED_LAYER:
            found.append(tuple(u.contiguous() for u in (q * q.shape[-1] ** 0.25, k * q.shape[-1] ** 0.25, v)))
        if layer >= TIMED_LAYER:
            return torch.zeros_like(v)  # what follows is not needed
        if length > EXACT_CAPTURE:
            return hrf.attention(q, k, v, hrf.SummarisedAttention(), scale=1.0)
        return scaled_dot_product_attention(q, k, v, scale=1.0)

    with minilm.replaced(model, attend):
        minilm.hidden_states(model, ids)
    return found[0]


def inputs(model: str, length: int) -> tuple[Tensor, ...]:
    """Return queries ``(1, H, L, d)``, keys and values ``(1, H_kv, L, d)``."""
    longest = max(n for n in (*PROMPTS[model], *STEPS[model]) if n <= 8192) if length <= 8192 else length
    found = _smollm(longest) if model == "SmolLM2-135M" else _minilm(longest)
    return tuple(u[:, :, :length].contiguous() for u in found)


def method(model: str) -> hrf.SummarisedAttention:
    return hrf.SummarisedAttention(rotary=THETA if model == "SmolLM2-135M" else None)


def summarised(model: str, length: int) -> partial[Tensor]:
    return partial(hrf.attention, *inputs(model, length), method(model), is_causal=True)


def exact(model: str, length: int) -> partial[Tensor]:
    query, key, value = inputs(model, length)
    key, value = (u.repeat_interleave(query.shape[1] // u.shape[1], 1) for u in (key, value))
    return partial(scaled_dot_product_attention, query, key, value, is_causal=True)


def summarised_step(model: str, length: int) -> Callable[[], Tensor]:
    query, key, value = inputs(model, length)
    start, end = length - BEFORE - SPAN, length - BEFORE
    state = SummarisedState.of(method(model), query.shape[-1], query.shape[-1] ** -0.5)
    state.attend(*(u[:, :, :start] for u in (query, key, value)))
    tokens = [[u[:, :, i : i + 1].contiguous() for u in (query, key, value)] for i in range(start, end)]

    def step() -> Tensor:
        if state.length == end:
            state.crop(start)
        return state.attend(*tokens[state.length - start])

    return step


def exact_step(model: str, length: int) -> partial[Tensor]:
    query, key, value = (u[:, :, : length - BEFORE].contiguous() for u in inputs(model, length))
    grouped = query.shape[1] > key.shape[1]
    return partial(
        scaled_dot_product_attention, query[:, :, -1:].contiguous(), key, value, enable_gqa=grouped
    )


def _pair(group: str, size: int, target: float, work: float, ours: object, theirs: object) -> list[Case]:
    options = {"group": group, "flops": work, "size": size, "rounds": ROUNDS.get(size)}
    return [
        Case(NAME, setup=ours, against=(faster_than(EXACT, at_least=target),), **options),
        Case(EXACT, setup=theirs, own=False, **options),
    ]


CASES: tuple[Case, ...] = ()
SETTINGS: dict[str, dict[str, object]] = {}
for _model, (_package, _dim) in MODELS.items():
    for _what, _lengths in (("prompt", PROMPTS), ("step", STEPS)):
        for _length, _target in _lengths[_model].items():
            _group = f"long {_what}, {_model}, {_length:,} tokens"
            SETTINGS[_group] = {_what: _length, "model": _model, "dim": _dim}
            if find_spec(_package) is None or not (minilm.data_folder() / "wikitext2").is_dir():
                continue
            _makers = (summarised, exact) if _what == "prompt" else (summarised_step, exact_step)
            _work = 2.0 * _length * _dim * (_length if _what == "prompt" else 2)
            CASES += tuple(
                _pair(_group, _length, _target, _work, *(partial(f, _model, _length) for f in _makers))
            )
