"""The Conformer-Transducer: encoder, predictor and joiner (Graves, 2012; Gulati et al., 2020)."""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hrf_paper.speech.alphabet import BLANK
from hrf_paper.speech.attention import SelfAttention
from hrf_paper.speech.batches import SpeechBatch
from hrf_paper.speech.configs import ModelConfig
from hrf_paper.speech.conformer import Conformer, ConformerBlock
from hrf_paper.speech.dropout import ByteDropout
from hrf_paper.speech.joiner import join_lattice
from hrf_paper.speech.rnnt import rnnt_loss

__all__ = ["CTC_WEIGHT", "ConformerTransducer", "Losses", "PredictorState"]

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
