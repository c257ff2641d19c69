"""Summarised attention in a trained decoder, beside exact attention, on a text of the user's: `check_decoder`."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel
from typing_extensions import override

from hrf import pages
from hrf._attention import SummarisedAttention, SummaryReport
from hrf._attention.summarised.blocks import BASE
from hrf.integrations.transformers.attention import Method, _Summarised, switch
from hrf.integrations.transformers.interface import AttentionCall, add
from hrf.report import markdown_table

__all__ = ["DecoderReport", "check_decoder"]

_NAME = "hrf-checked"  # of the attention while it is measured
_ROWS = 512  # of logits at a time
HARMLESS, NOTICEABLE = 0.003, 0.01  # relative increases of perplexity


@dataclass
class DecoderReport:
    """What `check_decoder` found.

    Attributes:
        tokens: number of tokens per sequence.
        perplexity: with summarised attention.
        exact_perplexity: with exact attention.
        kl: mean divergence of the next token's distribution from the exact one, in nats, from token 1,024 on.
        same_top: share of these tokens whose most likely successor stays.
        errors: relative error of each head's output given its own inputs, ``(layers, heads)``.
        exact_shares: share of pairs that were computed exactly, ``(layers, heads)``.
        seconds: of the forward pass.
        exact_seconds: of the forward pass with exact attention.
        layers: which layers these are, the rows of ``errors``: all without a sliding window.
    """

    tokens: int
    perplexity: float
    exact_perplexity: float
    kl: float
    same_top: float
    errors: Tensor
    exact_shares: Tensor
    seconds: float
    exact_seconds: float
    layers: list[int]

    @property
    def change(self) -> float:
        """Relative increase of the perplexity."""
        return self.perplexity / self.exact_perplexity - 1

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.tokens <= BASE:
            return f"Up to {BASE:,} tokens attention is exact: check a longer text."
        speed = self.exact_seconds / self.seconds
        times = f"{speed:.2f} times as fast" if speed >= 1 else f"{1 / speed:.2f} times as slow"
        if abs(self.change) <= HARMLESS:
            return f"Use it: perplexity changes by {self.change:+.2%}, and the whole model is {times}."
        if abs(self.change) <= NOTICEABLE:
            return f"Perplexity changes by {self.change:+.2%} ({times}): try a smaller tolerance."
        return f"Do not use it here: perplexity changes by {self.change:+.2%}; try tolerance=0.25, or stay exact."

    def worst(self, n: int = 5) -> list[tuple[int, int, float, float]]:
        """Return layer, head, error and exact share of the heads with the largest errors."""
        order = self.errors.flatten().argsort(descending=True)[:n].tolist()
        heads = self.errors.shape[1]
        return [
            (
                self.layers[i // heads],
                i % heads,
                float(self.errors.flatten()[i]),
                float(self.exact_shares.flatten()[i]),
            )
            for i in order
        ]

    def save_page(self, path: str | PathLike[str]) -> None:
        """Write a page to look at: error and exact share of every head of every layer, worst heads first."""
        names = [f"layer {layer}" for layer in self.layers]
        numbers = self.errors.tolist(), self.exact_shares.tolist()
        title = f"Summarised attention in a decoder, {self.tokens:,} tokens"
        pages.save(pages.heads_page(title, [self.verdict], names, *numbers), Path(path))

    def __str__(self) -> str:
        rows = [
            ["perplexity", f"{self.exact_perplexity:.3f}", f"{self.perplexity:.3f}"],
            ["seconds", f"{self.exact_seconds:.1f}", f"{self.seconds:.1f}"],
            ["divergence from exact (nats)", "", f"{self.kl:.4f}"],
            ["same most likely token", "", f"{self.same_top:.1%}"],
            ["pairs computed exactly", "100 %", f"{float(self.exact_shares.mean()):.1%}"],
            ["error of a head, median", "", f"{float(self.errors.median()):.3f}"],
        ]
        rows += [
            [f"layer {layer}, head {head}", "", f"{error:.3f}"] for layer, head, error, _ in self.worst()
        ]
        found = markdown_table([f"{self.tokens:,} tokens", "exact", "summarised"], rows)
        return f"{found}\n\n{self.verdict}"


@torch.inference_mode()
def check_decoder(
    model: PreTrainedModel, input_ids: Tensor, method: SummarisedAttention | None = None
) -> DecoderReport:
    """Run a decoder with exact and with summarised attention, and compare.

    Args:
        model: decoder of Transformers; it keeps its attention.
        input_ids: a text of more than 1,024 tokens, ``(B, L)``, without padding.
        method: by default ``hrf.SummarisedAttention()``.

    >>> import torch, transformers
    >>> from hrf.integrations.transformers import check_decoder
    >>> sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    >>> model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()
    >>> report = check_decoder(model, torch.randint(64, (1, 1500)))
    >>> report.errors.shape
    torch.Size([2, 4])
    """
    if input_ids.ndim != 2 or input_ids.shape[1] < 2:
        raise ValueError(
            f"input_ids has shape {tuple(input_ids.shape)}; expected (batch, tokens), two tokens or more"
        )
    own, report = method or SummarisedAttention(), SummaryReport()
    exact, exact_seconds = _logits(model, input_ids, None)
    reporting = _Recorded(own.with_report(report))
    _logits(model, input_ids, reporting)
    if not report.calls:
        raise ValueError(
            f"all layers of this {type(model).__name__} have a sliding window, and keep exact attention; expected a "
            "decoder with others"
        )
    found, seconds = _logits(model, input_ids, _Summarised(own))
    losses, divergences, same = _compare(exact, found, input_ids)
    late = slice(min(BASE, input_ids.shape[1] - 2), None)
    ours, right = (math.exp(float(loss.mean())) for loss in losses)
    return DecoderReport(
        tokens=input_ids.shape[1],
        perplexity=ours,
        exact_perplexity=right,
        kl=float(divergences[:, late].mean()),
        same_top=float(same[:, late].float().mean()),
        errors=torch.stack([call.predicted_error.square().mean(0).sqrt() for call in report.calls]),
        exact_shares=torch.stack([call.exact_share.mean(0) for call in report.calls]),
        seconds=seconds,
        exact_seconds=exact_seconds,
        layers=reporting.layers,
    )


class _Recorded(_Summarised):
    """Attention by summaries that notes the layers it serves."""

    def __init__(self, method: SummarisedAttention) -> None:
        super().__init__(method)
        self.layers: list[int] = []

    @override
    def method_of(self, call: AttentionCall) -> Method:
        if not call.is_causal:
            raise ValueError(f"this {type(call.module).__name__} is not causal; expected a decoder")
        self.layers.append(getattr(call.module, "layer_idx", len(self.layers)))
        return super().method_of(call)


@contextmanager
def _attention(model: PreTrainedModel, ours: _Summarised | None) -> Iterator[None]:
    """Let a model use summarised attention, or PyTorch's, for a while."""
    name = model.config._attn_implementation
    try:
        if ours is None:
            model.set_attn_implementation("sdpa")
        else:
            add(_NAME, ours)
            switch(model, _NAME)
        yield
    finally:
        model.set_attn_implementation(name)


def _logits(model: PreTrainedModel, input_ids: Tensor, ours: _Summarised | None) -> tuple[Tensor, float]:
    with _attention(model, ours):
        start = time.perf_counter()
        output = model(input_ids, use_cache=False)
        seconds = time.perf_counter() - start
    if "logits" not in output:
        raise ValueError(f"this {type(model).__name__} predicts no tokens; expected a decoder with its head")
    return output.logits, seconds


def _compare(exact: Tensor, found: Tensor, input_ids: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
    """Return losses of both, divergences and agreement of each token's prediction, ``(B, L − 1)`` each."""
    parts = []
    for start in range(0, input_ids.shape[1] - 1, _ROWS):
        own = slice(start, min(start + _ROWS, input_ids.shape[1] - 1))
        target = input_ids[:, own.start + 1 : own.stop + 1, None]
        right, ours = (F.log_softmax(u[:, own].float(), -1) for u in (exact, found))
        losses = [-u.gather(-1, target)[..., 0] for u in (ours, right)]
        divergence = (right.exp() * (right - ours)).sum(-1)
        parts.append((*losses, divergence, right.argmax(-1) == ours.argmax(-1)))
    ours, right, divergence, same = (torch.cat(u, 1) for u in zip(*parts, strict=True))
    return (ours, right), divergence, same
