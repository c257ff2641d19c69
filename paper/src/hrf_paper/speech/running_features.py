"""Log-mel energies of a recording that is still going on: frame t depends on samples up to its own alone.

Channels are brought to mean 0 by the mean of all frames so far, m_t = Σ rˢ e_(t−s) / Σ rˢ with r = 1 − 1/300: frames
of three seconds count most. Both sums are first-order recursions, so that pieces of any length give the same features.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.signal import lfilter
from torch import Tensor

from hrf_paper.speech.audio import HOP, POINTS, mel_energies

__all__ = ["RunningFeatures", "running_log_mel"]

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
