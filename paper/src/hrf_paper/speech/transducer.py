"""The Conformer-Transducer: its joiner over the lattice, its loss over all alignments, and the model."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hrf_paper.speech.conformer import ByteDropout, Conformer, ConformerBlock, ModelConfig, SelfAttention
from hrf_paper.speech.utterances import BLANK, SpeechBatch

# The joiner of a transducer over all nodes of its lattice: logits(t, u) = W tanh(f(t) + g(u)) + b.
#
# Every utterance is joined by itself, over its own frames and labels: padded nodes cost nothing, and the nodes of one
# utterance stay in the cache between tanh and the product. Logits outside an utterance are zero.


def join_lattice(
    of_frames: Tensor, of_labels: Tensor, weight: Tensor, bias: Tensor, frames: Tensor, n_labels: Tensor
) -> Tensor:
    """Return logits ``(B, T, U + 1, V)``.

    Args:
        of_frames: ``(B, T, J)``.
        of_labels: ``(B, U + 1, J)``.
        weight: ``(V, J)``.
        bias: ``(V,)``.
        frames: integers ``(B,)``: frames of each utterance.
        n_labels: integers ``(B,)``: labels of each utterance.
    """
    sizes = list(zip(frames.tolist(), (n_labels + 1).tolist(), strict=True))
    return cast(Tensor, _Joined.apply(of_frames, of_labels, weight, bias, sizes))


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        of_frames: Tensor,
        of_labels: Tensor,
        weight: Tensor,
        bias: Tensor,
        sizes: list[tuple[int, int]],
    ) -> Tensor:
        logits = of_frames.new_zeros(*of_frames.shape[:2], of_labels.shape[1], len(weight))
        nodes = []
        for b, (t, u) in enumerate(sizes):
            found = of_frames[b, :t, None] + of_labels[b, None, :u]
            # tanh x = 2 σ(2x) − 1: the sigmoid is three times as fast as PyTorch's tanh.
            found = found.mul_(2).sigmoid_().mul_(2).sub_(1).flatten(0, 1)
            logits[b, :t, :u] = torch.addmm(bias, found, weight.mT).view(t, u, -1)
            nodes.append(found)
        ctx.sizes, ctx.shapes = sizes, (of_frames.shape, of_labels.shape)
        ctx.save_for_backward(weight, *nodes)
        return logits

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        weight, *nodes = ctx.saved_tensors
        to_frames, to_labels = (weight.new_zeros(shape) for shape in ctx.shapes)
        to_weight, to_bias = torch.zeros_like(weight), weight.new_zeros(len(weight))
        for b, ((t, u), found) in enumerate(zip(ctx.sizes, nodes, strict=True)):
            outer = gradients[0][b, :t, :u].flatten(0, 1)
            to_weight.addmm_(outer.mT, found)
            to_bias += outer.sum(0)
            # ∂ tanh = 1 − tanh²
            inner = torch.ops.aten.tanh_backward(outer @ weight, found).view(t, u, -1)
            to_frames[b, :t], to_labels[b, :u] = inner.sum(1), inner.sum(0)
        return to_frames, to_labels, to_weight, to_bias, None


# Loss of the RNN transducer (Graves, 2012) in PyTorch: −log P(labels), summed over all alignments.
#
# A node (t, u) of the lattice has read t frames and written u labels. A blank leads to (t + 1, u), the next label to
# (t, u + 1). With log-probabilities b of blanks and e of labels,
#
#     α(t, u) = logaddexp(α(t − 1, u) + b(t − 1, u), α(t, u − 1) + e(t, u − 1)),
#     β(t, u) = logaddexp(β(t + 1, u) + b(t, u), β(t, u + 1) + e(t, u)),
#
# from α(0, 0) = 0 and β(T − 1, U) = b(T − 1, U), and log P = β(0, 0). Both predecessors of a node lie on the
# anti-diagonal t + u − 1, so that each recurrence takes T + U vectorised steps. The lattice is in float64, whatever the
# dtype of the logits: α falls to −10⁴ in long utterances, where float32 has steps of 10⁻³.
#
# The gradient is closed: ∂/∂logit(k) = softmax(k) · visits − uses of the arc k, with visits = Σ of the uses of both
# arcs. Memory: the backward pass makes one tensor of the size of the logits; the lattice takes four float64 tensors of
# their size over the vocabulary.

_NEVER = float("-inf")


def rnnt_loss(logits: Tensor, labels: Tensor, frames: Tensor, n_labels: Tensor, *, blank: int = 0) -> Tensor:
    """Return −log P of the labels of each utterance: ``(B,)``.

    Args:
        logits: ``(B, T, U + 1, V)``, not normalised: entry (t, u) after t frames and u labels.
        labels: integers ``(B, U)``; entries after the end of an utterance are ignored.
        frames: integers ``(B,)`` between 1 and T: frames of each utterance.
        n_labels: integers ``(B,)`` between 0 and U: labels of each utterance.
        blank: the number of the blank.

    >>> import torch
    >>> loss = rnnt_loss(torch.zeros(1, 1, 2, 4), torch.tensor([[3]]), torch.tensor([1]), torch.tensor([1]))
    >>> loss.exp()  # one alignment, of two choices among four
    tensor([16.0000])
    """
    _check(logits, labels, frames, n_labels, blank)
    return _TransducerLoss.apply(logits, labels.long(), frames.long(), n_labels.long(), blank)


class _TransducerLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, frames: Tensor, n_labels: Tensor, blank: int
    ) -> Tensor:
        norm = logits.logsumexp(-1)  # (B, T, U + 1)
        index = labels[:, None, :, None].expand(-1, logits.shape[1], -1, 1)
        inside = torch.arange(labels.shape[1], device=labels.device) < n_labels[:, None]
        index = index.where(inside[:, None, :, None], blank)
        stay = (logits[..., blank] - norm).double()
        write = (logits[:, :, :-1].gather(-1, index).squeeze(-1) - norm[:, :, :-1]).double()
        log_p, stays, writes = _arcs(stay, write, frames, n_labels)
        ctx.blank = blank
        ctx.save_for_backward(logits, norm, index, stays, writes)
        return -log_p.to(logits.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        logits, norm, index, stays, writes = ctx.saved_tensors
        outer = gradients[0].double()[:, None, None]
        stays, writes = stays * outer, writes * outer
        visits = stays + F.pad(writes, (0, 1))
        found = (logits - norm[..., None]).exp_().mul_(visits.to(logits.dtype)[..., None])
        found[..., ctx.blank] -= stays.to(logits.dtype)
        found[:, :, :-1].scatter_add_(-1, index, -writes.to(logits.dtype)[..., None])
        return found, None, None, None, None


def _arcs(stay: Tensor, write: Tensor, frames: Tensor, n_labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return log P ``(B,)`` and the expected uses of blanks ``(B, T, U + 1)`` and labels ``(B, T, U)``."""
    batch = torch.arange(len(stay), device=stay.device)
    last = torch.full_like(stay, _NEVER)
    last[batch, frames - 1, n_labels] = stay[batch, frames - 1, n_labels]
    steps = stay.shape[1]
    stays, writes, ends = (_skewed(F.pad(x, (0, n))) for x, n in ((stay, 0), (write, 1), (last, 0)))
    forth, back = _forward(stays, writes), _backward(stays, writes, ends)
    log_p = back[0, :, :1]
    after = F.pad(back[1:], (0, 0, 0, 0, 0, 1), value=_NEVER)  # β one diagonal on, of the same u
    # The last blank leaves the lattice: its β beyond is log 1, which `ends` holds together with its weight.
    uses_stay = (forth + torch.logaddexp(stays + after, ends) - log_p).exp()
    uses_write = (forth + writes + F.pad(after[..., 1:], (0, 1), value=_NEVER) - log_p).exp()
    return log_p[:, 0], _straight(uses_stay, steps), _straight(uses_write, steps)[..., :-1]


def _forward(stays: Tensor, writes: Tensor) -> Tensor:
    """Return α on diagonals, ``(T + U, B, U + 1)``."""
    found = torch.full_like(stays, _NEVER)
    found[0, :, 0] = 0
    for n in range(1, len(stays)):
        before = found[n - 1]
        torch.add(before, stays[n - 1], out=found[n])
        arrived = before[:, :-1] + writes[n - 1, :, :-1]
        torch.logaddexp(found[n, :, 1:], arrived, out=found[n, :, 1:])
    return found


def _backward(stays: Tensor, writes: Tensor, ends: Tensor) -> Tensor:
    """Return β on diagonals; nodes outside an utterance cannot reach its end, so that they have −∞."""
    found = ends.clone()
    for n in range(len(stays) - 2, -1, -1):
        after = found[n + 1]
        onward = after + stays[n]
        torch.logaddexp(onward[:, :-1], after[:, 1:] + writes[n, :, :-1], out=onward[:, :-1])
        torch.logaddexp(found[n], onward, out=found[n])
    return found


def _skewed(lattice: Tensor) -> Tensor:
    """Lay anti-diagonals in rows: ``(B, T, U + 1) -> (T + U, B, U + 1)``, entry (t + u, b, u); −∞ elsewhere."""
    batch, steps, width = lattice.shape
    rows = F.pad(lattice.mT, (0, width), value=_NEVER).reshape(batch, -1)[:, :-width]
    return rows.reshape(batch, width, steps + width - 1).permute(2, 0, 1).contiguous()


def _straight(diagonals: Tensor, steps: int) -> Tensor:
    """Undo `_skewed`."""
    _, batch, width = diagonals.shape
    rows = F.pad(diagonals.permute(1, 2, 0).reshape(batch, -1), (0, width))
    return rows.reshape(batch, width, steps + width)[..., :steps].mT


def _check(logits: Tensor, labels: Tensor, frames: Tensor, n_labels: Tensor, blank: int) -> None:
    if logits.ndim != 4 or not logits.is_floating_point():
        raise ValueError(
            f"logits are {logits.dtype} of shape {tuple(logits.shape)}; expected (B, T, U + 1, V) in floats"
        )
    batch, steps, width, vocabulary = logits.shape
    if labels.shape != (batch, width - 1) or frames.shape != (batch,) or n_labels.shape != (batch,):
        raise ValueError(
            f"labels, frames and n_labels have shapes {tuple(labels.shape)}, {tuple(frames.shape)} and "
            f"{tuple(n_labels.shape)}; expected {(batch, width - 1)}, {(batch,)} and {(batch,)} for logits of shape "
            f"{tuple(logits.shape)}"
        )
    for name, counts, low, high in (("frames", frames, 1, steps), ("n_labels", n_labels, 0, width - 1)):
        if batch and not low <= int(counts.min()) <= int(counts.max()) <= high:
            raise ValueError(f"{name} are {counts.tolist()}; expected numbers from {low} to {high}")
    if not 0 <= blank < vocabulary:
        raise ValueError(f"blank is {blank}; expected a number from 0 to {vocabulary - 1}")
    used = ~(torch.arange(width - 1, device=labels.device) >= n_labels[:, None])
    if bool((used & ((labels < 0) | (labels >= vocabulary) | (labels == blank))).any()):
        raise ValueError(f"labels hold numbers outside 0 to {vocabulary - 1}, or the blank {blank}")


# The Conformer-Transducer: encoder, predictor and joiner (Graves, 2012; Gulati et al., 2020).

CTC_WEIGHT = 0.3  # of the CTC head beside the transducer, in training and in searches


class PredictorState(NamedTuple):
    """What the predictor remembers of the labels so far: tensors ``(B, ·)``, h and c or the last two labels."""

    first: Tensor
    second: Tensor


class Losses(NamedTuple):
    """Losses of each utterance, ``(B,)``: of the transducer, and of the CTC head that helps the encoder."""

    transducer: Tensor
    ctc: Tensor


class ConformerTransducer(nn.Module):
    """A recogniser of speech that writes characters.

    Args:
        config: its sizes.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        wide = config.predictor_width
        self.encoder = Conformer(config)
        self.ctc = nn.Linear(config.width, config.vocabulary)
        self.embedding = nn.Embedding(config.vocabulary, wide)
        self.memory: nn.Module = (
            nn.LSTM(wide, wide, batch_first=True) if config.predictor == "lstm" else nn.Linear(2 * wide, wide)
        )
        self.dropout = ByteDropout(config.predictor_dropout)
        self.of_frames = nn.Linear(config.width, config.joint_width)
        self.of_labels = nn.Linear(wide, config.joint_width)
        self.joiner = nn.Linear(config.joint_width, config.vocabulary)

    @property
    def attentions(self) -> list[SelfAttention]:
        """Self-attention of each block, in order."""
        return [cast(ConformerBlock, block).attention for block in self.encoder.blocks]

    def encode(self, features: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Encode features ``(B, frames, channels)``: return ``(B, L, width)`` and lengths ``(B,)``."""
        return cast(tuple[Tensor, Tensor], self.encoder(features, frames))

    def losses(self, batch: SpeechBatch) -> Losses:
        """Return the losses of a batch."""
        encoded, lengths = self.encode(batch.features, batch.frames)
        predicted = self._predicted(batch.labels)
        logits = join_lattice(
            self.of_frames(encoded),
            self.of_labels(predicted),
            self.joiner.weight,
            self.joiner.bias,
            lengths,
            batch.n_labels,
        )
        return Losses(
            rnnt_loss(logits, batch.labels, lengths, batch.n_labels, blank=BLANK),
            F.ctc_loss(
                self.ctc(encoded).log_softmax(-1).transpose(0, 1),
                batch.labels,
                lengths,
                batch.n_labels,
                blank=BLANK,
                reduction="none",
                zero_infinity=True,
            ),
        )

    def start(self, size: int) -> tuple[Tensor, PredictorState]:
        """Return the predictor's output before the first label, ``(size, joint_width)``, and its state."""
        blanks = torch.full((size,), BLANK, device=self.joiner.weight.device)
        if isinstance(self.memory, nn.LSTM):
            empty = self.joiner.weight.new_zeros(size, self.config.predictor_width)
            return self.advance(blanks, PredictorState(empty, empty))
        return self.advance(blanks, PredictorState(blanks, blanks))

    def advance(self, labels: Tensor, state: PredictorState) -> tuple[Tensor, PredictorState]:
        """Take in one label per utterance ``(B,)``: return the predictor's output and state after it."""
        if isinstance(self.memory, nn.LSTM):
            memory = state.first[None].contiguous(), state.second[None].contiguous()
            out, (h, c) = self.memory(self.embedding(labels)[:, None], memory)
            return self.of_labels(out[:, 0]), PredictorState(h[0], c[0])
        pair = torch.stack((state.second, labels), 1)
        return self.of_labels(self._of_pairs(pair)), PredictorState(state.second, labels)

    def join(self, frames: Tensor, labels: Tensor) -> Tensor:
        """Return logits of outputs of `of_frames` and of the predictor, ``(..., joint_width)`` each."""
        return cast(Tensor, self.joiner(torch.tanh(frames + labels)))

    def _predicted(self, labels: Tensor) -> Tensor:
        """Return the predictor's output before each label and after the last: ``(B, U) -> (B, U + 1, ·)``."""
        labels = F.pad(labels, (1, 0), value=BLANK)
        if isinstance(self.memory, nn.LSTM):
            return cast(Tensor, self.dropout(self.memory(self.dropout(self.embedding(labels)))[0]))
        before = F.pad(labels, (1, 0), value=BLANK)[:, :-1]
        return cast(Tensor, self.dropout(self._of_pairs(torch.stack((before, labels), -1))))

    def _of_pairs(self, pairs: Tensor) -> Tensor:
        """Return the stateless predictor's output for the last two labels ``(..., 2)``."""
        return F.silu(self.memory(self.embedding(pairs).flatten(-2)))
