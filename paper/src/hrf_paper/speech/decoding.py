"""Decoding: greedy with error rates, by beam search, and of a recording that is still going on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

import hrf
from hrf_paper.speech.audio import RATE, RunningFeatures, read_blocks
from hrf_paper.speech.conformer import STEM, ConformerBlock
from hrf_paper.speech.transducer import CTC_WEIGHT, ConformerTransducer, PredictorState
from hrf_paper.speech.utterances import BLANK, Utterance, batch_of, by_length, characters, decoded

# Greedy decoding of a batch, and error rates.

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


# Beam search over label sequences of a transducer, frame by frame; the CTC head has a say in their order.

BEAM = 8  # hypotheses


class Hypothesis(NamedTuple):
    """A sequence of labels.

    Attributes:
        labels: the labels.
        score: log-probability of the labels, summed over the alignments that the search has met.
        ctc: log-probability of the labels by the CTC head, summed over all alignments.
    """

    labels: tuple[int, ...]
    score: float
    ctc: float


@dataclass(frozen=True)
class _Entry:
    score: float
    of_labels: Tensor  # the predictor's output after the labels: (joint_width,)
    state: PredictorState


@torch.no_grad()
def beam_search(
    model: ConformerTransducer,
    features: Tensor,
    *,
    width: int = BEAM,
    ctc_weight: float = CTC_WEIGHT,
) -> list[Hypothesis]:
    """Return label sequences of one utterance, best first: the ``width`` that the transducer finds most probable.

    They are ranked by ``score + ctc_weight * ctc``, as they were trained (Watanabe et al., 2017, with another decoder).

    Args:
        model: the recogniser.
        features: ``(frames, channels)``.
        width: hypotheses that are kept after each frame.
        ctc_weight: weight of the CTC head; 0 asks the transducer alone.
    """
    if width < 1:
        raise ValueError(f"width is {width}; expected at least 1")
    encoded, _ = model.encode(features[None], torch.tensor([len(features)]))
    out, state = model.start(1)
    beam: dict[tuple[int, ...], _Entry] = {(): _Entry(0.0, out[0], state)}
    for frame in model.of_frames(encoded)[0]:
        beam = _after_frame(model, frame, beam, width)
    scores = _ctc_scores(model, encoded, list(beam))
    found = [Hypothesis(*item) for item in zip(beam, (e.score for e in beam.values()), scores, strict=True)]
    # Among sequences that are too long for CTC, and so have −∞, the transducer decides.
    return sorted(
        found, key=lambda h: (h.score + ctc_weight * h.ctc if ctc_weight else h.score, h.score), reverse=True
    )


def searched(model: ConformerTransducer, utterances: Iterable[Utterance], *, width: int = BEAM) -> list[str]:
    """Return the texts that a search finds in utterances; `recognised` is the same by greedy decoding."""
    model.eval()
    return [decoded(beam_search(model, u.features, width=width)[0].labels) for u in utterances]


def _ctc_scores(model: ConformerTransducer, encoded: Tensor, sequences: list[tuple[int, ...]]) -> list[float]:
    """Return the log-probability of each label sequence by the CTC head, −∞ if it does not fit the frames."""
    logs = model.ctc(encoded[0]).log_softmax(-1)[:, None].expand(-1, len(sequences), -1)
    losses = F.ctc_loss(
        logs,
        torch.tensor([label for labels in sequences for label in labels], dtype=torch.long),
        torch.full((len(sequences),), len(logs)),
        torch.tensor([len(labels) for labels in sequences]),
        blank=BLANK,
        reduction="none",
    )
    return (-losses).tolist()


def _after_frame(
    model: ConformerTransducer, frame: Tensor, beam: dict[tuple[int, ...], _Entry], width: int
) -> dict[tuple[int, ...], _Entry]:
    """Let hypotheses write up to a few labels each and then a blank; keep the best."""
    finished: dict[tuple[int, ...], _Entry] = {}
    for written in range(MOST_PER_FRAME + 1):
        names, entries = list(beam), list(beam.values())
        logs = model.join(frame, torch.stack([entry.of_labels for entry in entries])).log_softmax(-1)
        for name, entry, row in zip(names, entries, logs, strict=True):
            _add(finished, name, entry, entry.score + float(row[BLANK]))
        if written == MOST_PER_FRAME:
            break
        logs = logs + torch.tensor([entry.score for entry in entries])[:, None]
        logs[:, BLANK] = -math.inf
        best = logs.flatten().topk(min(width, logs.numel()))
        worst = sorted((entry.score for entry in finished.values()), reverse=True)[:width][-1]
        chosen = [(float(s), *divmod(int(i), logs.shape[1])) for s, i in zip(*best, strict=True)]
        # A longer hypothesis that is already less probable than all that are kept cannot come back.
        least = worst if len(finished) >= width else -math.inf
        chosen = [c for c in chosen if c[0] > least]
        if not chosen:
            break
        beam = _extended(model, names, entries, chosen)
    best_names = sorted(finished, key=lambda name: -finished[name].score)[:width]
    return {name: finished[name] for name in best_names}


def _extended(
    model: ConformerTransducer,
    names: list[tuple[int, ...]],
    entries: list[_Entry],
    chosen: list[tuple[float, int, int]],
) -> dict[tuple[int, ...], _Entry]:
    """Give each chosen hypothesis, (score, row, label), its predictor's output and state."""
    state = PredictorState(
        *(torch.cat([entries[row].state[part] for _, row, _ in chosen]) for part in (0, 1))
    )
    out, after = model.advance(torch.tensor([label for _, _, label in chosen]), state)
    return {
        (*names[row], label): _Entry(
            score, out[i], PredictorState(after.first[i : i + 1], after.second[i : i + 1])
        )
        for i, (score, row, label) in enumerate(chosen)
    }


def _add(finished: dict[tuple[int, ...], _Entry], name: tuple[int, ...], entry: _Entry, score: float) -> None:
    """Add an alignment's probability to that of its labels."""
    if name in finished:
        other = finished[name].score
        score = max(score, other) + math.log1p(math.exp(-abs(score - other)))
    finished[name] = replace(entry, score=score)


# Recognition of speech that is still going on: constant memory per recording, however long it is.
#
# Causal attention keeps the sums of `hrf.AttentionState`, causal convolutions keep the frames that they look back on,
# and the predictor keeps its state. Pieces of any length give what the whole recording gives, to rounding.


class EncoderStream:
    """The encoder, piece by piece.

    Args:
        model: a recogniser with a causal encoder without positions, whose attention is by feature maps.
    """

    def __init__(self, model: ConformerTransducer) -> None:
        config = model.config
        if not config.causal or config.positions != "none":
            raise ValueError(
                f"the model has causal={config.causal} and positions={config.positions!r}; expected a causal model "
                "without positions, such as that of the config 'stream'"
            )
        self._encoder = model.encoder
        self._states = [_state(attention.method) for attention in model.attentions]
        like = model.joiner.weight
        self._stems = [like.new_zeros(1, STEM - 1, n) for n in (config.channels, config.width)]
        self._contexts = [like.new_zeros(1, config.kernel - 1, config.width) for _ in self._states]

    @torch.no_grad()
    def push(self, features: Tensor) -> Tensor:
        """Take in features ``(n, channels)``; return the encoded frames that they complete, ``(·, width)``."""
        x = features[None]
        for i, convolution in enumerate(self._encoder.stem):
            window = torch.cat((self._stems[i], x), 1)
            count = max(0, (window.shape[1] - STEM) // 2 + 1)
            self._stems[i] = window[:, 2 * count :]
            if not count:
                return features.new_zeros(0, self._encoder.config.width)
            x = F.silu(convolution(window.mT).mT)
        x = self._encoder.inputs(x)
        for i, block in enumerate(self._encoder.blocks):
            x = self._through(i, cast(ConformerBlock, block), x)
        return x[0]

    def _through(self, i: int, block: ConformerBlock, x: Tensor) -> Tensor:
        """Apply a block to frames ``(1, L, width)``."""
        x = x + block.first(x) / 2
        x = x + block.attention.attend_next(x, self._states[i])
        gated = block.convolution.gated(x, torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device))
        window = torch.cat((self._contexts[i], gated), 1)
        self._contexts[i] = window[:, gated.shape[1] :]
        x = x + block.convolution.convolved(window)
        return cast(Tensor, block.norm(x + block.second(x) / 2))

    @property
    def size(self) -> int:
        """Numbers that are kept between pieces."""
        kept = [tensor for state in self._states for tensor in state.tensors().values()]
        return sum(tensor.numel() for tensor in (*kept, *self._stems, *self._contexts))


def transcribe_stream(model: ConformerTransducer, path: Path, seconds: float = 1.0) -> Iterator[str]:
    """Yield what is heard in each piece of a recording, character by character as it is written.

    Args:
        model: as for `EncoderStream`, trained with running features.
        path: a file of audio at 16 kHz.
        seconds: length of a piece.
    """
    features, encoder = RunningFeatures(model.config.channels), EncoderStream(model)
    decoder = GreedyDecoder(model, 1)

    def heard(frames: Tensor) -> str:
        encoded = encoder.push(frames)
        return characters(decoder.push(encoded[None], torch.tensor([len(encoded)]))[0])

    for samples in read_blocks(path, round(RATE * seconds)):
        yield heard(features.push(samples))
    yield heard(features.finish())


def _state(method: object) -> hrf.AttentionState:
    if not isinstance(method, hrf.FeatureMap):
        raise ValueError(
            f"attention is {method!r}, whose memory grows with every frame; expected feature maps: train with "
            "--attention 'FAVOR+ 128'"
        )
    return hrf.AttentionState(method, scale=1.0)
