"""Sizes of the model: for a CPU, for streams, in between, and the paper's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hrf_paper.speech.alphabet import CHARACTERS

__all__ = ["CONFIGS", "ModelConfig"]


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a Conformer-Transducer.

    Attributes:
        channels: channels of the features.
        width: width of an encoded frame.
        layers: number of conformer blocks.
        heads: heads of attention per block.
        expansion: width of the feed-forward modules over ``width``.
        kernel: frames that the convolution module sees, an odd number.
        predictor: ``"lstm"``, or ``"stateless"``: the last two labels.
        predictor_width: width of the predictor.
        joint_width: width of the joiner.
        vocabulary: number of labels, the blank among them.
        dropout: probability to drop in the encoder.
        predictor_dropout: probability to drop in the predictor.
        positions: ``"sinusoidal"``, ``"rotary"`` or ``"none"``.
        position_range: while training, the first frame of a batch has a random position below this number, so that the
            positions of long utterances become known; 0 is never.
        key_length: length to which queries and keys are brought; ``None`` leaves them as they are.
        causal: whether a frame sees itself and frames before it only, for streaming.
    """

    channels: int = 26
    width: int = 96
    layers: int = 4
    heads: int = 4
    expansion: int = 4
    kernel: int = 15
    predictor: Literal["lstm", "stateless"] = "lstm"
    predictor_width: int = 96
    joint_width: int = 128
    vocabulary: int = len(CHARACTERS) + 1
    dropout: float = 0.1
    predictor_dropout: float = 0.3
    positions: Literal["sinusoidal", "rotary", "none"] = "sinusoidal"
    position_range: int = 0
    key_length: float | None = None
    causal: bool = False

    def __post_init__(self) -> None:
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel is {self.kernel}; expected an odd number")
        if self.key_length is not None and self.key_length <= 0:
            raise ValueError(f"key_length is {self.key_length}; expected a positive number or None")


CONFIGS = {
    "cpu": ModelConfig(),
    # Sees no later frame, and knows no positions, so that recordings of any length can be streamed.
    "stream": ModelConfig(channels=40, width=64, layers=3, positions="none", causal=True),
    "small": ModelConfig(
        channels=80, width=256, layers=8, heads=4, kernel=31, predictor_width=256, joint_width=256
    ),
    # 17 blocks, 8 heads, width 512 and so 64 per head (paper, appendix on speech); the kernel is that of the
    # Conformer's authors.
    "paper": ModelConfig(
        channels=80, width=512, layers=17, heads=8, kernel=31, predictor_width=640, joint_width=640
    ),
}
