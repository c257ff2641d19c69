"""Attention methods by name, fitted to a trained model, and a picture of where they listen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast, get_args

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Generator, Tensor

import hrf
from hrf import catalogue
from hrf_paper.experiments.plotting import GREY, bare, canvas, headline
from hrf_paper.speech.conformer import Method, Plain
from hrf_paper.speech.decoding import GreedyDecoder
from hrf_paper.speech.transducer import ConformerTransducer
from hrf_paper.speech.utterances import Utterance, batch_of, characters

# Ways to weigh values by name, built from the queries and keys of a trained model: rows of the paper's table and more.
#
# Names are those of `hrf.catalogue`: a number is m, the number of projections. The paper's rows "FAVOR+ 432" and "256",
# and likewise Trig, are read as numbers of features: 216 and 128 projections.

_VECTORS = 4_000  # queries and keys per head that maps are fitted to
_UTTERANCES = 60  # that they are taken from
_PLAIN: tuple[Plain, ...] = get_args(Plain)
_SUMMARISED = "summarised"
METHODS = (
    *_PLAIN,
    "HRF-C (3, 3) 64",
    "HRF-C (2, 3) 64",
    "HRF-C (3, 2) 64",
    "HRF-C (2, 2) 64",
    "HRF-A (16, 8)",
    "HRF-A (8, 8)",
    "FAVOR+ 216",
    "FAVOR+ 128",
    "Trig 216",
    "Trig 128",
    "HRF-C real (3, 3) 64",
    "FAVOR++ 256",
    "FAVOR# 256",
    "shifted (3, 3) 64",
    "separable (16, 16)",
    _SUMMARISED,
)


def build(name: str, queries: Tensor, keys: Tensor, generator: Generator) -> Method:
    """Return one of `METHODS`, drawn by the generator and fitted to queries and keys ``(H, N, d)``."""
    for plain in _PLAIN:
        if name == plain:
            return plain
    if name == _SUMMARISED:
        return hrf.SummarisedAttention(report=hrf.SummaryReport())
    heads, _, dim = queries.shape
    return catalogue.build(name, dim, queries=queries, keys=keys, heads=heads, generator=generator)


def install(model: ConformerTransducer, name: str, utterances: Sequence[Utterance], *, seed: int = 0) -> None:
    """Let all layers weigh values by a method; weights stay as they are.

    Args:
        model: a model, whose layers have any method so far.
        name: one of `METHODS`.
        utterances: where queries and keys come from, with exact attention.
        seed: of the choice of utterances and of the maps.
    """
    if name not in METHODS:
        raise ValueError(f"there is no method {name!r}; expected one of {', '.join(METHODS)}")
    for layer, (queries, keys) in enumerate(vectors(model, utterances, seed=seed)):
        generator = Generator().manual_seed(1_000 * seed + layer)
        model.attentions[layer].use(build(name, queries, keys, generator))


@torch.no_grad()
def vectors(
    model: ConformerTransducer, utterances: Sequence[Utterance], *, seed: int = 0
) -> list[tuple[Tensor, Tensor]]:
    """Return queries and keys ``(H, N, d)`` of each layer with exact attention, as maps see them, without padding."""
    generator = Generator().manual_seed(seed)
    chosen = torch.randperm(len(utterances), generator=generator)[:_UTTERANCES].tolist()
    batch = batch_of([utterances[i] for i in chosen])
    seen: list[tuple[Tensor, Tensor]] = []

    def keep(query: Tensor, key: Tensor, padding: Tensor) -> None:
        present = ~padding
        found = [x.transpose(1, 2)[present].transpose(0, 1) for x in (query, key)]  # (H, N, d)
        some = torch.randperm(found[0].shape[1], generator=generator)[:_VECTORS]
        seen.append(cast(tuple[Tensor, Tensor], tuple(x[:, some] for x in found)))

    training = model.training
    model.eval()
    for attention in model.attentions:
        attention.use("exact")
        attention.observer = keep
    model.encode(batch.features, batch.frames)
    for attention in model.attentions:
        attention.observer = None
    model.train(training)
    return seen


# Where a model listens: attention weights of one head over an utterance, exact beside estimated, below its sound.

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
        methods: some of `METHODS`, beside exact attention.
        fitted_to: utterances that the maps are fitted to.
    """
    fits = vectors(model, fitted_to)
    own = _in_order(model, utterance)
    layer, head = _sharpest(own)
    maps: dict[str, Method] = {"exact": "exact"}
    for name in methods:
        maps[name] = build(name, *fits[layer], Generator().manual_seed(0))
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
