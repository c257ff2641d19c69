"""Where a model listens: attention weights of one head over an utterance, exact beside estimated, below its sound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Generator, Tensor

import hrf
from hrf_paper.experiments.plotting import GREY, bare, canvas, headline
from hrf_paper.speech.alphabet import characters
from hrf_paper.speech.attention import Method
from hrf_paper.speech.decoding import GreedyDecoder
from hrf_paper.speech.methods import METHODS, vectors
from hrf_paper.speech.transducer import ConformerTransducer
from hrf_paper.speech.utterances import Utterance

__all__ = ["Word", "attention_figure", "heard_words", "weights"]

_SECONDS = 0.04  # per encoded frame
_COLOURS = "magma_r"


class Word(NamedTuple):
    """A word that was heard, and the encoded frame that wrote its first character."""

    text: str
    frame: int


def weights(query: Tensor, key: Tensor, method: Method) -> Tensor:
    """Return the weights of a method ``(H, L, L)`` for queries and keys ``(H, L, d)`` as maps see them."""
    if method == "exact":
        return (query @ key.mT).softmax(-1)
    assert isinstance(method, hrf.FeatureMap | hrf.SummarisedAttention)
    # Attention to the unit vectors is the matrix of weights itself.
    units = torch.eye(key.shape[-2]).expand(len(key), -1, -1)
    return hrf.attention(query[None], key[None], units[None], method, scale=1.0)[0]


@torch.no_grad()
def heard_words(model: ConformerTransducer, utterance: Utterance) -> list[Word]:
    """Decode greedily, and return the words with their frames."""
    encoded, _ = model.encode(utterance.features[None], torch.tensor([len(utterance.features)]))
    decoder, one = GreedyDecoder(model, 1), torch.ones(1, dtype=torch.long)
    found: list[Word] = []
    starts = True
    for t in range(encoded.shape[1]):
        for character in characters(decoder.push(encoded[:, t : t + 1], one)[0]):
            if character == " ":
                starts = True
            elif starts:
                found.append(Word(character, t))
                starts = False
            else:
                found[-1] = Word(found[-1].text + character, found[-1].frame)
    return found


@torch.no_grad()
def attention_figure(
    model: ConformerTransducer, utterance: Utterance, methods: Sequence[str], fitted_to: Sequence[Utterance]
) -> Figure:
    """Draw energies, and below them the weights of the head that listens most sharply, a panel per method.

    Args:
        model: a trained model; all its layers get exact attention.
        utterance: what it listens to.
        methods: keys of `METHODS`, beside exact attention.
        fitted_to: utterances that the maps are fitted to.
    """
    fits = vectors(model, fitted_to)
    own = _in_order(model, utterance)
    layer, head = _sharpest(own)
    maps: dict[str, Method] = {"exact": "exact"}
    for name in methods:
        maps[name] = METHODS[name](*fits[layer], Generator().manual_seed(0))
    drawing = canvas(4.3 * len(maps), 7.2)
    panels = drawing.subplots(2, len(maps), sharex=True, squeeze=False, height_ratios=(1, 2.6))
    exact = weights(*own[layer], "exact")[head]
    errors = {}
    words = heard_words(model, utterance)
    for name, (above, below) in zip(maps, panels.T, strict=True):
        found = weights(*own[layer], maps[name])[head]
        errors[name] = float((found - exact).norm() / exact.norm())
        _draw_sound(above, utterance, words)
        _draw_weights(below, found, float(exact.quantile(0.995)))
        below.set_title(name if name == "exact" else f"{name}: relative error {errors[name]:.2f}", size=11)
    panels[1, 0].set_ylabel("second of the query")
    best = min((name for name in errors if name != "exact"), key=errors.__getitem__)
    headline(
        drawing,
        f"{best} comes closest to the exact weights of this head",
        f"{utterance.name}, “{utterance.text}”; block {layer + 1}, head {head + 1}, the one with the least entropy\n"
        "above: log-mel energies, and words where they are written; below: weights, one colour scale",
    )
    bare(panels.flat, grid=False)
    return drawing


def _in_order(model: ConformerTransducer, utterance: Utterance) -> list[tuple[Tensor, Tensor]]:
    """Return queries and keys ``(H, L, d)`` of each layer with exact attention, frame by frame."""
    seen: list[tuple[Tensor, Tensor]] = []
    for attention in model.attentions:
        attention.use("exact")
        attention.observer = lambda query, key, padding: seen.append((query[0], key[0]))
    model.encode(utterance.features[None], torch.tensor([len(utterance.features)]))
    for attention in model.attentions:
        attention.observer = None
    return seen


def _sharpest(own: Sequence[tuple[Tensor, Tensor]]) -> tuple[int, int]:
    """Return layer and head whose exact weights have the least mean entropy."""
    entropies = torch.stack([torch.special.entr(weights(*pair, "exact")).sum(-1).mean(-1) for pair in own])
    layer, head = divmod(int(entropies.argmin()), entropies.shape[1])
    return layer, head


def _draw_sound(axes: Axes, utterance: Utterance, words: Sequence[Word]) -> None:
    frames, channels = utterance.features.shape
    axes.imshow(
        utterance.features.mT.numpy(),
        origin="lower",
        aspect="auto",
        cmap="Greys",
        extent=(0, frames / 100, 0, channels),
    )
    for i, word in enumerate(words):
        # Two heights by turns, so that neighbours do not touch.
        place = channels * (1.04 if i % 2 else 1.16)
        axes.text(_SECONDS * word.frame, place, word.text, size=8, color=GREY)
    axes.set_yticks([])


def _draw_weights(axes: Axes, found: Tensor, largest: float) -> None:
    end = _SECONDS * len(found)
    axes.imshow(
        found.numpy(),
        aspect="auto",
        cmap=_COLOURS,
        vmin=0,
        vmax=largest,
        extent=(0, end, end, 0),
        interpolation="nearest",
    )
    axes.set_xlabel("second of the key")
