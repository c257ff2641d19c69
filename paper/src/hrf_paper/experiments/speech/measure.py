"""Word error rates with any attention: swapped into a trained model, fine-tuned after the swap, trained from scratch.

Every run trains a model with exact attention on single utterances, then on turns: utterances of changing speakers, each
through a microphone of its own, joined to the paper's length. The second model is the one that maps are swapped into.
Trainings from scratch with a map are on single utterances.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Generator

import hrf
from hrf.advice.errors import map_flops, summary_flops
from hrf_paper.experiments.experiment import Part
from hrf_paper.experiments.speech.settings import JOINED, LEVELS, SIGNED, SINGLE, Settings, key, set_names
from hrf_paper.speech.an4 import an4
from hrf_paper.speech.attention import Method
from hrf_paper.speech.beam import searched
from hrf_paper.speech.decoding import error_rates, recognised
from hrf_paper.speech.methods import METHODS, install
from hrf_paper.speech.microphones import through_microphones
from hrf_paper.speech.training import SpeechTrainer, SpeechTraining
from hrf_paper.speech.transducer import ConformerTransducer
from hrf_paper.speech.utterances import Speech, Utterance, joined, taking_turns

__all__ = ["parts"]

_SUBSAMPLING = 4
_FIXED = (*LEVELS, "summarised")  # have nothing to draw


def parts(settings: Settings) -> dict[str, Part]:
    """Return the parts: two trainings per run, swaps, fine-tuning, and trainings from scratch."""
    speech = an4()
    speech = replace(
        speech, train=speech.train[: settings.train_utterances], test=speech.test[: settings.test_utterances]
    )
    runs = _Runs(settings, speech)
    work: dict[str, Part] = {
        key(SINGLE, "exact", run): partial(runs.first, run) for run in range(settings.runs)
    }
    for run in range(settings.swapped_runs):
        work[key(JOINED, "exact", run)] = partial(runs.trained, runs.joined(run))
        work |= {key("swapped", name, run): partial(runs.swapped, name, run) for name in METHODS}
    for run in range(settings.tuned_runs):
        work |= {
            key("fine-tuned", name, run): partial(runs.trained, runs.tuned(name, run))
            for name in _named(settings.tuned)
        }
    for run in range(settings.scratch_runs):
        work |= {
            key("from scratch", name, run): partial(runs.trained, runs.scratch(name, run))
            for name in _named(settings.scratch)
        }
    return work


def _named(methods: tuple[str, ...] | None) -> tuple[str, ...]:
    return tuple(METHODS) if methods is None else methods


class _Runs:
    """All trainings, and what is measured after them."""

    def __init__(self, settings: Settings, speech: Speech) -> None:
        self.settings, self.speech = settings, speech
        lengths = [_SUBSAMPLING * length for length in settings.lengths]
        sets = [speech.test, *(joined(speech.test, frames) for frames in lengths)]
        sets.append(_turns(speech.test, lengths[0], settings))
        self._tests = dict(zip(set_names(settings), sets, strict=True))

    def single(self, run: int) -> SpeechTraining:
        """Return the training on single utterances."""
        return replace(self.settings.training, seed=self.settings.seed + run)

    def joined(self, run: int) -> SpeechTraining:
        """Return the training on turns after it."""
        s = self.settings
        return self._after(self.single(run), s.joined_epochs, s.joined_learning_rate)

    def tuned(self, method: str, run: int) -> SpeechTraining:
        """Return the fine-tuning after a swap."""
        s = self.settings
        training = replace(
            self._after(self.joined(run), s.tuned_epochs, s.tuned_learning_rate), method=method
        )
        return _with_length(training, s.key_length) if method in SIGNED else training

    def scratch(self, method: str, run: int) -> SpeechTraining:
        """Return a training from scratch, with the method from ``fit_step`` on."""
        s = self.settings
        training = replace(self.single(run), method=method, fit_step=s.fit_step, last_epoch=s.scratch_epochs)
        return _with_length(training, s.key_length)

    def _after(self, before: SpeechTraining, epochs: int, learning_rate: float) -> SpeechTraining:
        return replace(
            before,
            model=replace(before.model, position_range=max(self.settings.lengths)),
            epochs=epochs,
            learning_rate=learning_rate,
            warmup=20,
            frames=self.settings.joined_batch,
            microphones=self.settings.microphones,
            joined_frames=_SUBSAMPLING * self.settings.lengths[0],
            after=before,
        )

    def first(self, run: int) -> dict[str, Any]:
        """Train on single utterances; measure error rates, also with a beam search."""
        found = self.trained(self.single(run))
        model = SpeechTrainer(self.single(run), self.speech).trained()
        said = [utterance.text for utterance in self.speech.test]
        return found | {"searched": error_rates(said, searched(model, self.speech.test)).words}

    def trained(self, training: SpeechTraining) -> dict[str, Any]:
        """Train, and measure error rates with the method of the training."""
        trainer = SpeechTrainer(training, self.speech, print)
        model = trainer.trained()
        seconds = trainer.history[-1]["seconds"]
        curve = [epoch["wer"] for epoch in trainer.history if "wer" in epoch]
        return {
            "draws": [self._error_rates(model)],
            "curve": curve,
            "timings": {"training CPU seconds": seconds},
        }

    def swapped(self, name: str, run: int) -> dict[str, Any]:
        """Swap a method into the model of a run, without training, and measure error rates for each draw."""
        model = SpeechTrainer(self.joined(run), self.speech).trained()
        found = []
        for draw in range(1 if name in _FIXED else self.settings.draws):
            install(model, name, self.speech.train, seed=self.settings.draws * run + draw)
            found.append(self._error_rates(model))
        flops = [_flops(layer.method, model, self.settings.lengths[0]) for layer in model.attentions]
        return {"draws": found, "flops": sum(flops) / len(flops)}

    def _error_rates(self, model: ConformerTransducer) -> dict[str, dict[str, float]]:
        """Return word and character error rates by set."""
        found = {}
        for name, utterances in self._tests.items():
            said = [utterance.text for utterance in utterances]
            rates = error_rates(said, recognised(model, utterances))
            found[name] = {"wer": rates.words, "cer": rates.characters}
        return found


def _with_length(training: SpeechTraining, length: float) -> SpeechTraining:
    """Return the training with queries and keys of one length."""
    return replace(training, model=replace(training.model, key_length=length))


def _turns(utterances: list[Utterance], frames: int, settings: Settings) -> list[Utterance]:
    """Return turns, the same for all seeds."""
    generator = Generator().manual_seed(0)
    varied = through_microphones(utterances, settings.microphones, generator)
    return taking_turns(varied, frames, generator)


def _flops(method: Method, model: ConformerTransducer, length: int) -> float:
    """Count the FLOPs of attention per frame and head, for sequences of a length, projections aside."""
    dim = model.config.width // model.config.heads
    exact = 4.0 * length * dim
    if isinstance(method, str):
        return {"exact": exact, "uniform": 1.0 * dim, "none": 0.0}[method]
    if isinstance(method, hrf.FeatureMap):
        return map_flops(method, dim)
    if method.sizes(length, length) == (0, 0):
        return exact
    assert method.report is not None
    shares = [
        float(call.exact_share.mean()) for call in method.report.calls if bool((call.n_groups > 0).all())
    ]
    return summary_flops(length, dim, dim, statistics.fmean(shares))
