"""Recordings from files, as one channel at 16 kHz, and their log-mel energies."""

from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
import torch
from scipy.signal import resample_poly
from torch import Tensor

__all__ = ["RATE", "log_mel", "read_audio"]

RATE = 16_000  # samples per second
_WINDOW, _HOP, _POINTS = 400, 160, 512  # samples: 25 ms, 10 ms, and the Fourier transform
_LOWEST, _HIGHEST = 20.0, 7_600.0  # Hz
_SILENCE = 1e-10  # energies below count as this one


def read_audio(source: Path | bytes) -> Tensor:
    """Return the samples of a file, or of its contents, ``(n,)``: channels averaged, resampled to `RATE`.

    Raises:
        ValueError: if it is no audio, or has no samples, or samples that are no numbers.
    """
    import soundfile  # type: ignore[import-untyped, unused-ignore]

    name = "the recording" if isinstance(source, bytes) else str(source)
    try:
        samples, rate = soundfile.read(
            io.BytesIO(source) if isinstance(source, bytes) else source, dtype="float32", always_2d=True
        )
    except (soundfile.LibsndfileError, TypeError) as error:
        if isinstance(source, Path) and not source.is_file():
            raise FileNotFoundError(f"{source} is not there; expected a file of audio") from error
        raise ValueError(f"{name} cannot be read as audio: {error}; expected WAV, FLAC or OGG") from error
    if not len(samples):
        raise ValueError(f"{name} has no samples; expected a recording")
    if not np.isfinite(samples).all():
        raise ValueError(f"{name} has samples that are not finite")
    mono = samples.mean(1)
    if rate != RATE:
        common = math.gcd(rate, RATE)
        mono = resample_poly(mono, RATE // common, rate // common)
    return torch.from_numpy(np.ascontiguousarray(mono, dtype=np.float32))


def log_mel(samples: Tensor, channels: int = 80) -> Tensor:
    """Return the log-mel energies of samples ``(n,)`` at `RATE`: ``(1 + n // 160, channels)``, each channel of mean 0.

    All are divided by one deviation, so that they do not depend on the volume.
    """
    if samples.ndim != 1 or not len(samples):
        raise ValueError(f"samples have shape {tuple(samples.shape)}; expected (n,) with n at least 1")
    half = _POINTS // 2
    padded = torch.nn.functional.pad(samples, (half, half))
    window = torch.hann_window(_WINDOW, dtype=samples.dtype)
    spectrum = torch.stft(
        padded, _POINTS, _HOP, _WINDOW, window=window, center=False, return_complex=True
    ).abs()
    energies = (spectrum.square().mT @ _filters(channels).to(samples.dtype)).clamp(min=_SILENCE).log()
    energies = energies - energies.mean(0)
    return energies / energies.square().mean().sqrt().clamp(min=1e-5)


def _filters(channels: int) -> Tensor:
    """Return triangular filters that are evenly spaced in mel: ``(_POINTS / 2 + 1, channels)``."""
    low, high = (2595 * math.log10(1 + f / 700) for f in (_LOWEST, _HIGHEST))
    edges = 700 * (10 ** (torch.linspace(low, high, channels + 2, dtype=torch.float64) / 2595) - 1)
    frequencies = torch.linspace(0, RATE / 2, _POINTS // 2 + 1, dtype=torch.float64)[:, None]
    rising = (frequencies - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - frequencies) / (edges[2:] - edges[1:-1])
    return torch.minimum(rising, falling).clamp(min=0)
