"""Recordings from files, their log-mel energies, and those of a recording that is still going on."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.signal import lfilter, resample_poly
from torch import Tensor

# Recordings from files, as one channel at 16 kHz, and their log-mel energies.

RATE = 16_000  # samples per second
HOP, POINTS = 160, 512  # samples between windows, 10 ms, and of the Fourier transform
_WINDOW = 400  # samples, 25 ms
_LOWEST, _HIGHEST = 20.0, 7_600.0  # Hz
_SILENCE = 1e-10  # energies below count as this one


def read_audio(source: Path | bytes) -> Tensor:
    """Return the samples of a file, or of its contents, ``(n,)``: channels averaged, resampled to `RATE`.

    Raises:
        ValueError: if it is no audio, or has no samples, or samples that are no numbers.
    """
    with _opened(source) as file:
        samples, rate = file.read(dtype="float32", always_2d=True), file.samplerate
    if not len(samples):
        raise ValueError(f"{_name(source)} has no samples; expected a recording")
    mono = _mono(samples, source)
    if rate != RATE:
        common = math.gcd(rate, RATE)
        mono = resample_poly(mono, RATE // common, rate // common)
    return torch.from_numpy(np.ascontiguousarray(mono, dtype=np.float32))


def read_blocks(path: Path, size: int) -> Iterator[Tensor]:
    """Yield the samples of a file in blocks ``(size,)``, channels averaged; the last block may be shorter.

    Raises:
        ValueError: as `read_audio`, and if the rate is not `RATE`.
    """
    with _opened(path) as file:
        if file.samplerate != RATE:
            raise ValueError(
                f"{path} has {file.samplerate} samples per second; expected {RATE} for streaming"
            )
        if not file.frames:
            raise ValueError(f"{path} has no samples; expected a recording")
        for samples in file.blocks(size, dtype="float32", always_2d=True):
            yield torch.from_numpy(_mono(samples, path))


def duration(path: Path) -> float:
    """Return the length of a recording in seconds."""
    with _opened(path) as file:
        return float(file.frames) / float(file.samplerate)


@contextmanager
def _opened(source: Path | bytes) -> Iterator[Any]:
    """Open a file of audio; errors say what was expected."""
    import soundfile  # type: ignore[import-untyped, unused-ignore]

    try:
        with soundfile.SoundFile(io.BytesIO(source) if isinstance(source, bytes) else source) as file:
            yield file
    except (soundfile.LibsndfileError, TypeError) as error:
        if isinstance(source, Path) and not source.is_file():
            raise FileNotFoundError(f"{source} is not there; expected a file of audio") from error
        raise ValueError(
            f"{_name(source)} cannot be read as audio: {error}; expected WAV, FLAC or OGG"
        ) from error


def _name(source: Path | bytes) -> str:
    return "the recording" if isinstance(source, bytes) else str(source)


def _mono(samples: Any, source: Path | bytes) -> Any:
    """Average the channels of samples ``(n, channels)``."""
    if not np.isfinite(samples).all():
        raise ValueError(f"{_name(source)} has samples that are not finite")
    return samples.mean(1)


def log_mel(samples: Tensor, channels: int = 80) -> Tensor:
    """Return the log-mel energies of samples ``(n,)`` at `RATE`: ``(1 + n // 160, channels)``, each channel of mean 0.

    All are divided by one deviation, so that they do not depend on the volume.
    """
    if samples.ndim != 1 or not len(samples):
        raise ValueError(f"samples have shape {tuple(samples.shape)}; expected (n,) with n at least 1")
    half = POINTS // 2
    energies = (
        mel_energies(torch.nn.functional.pad(samples, (half, half)), channels).clamp(min=_SILENCE).log()
    )
    energies = energies - energies.mean(0)
    return energies / energies.square().mean().sqrt().clamp(min=1e-5)


def mel_energies(samples: Tensor, channels: int) -> Tensor:
    """Return mel energies of all windows within samples ``(n,)``: ``(1 + (n - 512) // 160, channels)``."""
    window = torch.hann_window(_WINDOW, dtype=samples.dtype)
    spectrum = torch.stft(
        samples, POINTS, HOP, _WINDOW, window=window, center=False, return_complex=True
    ).abs()
    return spectrum.square().mT @ _filters(channels).to(samples.dtype)


@cache
def _filters(channels: int) -> Tensor:
    """Return triangular filters that are evenly spaced in mel: ``(POINTS / 2 + 1, channels)``."""
    low, high = (2595 * math.log10(1 + f / 700) for f in (_LOWEST, _HIGHEST))
    edges = 700 * (10 ** (torch.linspace(low, high, channels + 2, dtype=torch.float64) / 2595) - 1)
    frequencies = torch.linspace(0, RATE / 2, POINTS // 2 + 1, dtype=torch.float64)[:, None]
    rising = (frequencies - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - frequencies) / (edges[2:] - edges[1:-1])
    return torch.minimum(rising, falling).clamp(min=0)


# Log-mel energies of a recording that is still going on: frame t depends on samples up to its own alone.
#
# Channels are brought to mean 0 by the mean of all frames so far, m_t = Σ rˢ e_(t−s) / Σ rˢ with r = 1 − 1/300: frames
# of three seconds count most. Both sums are first-order recursions, so that pieces of any length give the same
# features.

_MEMORY = 300  # frames
_FLOOR = 1e-3  # energies below count as this one: that of noise 60 dB below speech
_SCALE = 3.0  # about the deviation of log energies


class RunningFeatures:
    """Turn samples into features as they arrive.

    Args:
        channels: channels of the features.
    """

    def __init__(self, channels: int) -> None:
        self.channels = channels
        self._waiting = torch.zeros(POINTS // 2)
        self._sums = np.zeros((1, channels + 1))  # recursions of the energies, and of ones

    def push(self, samples: Tensor) -> Tensor:
        """Take in samples ``(n,)`` at 16 kHz; return the frames that they complete, ``(·, channels)``."""
        waiting = torch.cat((self._waiting, samples))
        frames = max(0, (len(waiting) - POINTS) // HOP + 1)
        self._waiting = waiting[HOP * frames :]
        if not frames:
            return samples.new_zeros(0, self.channels)
        energies = mel_energies(waiting, self.channels).clamp(min=_FLOOR).log().double().numpy()
        ones = np.ones((frames, 1))
        rate = 1 - 1 / _MEMORY
        sums, self._sums = lfilter([1.0], [1.0, -rate], np.hstack((energies, ones)), axis=0, zi=self._sums)
        found = (energies - sums[:, :-1] / sums[:, -1:]) / _SCALE
        return torch.from_numpy(found).to(samples.dtype)

    def finish(self) -> Tensor:
        """Return the frames that end after the last sample."""
        return self.push(torch.zeros(POINTS // 2))


def running_log_mel(samples: Tensor, channels: int) -> Tensor:
    """Return the features of a whole recording ``(n,)``: ``(1 + n // 160, channels)``."""
    stream = RunningFeatures(channels)
    return torch.cat((stream.push(samples), stream.finish()))
