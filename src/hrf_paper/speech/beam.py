"""Beam search over label sequences of a transducer, frame by frame, with their scores."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from hrf_paper.speech.alphabet import BLANK
from hrf_paper.speech.decoding import MOST_PER_FRAME
from hrf_paper.speech.transducer import ConformerTransducer, PredictorState

__all__ = ["Hypothesis", "beam_search"]


class Hypothesis(NamedTuple):
    """A sequence of labels.

    Attributes:
        labels: the labels.
        score: log-probability of the labels, summed over the alignments that the search has met.
    """

    labels: tuple[int, ...]
    score: float


@dataclass(frozen=True)
class _Entry:
    score: float
    of_labels: Tensor  # the predictor's output after the labels: (joint_width,)
    state: PredictorState


@torch.no_grad()
def beam_search(
    model: ConformerTransducer, features: Tensor, frames: int | None = None, *, width: int = 4
) -> list[Hypothesis]:
    """Return the ``width`` most probable label sequences of one utterance, best first.

    Args:
        model: the recogniser.
        features: ``(frames, channels)``.
        frames: frames that count; ``None`` is all.
        width: hypotheses that are kept after each frame.
    """
    if width < 1:
        raise ValueError(f"width is {width}; expected at least 1")
    count = len(features) if frames is None else frames
    encoded, _ = model.encode(features[None, :count], torch.tensor([count]))
    out, state = model.start(1)
    beam: dict[tuple[int, ...], _Entry] = {(): _Entry(0.0, out[0], state)}
    for frame in model.of_frames(encoded)[0]:
        beam = _after_frame(model, frame, beam, width)
    ranked = sorted(beam.items(), key=lambda item: -item[1].score)
    return [Hypothesis(labels, entry.score) for labels, entry in ranked]


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
