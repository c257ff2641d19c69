"""For both robots: a quiet client of Bullet, and GIFs without a display."""

from __future__ import annotations

import io
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pybullet
from numpy.typing import NDArray

from hrf.report import write
from hrf_paper.requirements import require

# A client of Bullet without a display that says nothing and ends with the interpreter.


class BulletClient:
    """A world of its own, with Bullet's functions as methods.

    The client that comes with Bullet prints its arguments for each world, and an error for worlds that are still there
    when the interpreter ends.

    Attributes:
        disconnect: ends the world; it is called with the last reference or by the end of the interpreter otherwise, and
            a second call does nothing.
    """

    def __init__(self) -> None:
        self._number: int = pybullet.connect(pybullet.DIRECT)
        self.disconnect = weakref.finalize(self, pybullet.disconnect, self._number)

    def __getattr__(self, name: str) -> Any:
        return partial(getattr(pybullet, name), physicsClientId=self._number)


# Animated GIFs of frames, written without a display.

_COLOURS = 64  # of the palette


def write_gif(path: Path, frames: Sequence[NDArray[np.uint8]], *, frames_per_second: float = 10) -> None:
    """Write frames as a GIF that repeats for ever; all frames share one palette, which keeps the file small.

    Args:
        path: the file, replaced if it is there.
        frames: images ``(height, width, 3)``, all of one shape.
        frames_per_second: up to 50; the format counts in hundredths of a second.
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
    palette = Image.fromarray(sample).quantize(_COLOURS, dither=Image.Dither.NONE)
    images = [Image.fromarray(f).quantize(palette=palette, dither=Image.Dither.NONE) for f in frames]
    buffer = io.BytesIO()
    duration = max(20, round(1000 / frames_per_second))
    images[0].save(
        buffer, "gif", save_all=True, append_images=images[1:], duration=duration, loop=0, optimize=False
    )
    write(path, buffer.getvalue())
