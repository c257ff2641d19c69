"""Recognition of speech that is still going on: constant memory per recording, however long it is.

Causal attention keeps the sums of `hrf.AttentionState`, causal convolutions keep the frames that they look back on, and
the predictor keeps its state. Pieces of any length give what the whole recording gives, to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

import hrf
from hrf_paper.speech.alphabet import characters
from hrf_paper.speech.audio import RATE, read_blocks
from hrf_paper.speech.conformer import STEM, ConformerBlock
from hrf_paper.speech.decoding import GreedyDecoder
from hrf_paper.speech.running_features import RunningFeatures
from hrf_paper.speech.transducer import ConformerTransducer

__all__ = ["EncoderStream", "transcribe_stream"]


class EncoderStream:
    """The encoder, piece by piece.

    Args:
        model: a recogniser with a causal encoder without positions, whose attention is by feature maps.
    """

    def __init__(self, model: ConformerTransducer) -> None:
        config = model.config
        if not config.causal or config.positions != "none":
            raise ValueError(
                f"the model has causal={config.causal} and positions={config.positions!r}; expected a causal model "
                "without positions, such as that of the config 'stream'"
            )
        self._encoder = model.encoder
        self._states = [_state(attention.method) for attention in model.attentions]
        like = model.joiner.weight
        self._stems = [like.new_zeros(1, STEM - 1, n) for n in (config.channels, config.width)]
        self._contexts = [like.new_zeros(1, config.kernel - 1, config.width) for _ in self._states]

    @torch.no_grad()
    def push(self, features: Tensor) -> Tensor:
        """Take in features ``(n, channels)``; return the encoded frames that they complete, ``(·, width)``."""
        x = features[None]
        for i, convolution in enumerate(self._encoder.stem):
            window = torch.cat((self._stems[i], x), 1)
            count = max(0, (window.shape[1] - STEM) // 2 + 1)
            self._stems[i] = window[:, 2 * count :]
            if not count:
                return features.new_zeros(0, self._encoder.config.width)
            x = F.silu(convolution(window.mT).mT)
        x = self._encoder.inputs(x)
        for i, block in enumerate(self._encoder.blocks):
            x = self._through(i, cast(ConformerBlock, block), x)
        return x[0]

    def _through(self, i: int, block: ConformerBlock, x: Tensor) -> Tensor:
        """Apply a block to frames ``(1, L, width)``."""
        x = x + block.first(x) / 2
        x = x + block.attention.attend_next(x, self._states[i])
        gated = block.convolution.gated(x, torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device))
        window = torch.cat((self._contexts[i], gated), 1)
        self._contexts[i] = window[:, gated.shape[1] :]
        x = x + block.convolution.convolved(window)
        return cast(Tensor, block.norm(x + block.second(x) / 2))

    @property
    def size(self) -> int:
        """Numbers that are kept between pieces."""
        kept = [tensor for state in self._states for tensor in state.tensors().values()]
        return sum(tensor.numel() for tensor in (*kept, *self._stems, *self._contexts))


def transcribe_stream(model: ConformerTransducer, path: Path, seconds: float = 1.0) -> Iterator[str]:
    """Yield what is heard in each piece of a recording, character by character as it is written.

    Args:
        model: as for `EncoderStream`, trained with running features.
        path: a file of audio at 16 kHz.
        seconds: length of a piece.
    """
    features, encoder = RunningFeatures(model.config.channels), EncoderStream(model)
    decoder = GreedyDecoder(model, 1)

    def heard(frames: Tensor) -> str:
        encoded = encoder.push(frames)
        return characters(decoder.push(encoded[None], torch.tensor([len(encoded)]))[0])

    for samples in read_blocks(path, round(RATE * seconds)):
        yield heard(features.push(samples))
    yield heard(features.finish())


def _state(method: object) -> hrf.AttentionState:
    if not isinstance(method, hrf.FeatureMap):
        raise ValueError(
            f"attention is {method!r}, whose memory grows with every frame; expected feature maps: train with "
            "--attention 'FAVOR+ 256'"
        )
    return hrf.AttentionState(method, scale=1.0)
