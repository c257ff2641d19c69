"""Beam search over label sequences of a transducer, frame by frame; the CTC head has a say in their order."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from hrf_paper.speech.alphabet import BLANK, decoded
from hrf_paper.speech.decoding import MOST_PER_FRAME
from hrf_paper.speech.transducer import CTC_WEIGHT, ConformerTransducer, PredictorState
from hrf_paper.speech.utterances import Utterance

__all__ = ["BEAM", "Hypothesis", "beam_search", "searched"]

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
    frames: int | None = None,
    *,
    width: int = BEAM,
    ctc_weight: float = CTC_WEIGHT,
) -> list[Hypothesis]:
    """Return label sequences of one utterance, best first: the ``width`` that the transducer finds most probable.

    They are ranked by ``score + ctc_weight * ctc``, as they were trained (Watanabe et al., 2017, with another decoder).

    Args:
        model: the recogniser.
        features: ``(frames, channels)``.
        frames: frames that count; ``None`` is all.
        width: hypotheses that are kept after each frame.
        ctc_weight: weight of the CTC head; 0 asks the transducer alone.
    """
    if width < 1:
        raise ValueError(f"width is {width}; expected at least 1")
    count = len(features) if frames is None else frames
    encoded, _ = model.encode(features[None, :count], torch.tensor([count]))
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
