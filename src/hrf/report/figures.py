"""Figures as files."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["png"]


def png(drawing: Figure, dpi: int = 160) -> bytes:
    """Render a matplotlib figure as the bytes of a PNG file."""
    buffer = io.BytesIO()
    drawing.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()
