"""An hour of speech as a stream: ``python -m benchmarks.speech_stream --checkpoint stream.safetensors``.

Test recordings of digits, whose speaker changes from digit to digit, are joined to a WAV file of about an hour and
transcribed in pieces of a second. Per ten minutes: word error rate, CPU seconds per second of audio, and the largest
memory of the process.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import soundfile
import torch
from rich.console import Console
from torch import Generator

from benchmarks.speech_tables import stream_rows
from hrf.report import folder, table, write
from hrf_paper.speech import ConformerTransducer, error_rates, load_model
from hrf_paper.speech.audio import RATE
from hrf_paper.speech.corpora import recordings, spoken
from hrf_paper.speech.decoding import transcribe_stream

DIGITS_PER_PART = 1_000  # with pauses, about ten minutes


def made(path: Path, parts: int) -> list[tuple[float, str]]:
    """Write a recording of so many parts; return the length in seconds and the text of each."""
    generator = Generator().manual_seed(0)
    digits = [digit for digit in recordings() if digit.test]
    found = []
    with soundfile.SoundFile(path, "w", RATE, 1) as file:
        for _ in range(parts):
            chosen = [digits[i] for i in torch.randint(len(digits), (DIGITS_PER_PART,), generator=generator)]
            samples = spoken(chosen, generator).numpy()
            file.write(np.asarray(samples))
            found.append((len(samples) / RATE, " ".join(digit.text for digit in chosen)))
    return found


def measured(
    model: ConformerTransducer, path: Path, parts: Sequence[tuple[float, str]]
) -> list[dict[str, Any]]:
    """Transcribe a recording; return the numbers of each part."""
    pieces = transcribe_stream(model, path)
    found, heard_seconds, end = [], 0, 0.0
    for seconds, said in parts:
        end += seconds
        start = time.process_time()
        text = ""
        # A part ends within a piece: its last word may be heard in the next part.
        while heard_seconds < round(end):
            text += next(pieces)
            heard_seconds += 1
        found.append(
            {
                "seconds": seconds,
                "real-time factor": (time.process_time() - start) / seconds,
                "wer": error_rates([said], [" ".join(text.split())]).words,
                "peak megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
        )
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speech_stream", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True, help="from hrf-speech train digit-strings")
    parser.add_argument("--parts", type=int, default=6, help="parts of about ten minutes")
    parser.add_argument("--out", type=Path, default=Path("results"), help="directory for speech_stream.json")
    args = parser.parse_args(argv)
    model, _ = load_model(args.checkpoint)
    with TemporaryDirectory() as place:
        path = Path(place) / "hour.wav"
        parts = made(path, args.parts)
        found = {"parts": measured(model, path, parts)}
    write(folder(args.out) / "speech_stream.json", (json.dumps(found, indent=1) + "\n").encode())
    headings, *rows = stream_rows(found)
    Console().print(table(headings, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
