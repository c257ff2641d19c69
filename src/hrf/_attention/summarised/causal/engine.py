"""From the inputs of `hrf.attention` to the tokens of key heads, and back."""

from __future__ import annotations

import torch
from torch import Tensor

from hrf._attention.inputs import Inputs
from hrf._attention.summarised.causal.compiled import attend_compiled, serves
from hrf._attention.summarised.causal.descent import Found
from hrf._attention.summarised.causal.levels import Tokens, attend
from hrf._attention.summarised.causal.sizes import CHUNK, WIDTH, blocks_of, n_cells
from hrf._attention.summarised.method import SummarisedAttention
from hrf._attention.summarised.report import SummaryCall

__all__ = ["causal_attention", "causal_outputs", "checked", "in_heads", "outputs_of", "tokens_of"]


def checked(method: SummarisedAttention) -> float:
    """Return τ, or refuse choices that only bidirectional attention has."""
    if method.n_groups is not None or method.n_clusters is not None:
        raise ValueError(
            f"causal attention has {method!r}, but its blocks have sizes of their own; expected n_groups=None and "
            "n_clusters=None"
        )
    if isinstance(method.tolerance, str):
        raise NotImplementedError(
            "causal attention has no tolerance='auto': a tolerance that fits the whole sequence would let later tokens "
            "in; expected a number"
        )
    return float(method.tolerance)


def causal_attention(inputs: Inputs, method: SummarisedAttention) -> Tensor:
    """Return ``(B, H, L, d_v)``."""
    tolerance, tokens = checked(method), tokens_of(inputs)
    if method.report is None or not len(inputs.query):
        return in_heads(causal_outputs(tokens, tolerance), inputs)
    found = attend(tokens, tolerance)
    output = outputs_of(found, tokens)
    method.report.add(_account(tokens, found, output, tolerance, len(inputs.query)))
    return in_heads(output, inputs)


def causal_outputs(tokens: Tokens, tolerance: float) -> Tensor:
    """Return outputs ``(N, L, groups, d_v)``."""
    if not tokens.x.numel():
        return tokens.x.new_zeros(*tokens.x.shape[:3], tokens.v.shape[-1])
    if tokens.x.shape[1] > CHUNK and serves(tokens):
        return attend_compiled(tokens, tolerance)
    return outputs_of(attend(tokens, tolerance), tokens)


def in_heads(output: Tensor, inputs: Inputs) -> Tensor:
    """Bring ``(N, L, groups, d_v)`` to ``(B, H, L, d_v)``."""
    return output.view(*inputs.key.shape[:2], *output.shape[1:]).movedim(3, 2).flatten(1, 2)


def tokens_of(inputs: Inputs) -> Tokens:
    """Put key heads and batch items in one axis; padding becomes zeros, so that its content cannot matter."""
    batch, n, length = inputs.key.shape[:3]
    x, y, v = (u.to(inputs.dtype) for u in (inputs.query, inputs.key, inputs.value))
    x = (x * inputs.root).unflatten(1, (n, -1)).movedim(2, 3)  # (B, H_kv, L, groups, d)
    y = y * inputs.root
    everything = torch.ones(batch * n, length, dtype=torch.bool, device=x.device)
    queries = keys = everything
    if inputs.present is not None:
        queries = inputs.present.repeat_interleave(n, 0)
        x = x.masked_fill(~inputs.present[:, None, :, None, None], 0)
    if inputs.ignore is not None:
        keys = ~inputs.ignore.repeat_interleave(n, 0)
        y, v = (u.masked_fill(inputs.ignore[:, None, :, None], 0) for u in (y, v))
    return Tokens(x.flatten(0, 1), y.flatten(0, 1), v.flatten(0, 1), queries, keys)


def outputs_of(found: Found, tokens: Tokens) -> Tensor:
    """Divide sums by masses: ``(N, L, groups, d_v)``; zeros for padding, and for a query that sees no key."""
    sums = found.sums.view(*tokens.x.shape[:3], found.sums.shape[-1])
    some = (sums[..., -1:] > 0) & tokens.queries[..., None, None]
    return (sums[..., :-1] / sums[..., -1:].where(some, 1)) * some


@torch.no_grad()
def _account(tokens: Tokens, found: Found, output: Tensor, tolerance: float, batch: int) -> SummaryCall:
    n, length, groups, _ = tokens.x.shape
    present = tokens.queries[..., None]
    seen = tokens.keys.cumsum(1)[..., None] * present
    exact = found.exact.view(n, length, groups) * present
    value, one, square = found.errors.view(n, length, groups, output.shape[-1] + 2).split(
        [output.shape[-1], 1, 1], -1
    )
    # Errors of masses move the output by weight · (V − output), whose square is summed.
    moved = square - 2 * (value * output).sum(-1, keepdim=True) + one * output.square().sum(-1, keepdim=True)
    mass = found.sums[:, -1].view(n, length, groups)
    error = (moved[..., 0] / mass.where(mass > 0, 1).square() * present).clamp(min=0).sum(1)
    norm = output.square().sum((1, 3))
    finished = blocks_of(max(0, length - 1))

    def per_head(u: Tensor) -> Tensor:
        return u.to(output.dtype).reshape(batch, -1)

    n_clusters = sum(size for _, size in finished) // WIDTH
    return SummaryCall(
        torch.full((batch,), n_cells(groups) if finished else 0, device=output.device),
        torch.full((batch,), n_clusters, device=output.device),
        per_head(torch.full_like(norm, tolerance)),
        per_head((exact.sum(1) / seen.sum(1)).nan_to_num(1.0)),
        per_head((error / norm.clamp(min=torch.finfo(norm.dtype).tiny)).sqrt()),
    )
