"""Cross-entropy over very many classes from a few drawn classes (Bengio and Senécal, 2008).

With logits o, target t and k classes drawn from q, Σ_c exp(o_c) is estimated without bias by

    exp(o_t) + Σ_{drawn c ≠ t} exp(o_c − log(k q_c)),

where the target counts once and exactly, so a drawn target is left out.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from hrf.checks import check_count, check_tensors, generator_of
from hrf.sampling import Sampler, Samples

__all__ = ["SampledSoftmaxLoss"]

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
        counted = classes != self.ignore_index
        rows, chosen = rows[counted], classes[counted]
        self.sampler.check_ids(chosen, "targets")
        if not len(classes):
            raise ValueError(f"targets has shape {tuple(targets.shape)}; expected at least one target")
        losses = self._sampled(rows, chosen, weight, bias, generator)
        if self.reduction == "none":
            return losses.new_zeros(classes.shape).masked_scatter(counted, losses).view(targets.shape)
        return losses.mean() if self.reduction == "mean" else losses.sum()

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
