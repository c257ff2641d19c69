"""Greedy decoding of a batch, and error rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hrf_paper.speech.alphabet import BLANK, decoded
from hrf_paper.speech.batches import batch_of, by_length
from hrf_paper.speech.transducer import ConformerTransducer, PredictorState
from hrf_paper.speech.utterances import Utterance

__all__ = ["MOST_PER_FRAME", "ErrorRates", "GreedyDecoder", "error_rates", "greedy", "recognised"]

MOST_PER_FRAME = 4  # labels that a frame may write, lest a bad model never stop


class ErrorRates(NamedTuple):
    """Errors over all utterances, in percent of the words or characters that were said."""

    words: float
    characters: float


def error_rates(said: Sequence[str], heard: Sequence[str]) -> ErrorRates:
    """Compare transcripts with what was recognised.

    >>> error_rates(["ONE TWO", "NINE"], ["ONE TOO", "NINE"]).words
    33.33333333333333
    """
    import jiwer  # type: ignore[import-untyped, unused-ignore]

    return ErrorRates(
        100 * float(jiwer.wer(list(said), list(heard))), 100 * float(jiwer.cer(list(said), list(heard)))
    )


class GreedyDecoder:
    """Greedy decoding that can go on with further frames.

    Args:
        model: the recogniser.
        size: number of utterances that are decoded side by side.
    """

    def __init__(self, model: ConformerTransducer, size: int) -> None:
        self._model = model
        self._of_labels, self._state = model.start(size)

    @torch.no_grad()
    def push(self, encoded: Tensor, lengths: Tensor) -> list[list[int]]:
        """Return the labels that the next frames ``(B, L, width)`` write, the first ``lengths`` ``(B,)`` of them."""
        of_frames = self._model.of_frames(encoded)
        written: list[list[int]] = [[] for _ in lengths]
        for t in range(of_frames.shape[1]):
            rows = (lengths > t).nonzero()[:, 0]
            for _ in range(MOST_PER_FRAME):
                best = self._model.join(of_frames[rows, t], self._of_labels[rows]).argmax(-1)
                rows, best = rows[best != BLANK], best[best != BLANK]
                if not len(rows):
                    break
                for row, label in zip(rows.tolist(), best.tolist(), strict=True):
                    written[row].append(label)
                self._advance(rows, best)
        return written

    def _advance(self, rows: Tensor, labels: Tensor) -> None:
        """Let the predictor of some utterances take in a label each."""
        out, new = self._model.advance(labels, PredictorState(*(part[rows] for part in self._state)))
        self._of_labels = self._of_labels.index_copy(0, rows, out)
        self._state = PredictorState(
            *(old.index_copy(0, rows, n) for old, n in zip(self._state, new, strict=True))
        )


@torch.no_grad()
def greedy(model: ConformerTransducer, features: Tensor, frames: Tensor) -> list[list[int]]:
    """Return the labels of each utterance, the most probable choice at every step."""
    return GreedyDecoder(model, len(features)).push(*model.encode(features, frames))


def recognised(
    model: ConformerTransducer, utterances: Sequence[Utterance], frames: int = 12_000
) -> list[str]:
    """Return the texts that the model hears in utterances, decoded greedily in batches of so many frames."""
    model.eval()
    texts = [""] * len(utterances)
    for group in by_length([len(utterance.features) for utterance in utterances], frames):
        batch = batch_of([utterances[i] for i in group])
        for i, labels in zip(group, greedy(model, batch.features, batch.frames), strict=True):
            texts[i] = decoded(labels)
    return texts
