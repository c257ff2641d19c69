"""Animated GIFs of frames, written without a display."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hrf.report import write
from hrf_paper.requirements import require

__all__ = ["write_gif"]


def write_gif(
    path: Path, frames: Sequence[NDArray[np.uint8]], *, frames_per_second: float = 10, colours: int = 64
) -> None:
    """Write frames as a GIF that repeats for ever; all frames share one palette, which keeps the file small.

    Args:
        path: the file, replaced if it is there.
        frames: images ``(height, width, 3)``, all of one shape.
        frames_per_second: up to 50; the format counts in hundredths of a second.
        colours: size of the palette, up to 256.
    """
    require("a GIF", ("PIL",))
    from PIL import Image

    if not frames:
        raise ValueError("there are no frames; expected at least one")
    if shapes := {frame.shape for frame in frames if frame.shape != frames[0].shape}:
        raise ValueError(
            f"frames have shapes {frames[0].shape} and {shapes.pop()}; expected one shape for all"
        )
    # The palette comes from a few frames beside each other.
    sample = np.concatenate(frames[:: max(1, len(frames) // 8)], axis=1)
    palette = Image.fromarray(sample).quantize(colours, dither=Image.Dither.NONE)
    images = [Image.fromarray(f).quantize(palette=palette, dither=Image.Dither.NONE) for f in frames]
    buffer = io.BytesIO()
    duration = max(20, round(1000 / frames_per_second))
    images[0].save(
        buffer, "gif", save_all=True, append_images=images[1:], duration=duration, loop=0, optimize=False
    )
    write(path, buffer.getvalue())
