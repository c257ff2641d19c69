"""``hrf-speech``: train a recogniser, transcribe recordings with it, and draw its attention."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from hrf.report import folder, png, progress, write
from hrf_paper.requirements import run_command
from hrf_paper.speech.audio import RATE, duration, log_mel, read_audio
from hrf_paper.speech.conformer import CONFIGS
from hrf_paper.speech.corpora import an4, digit_strings, librispeech, spoken_digits
from hrf_paper.speech.decoding import BEAM, beam_search, error_rates, greedy, searched, transcribe_stream
from hrf_paper.speech.methods import METHODS, attention_figure
from hrf_paper.speech.training import SpeechTrainer, SpeechTraining, load_model
from hrf_paper.speech.transducer import ConformerTransducer
from hrf_paper.speech.utterances import Speech, Utterance, decoded

# Corpora by name, with the channels that they have or are asked for.
_CORPORA: dict[str, Callable[[int], Speech]] = {
    "an4": lambda channels: an4(),
    "digits": lambda channels: spoken_digits(channels=channels),
    "digit-strings": lambda channels: digit_strings(channels=channels),
    "librispeech": lambda channels: Speech(
        librispeech("train-clean-100", channels=channels), librispeech("test-clean", channels=channels)
    ),
}


_DRAWN = ("FAVOR+ 128", "HRF-C (3, 3) 64", "separable (16, 16)")
_EXAMPLES = """examples:
  hrf-speech train an4 --out an4.safetensors
  hrf-speech train digits --epochs 40 --out digits.safetensors
  hrf-speech train librispeech --config paper --attention "HRF-C (3, 3) 64" --fit-step 1000 --key-length 1 \\
    --out paper.safetensors
  hrf-speech transcribe seven.wav --checkpoint digits.safetensors --beam 4
  hrf-speech attention --checkpoint an4.safetensors --out attention.png"""


@torch.no_grad()
def transcribe(model: ConformerTransducer, path: Path, *, width: int = 1) -> tuple[str, float]:
    """Return what a model hears in a file, and the length of the recording in seconds.

    Args:
        model: a recogniser that was trained with log-mel energies.
        path: a file of audio, of any rate and number of channels.
        width: hypotheses of the beam search; 1 decodes greedily.
    """
    samples = read_audio(path)
    features = log_mel(samples, model.config.channels)
    if width == 1:
        labels: Sequence[int] = greedy(model, features[None], torch.tensor([len(features)]))[0]
    else:
        labels = beam_search(model, features, width=width)[0].labels
    return decoded(labels), len(samples) / RATE


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 2 if something is wrong with the arguments or files."""
    return run_command(_parser(), argv)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hrf-speech",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    train = commands.add_parser("train", help="train a recogniser and write its checkpoint")
    train.add_argument("corpus", choices=_CORPORA, help="utterances to train with, from $HRF_DATA")
    train.add_argument("--config", choices=CONFIGS, default="cpu", help="sizes of the model")
    train.add_argument("--attention", choices=METHODS, default="exact", help="method of attention")
    train.add_argument(
        "--fit-step",
        type=int,
        default=0,
        help="train with exact attention up to this step, then fit the method and use it; 0 by default",
    )
    train.add_argument(
        "--key-length",
        type=float,
        help="scale queries and keys to this length; by default they keep theirs",
    )
    train.add_argument("--epochs", type=int, default=SpeechTraining.epochs)
    train.add_argument("--seed", type=int, default=0)
    train.add_argument("--out", type=Path, required=True, help="the checkpoint, a .safetensors file")
    train.set_defaults(run=_train)
    write_down = commands.add_parser("transcribe", help="write down what is said in recordings")
    write_down.add_argument("files", type=Path, nargs="+", help="WAV, FLAC or OGG")
    write_down.add_argument("--checkpoint", type=Path, required=True, help="from hrf-speech train")
    write_down.add_argument("--beam", type=int, default=1, help="hypotheses of the search; 1 is greedy")
    write_down.add_argument(
        "--stream", action="store_true", help="write as it is heard, in constant memory; needs a causal model"
    )
    write_down.set_defaults(run=_transcribe)
    look = commands.add_parser(
        "attention", help="draw the attention of one head over a test utterance of AN4"
    )
    look.add_argument("--checkpoint", type=Path, required=True, help="from hrf-speech train an4")
    look.add_argument("--utterance", help="its name; a medium-sized one by default")
    look.add_argument("--methods", nargs="+", choices=METHODS, default=_DRAWN, help="beside exact attention")
    look.add_argument("--out", type=Path, required=True, help="a .png file")
    look.set_defaults(run=_draw_attention)
    return parser


def _train(arguments: argparse.Namespace) -> None:
    folder(arguments.out.parent)
    config = CONFIGS[arguments.config]
    speech = _CORPORA[arguments.corpus](config.channels)
    channels = speech.train[0].features.shape[1]
    training = SpeechTraining(
        replace(config, channels=channels, key_length=arguments.key_length),
        epochs=arguments.epochs,
        method=arguments.attention,
        fit_step=arguments.fit_step,
        seed=arguments.seed,
    )
    trainer = SpeechTrainer(training, speech, partial(print, flush=True))
    model = trainer.trained()
    write(arguments.out, trainer.path.read_bytes())
    found = error_rates([u.text for u in speech.test], searched(model, _counted(speech.test))).words
    last = trainer.history[-1]
    print(
        f"{arguments.out}: word error rate {found:.2f} % on the test utterances with a beam of {BEAM}, "
        f"{last['wer']:.2f} % decoded greedily, after {last['seconds'] / 60:.1f} CPU minutes"
    )


def _counted(utterances: Sequence[Utterance]) -> Iterator[Utterance]:
    """Show a bar that counts utterances as they are taken."""
    with progress("utterances") as advance:
        for done, utterance in enumerate(utterances):
            advance("beam search", done, len(utterances))
            yield utterance


def _transcribe(arguments: argparse.Namespace) -> None:
    model, front_end = load_model(arguments.checkpoint)
    expected, corpus = ("running log-mel", "digit-strings") if arguments.stream else ("log-mel", "digits")
    if front_end != expected:
        raise ValueError(
            f"{arguments.checkpoint} was trained with {front_end} features; expected a model that was trained with "
            f"{expected} energies, such as that of hrf-speech train {corpus}"
        )
    for path in arguments.files:
        start = time.perf_counter()
        if arguments.stream:
            seconds = _print_stream(model, path)
        else:
            text, seconds = transcribe(model, path, width=arguments.beam)
            print(f"{path}: {text}")
        factor = (time.perf_counter() - start) / seconds
        print(f"  {seconds:.1f} s of audio, real-time factor {factor:.3f}")


def _print_stream(model: ConformerTransducer, path: Path) -> float:
    """Print what is heard in a file as soon as it is heard; return the length of the recording in seconds."""
    pieces = transcribe_stream(model, path)
    first = next(pieces)
    print(f"{path}: {first}", end="", flush=True)
    for text in pieces:
        print(text, end="", flush=True)
    print()
    return duration(path)


def _draw_attention(arguments: argparse.Namespace) -> None:
    model, front_end = load_model(arguments.checkpoint)
    speech = an4()
    if front_end != speech.front_end:
        raise ValueError(
            f"{arguments.checkpoint} was trained with {front_end} features; expected a model of hrf-speech train an4"
        )
    by_name = {utterance.name: utterance for utterance in speech.test}
    name = (
        arguments.utterance
        or sorted(by_name, key=lambda name: len(by_name[name].features))[len(by_name) // 2]
    )
    if name not in by_name:
        raise ValueError(f"AN4 has no test utterance {name!r}; expected one such as {next(iter(by_name))!r}")
    drawing = attention_figure(model, by_name[name], arguments.methods, speech.train)
    folder(arguments.out.parent)
    write(arguments.out, png(drawing, dpi=110))
    print(arguments.out)
