"""Settings of the speech experiment; names of its stages, its sets of test utterances and its parts."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args

from torch import Generator

import hrf
from hrf.advice.errors import map_flops, summary_flops
from hrf_paper.experiments.experiment import Part, Results, Runs
from hrf_paper.speech.conformer import Method, ModelConfig, Plain
from hrf_paper.speech.corpora import an4
from hrf_paper.speech.decoding import error_rates, recognised, searched
from hrf_paper.speech.methods import METHODS, install
from hrf_paper.speech.training import SpeechTrainer, SpeechTraining
from hrf_paper.speech.transducer import ConformerTransducer
from hrf_paper.speech.utterances import Speech, Utterance, joined, taking_turns, through_microphones

SINGLE, JOINED = "trained on single utterances", "trained on turns"
LEVELS: tuple[str, ...] = get_args(Plain)  # exact, uniform and no attention, between which maps are expected
STAGES = ("swapped", "fine-tuned", "from scratch")
SINGLE_SET = "single"  # test utterances that are not joined
# Methods whose estimates have both signs: they are fine-tuned with queries and keys of `Settings.key_length`. Estimates
# of HRF-C with real matrices, "HRF-C real (3, 3) 64", are positive.
SIGNED = tuple(name for name in METHODS if name.startswith(("HRF-C (", "HRF-A", "Trig")))


@dataclass(frozen=True)
class SpeechSettings:
    """Trainings, and what is measured after each.

    Attributes:
        training: of the model with exact attention on single utterances.
        joined_epochs: epochs on turns after ``training``.
        joined_learning_rate: their largest learning rate.
        joined_batch: their frames per batch.
        microphones: deviation of the response of microphones in turns.
        lengths: frames after subsampling to which test utterances are joined; the first is that of turns, too.
        runs: models with exact attention, each with its own seed.
        swapped_runs: the number of runs whose models are trained on turns, and into which all methods are swapped.
        draws: draws of every random map that is swapped in.
        tuned: methods with which the model of each run is fine-tuned on turns after the swap; ``None`` is all.
        tuned_runs: the number of runs in which it is.
        tuned_epochs: epochs of fine-tuning.
        tuned_learning_rate: their largest learning rate.
        scratch: methods with which a model is trained from scratch; ``None`` is all.
        scratch_runs: the number of runs in which it is.
        scratch_epochs: the epoch after which such a training stops; ``None`` is the last.
        fit_step: the step of such a training before which maps are fitted and take over.
        key_length: length of queries and keys in such a training, the same for all methods, and in fine-tuning with
            `SIGNED` methods. One is the paper's in its experiments with robots.
        train_utterances: number of training utterances; ``None`` is all.
        test_utterances: number of test utterances; ``None`` is all.
        seed: of the first run; the other runs follow.
    """

    training: SpeechTraining
    joined_epochs: int = 6
    joined_learning_rate: float = 1e-3
    joined_batch: int = 5_000
    microphones: float = 0.7
    lengths: tuple[int, ...] = (500, 2_000)
    runs: int = 3
    swapped_runs: int = 3
    draws: int = 3
    tuned: tuple[str, ...] | None = None
    tuned_runs: int = 3
    tuned_epochs: int = 2
    tuned_learning_rate: float = 3e-4
    scratch: tuple[str, ...] | None = None
    scratch_runs: int = 3
    scratch_epochs: int | None = None
    fit_step: int = 1_000
    key_length: float = 1.0
    train_utterances: int | None = None
    test_utterances: int | None = None
    seed: int = 0


def set_names(settings: SpeechSettings) -> tuple[str, ...]:
    """Return the names of the sets of test utterances: single ones, joined ones of a speaker, and turns."""
    return (SINGLE_SET, *map(_joined_set, settings.lengths), turns_set(settings))


def judged(settings: SpeechSettings) -> list[tuple[str, str]]:
    """Return the stages, and the sets of test utterances by which each is judged.

    That is turns, and for models from scratch, which have heard no microphones, single and joined utterances.
    """
    turns, joined = turns_set(settings), _joined_set(settings.lengths[0])
    sets = {"swapped": [turns], "fine-tuned": [turns], "from scratch": [SINGLE_SET, joined]}
    return [(stage, tested) for stage in STAGES for tested in sets[stage]]


def _joined_set(length: int) -> str:
    return f"joined, {length:,}"


def turns_set(settings: SpeechSettings) -> str:
    """Return the name of the set of turns."""
    return f"turns, {settings.lengths[0]:,}"


def key(stage: str, method: str, run: int) -> str:
    """Return the name of a part."""
    return f"{stage}, {method}, run {run}"


# All stages for all methods. The model has the size for a CPU: AN4 is too small for the paper's.
FULL = SpeechSettings(SpeechTraining(), tuned_epochs=5)
# All stages for all methods, too: one draw per model, an epoch of fine-tuning, and 12 of 44 epochs from scratch.
SCALED = replace(FULL, lengths=(500,), draws=1, tuned_epochs=1, scratch_epochs=12)
_TINY = ModelConfig(width=32, layers=1, heads=2, expansion=2, kernel=7, predictor_width=16, joint_width=32)
QUICK = SpeechSettings(
    SpeechTraining(_TINY, epochs=1, warmup=5, frames=1_000),
    joined_epochs=1,
    lengths=(100, 300),
    runs=1,
    swapped_runs=1,
    draws=2,
    tuned=("exact", "HRF-A (8, 8)", "FAVOR+ 128", "Trig 128"),
    tuned_runs=1,
    tuned_epochs=1,
    scratch=("FAVOR+ 128",),
    scratch_runs=1,
    fit_step=1,
    train_utterances=40,
    test_utterances=8,
)


# The paper's table of word error rates: percent and deviation over 10 runs, LibriSpeech, 17 layers.


# In the order of the paper, best first; its FAVOR+ and Trig have 432 and 256 features: 216 and 128 projections.
PRINTED = {
    "HRF-C (3, 3) 64": (1.72, 0.02),
    "HRF-C (2, 3) 64": (1.75, 0.03),
    "HRF-C (3, 2) 64": (1.83, 0.03),
    "HRF-C (2, 2) 64": (1.85, 0.04),
    "HRF-A (16, 8)": (2.03, 0.08),
    "HRF-A (8, 8)": (2.05, 0.05),
    "FAVOR+ 216": (2.65, 0.06),
    "FAVOR+ 128": (2.77, 0.04),
    "Trig 216": (3.12, 0.05),
    "Trig 128": (3.3, 0.06),
}

# The section on speech speaks of general complex estimators, and rows of the table have complex matrices here. The
# appendix on clusters says of "our experiments" that matrices were real and diagonal: a row with those is judged, too.
_REAL = {"HRF-C real (3, 3) 64": "HRF-C (3, 3) 64"}

# Methods by kind, from the lowest printed error rate to the highest.
GROUPS = {
    kind: tuple(name for name in PRINTED if name.startswith(kind))
    for kind in ("HRF-C", "HRF-A", "FAVOR+", "Trig")
} | {"HRF-C real": tuple(_REAL)}

# Kinds of which the first has lower error rates.
ORDER = (("HRF-C", "HRF-A"), ("HRF-C real", "HRF-A"), ("HRF-A", "FAVOR+"), ("FAVOR+", "Trig"))


def printed_rate(method: str) -> float:
    """Return the paper's word error rate of a method, in percent."""
    return PRINTED[_REAL.get(method, method)][0]


def printed_text(method: str) -> str:
    """Return the entry of a method in the paper's table; no text if it has none."""
    return "{} ± {}".format(*PRINTED[method]) if method in PRINTED else ""


# Word error rates with any attention: swapped into a trained model, fine-tuned after the swap, trained from scratch.
#
# Every run trains a model with exact attention on single utterances, then on turns: utterances of changing speakers,
# each through a microphone of its own, joined to the paper's length. The second model is the one that maps are swapped
# into. Trainings from scratch with a map are on single utterances.

_SUBSAMPLING = 4
_FIXED = (*LEVELS, "summarised")  # have nothing to draw


def parts(settings: SpeechSettings) -> dict[str, Part]:
    """Return the parts: two trainings per run, swaps, fine-tuning, and trainings from scratch."""
    speech = an4()
    speech = replace(
        speech, train=speech.train[: settings.train_utterances], test=speech.test[: settings.test_utterances]
    )
    runs = _SpeechRuns(settings, speech)
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


class _SpeechRuns:
    """All trainings, and what is measured after them."""

    def __init__(self, settings: SpeechSettings, speech: Speech) -> None:
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


def _turns(utterances: list[Utterance], frames: int, settings: SpeechSettings) -> list[Utterance]:
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


# Word error rates out of the parts: means and intervals of a method at a stage and on a set.


def rate(results: Results, stage: str, method: str, tested: str) -> Runs | None:
    """Return the word error rate of a method at a stage, on a set of test utterances; ``None`` if it was not run."""
    values: list[float] = []
    run = 0
    while (name := key(stage, method, run)) in results:
        values += [draw[tested]["wer"] for draw in results[name]["draws"]]
        run += 1
    return Runs(values, 1) if values else None


def methods_run(results: Results, stage: str, methods: Iterable[str]) -> list[str]:
    """Return the methods that were run at a stage."""
    assert stage in STAGES
    return [name for name in methods if key(stage, name, 0) in results]
