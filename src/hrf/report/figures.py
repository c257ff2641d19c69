"""Figures as files."""

from __future__ import annotations

import io

from matplotlib.figure import Figure

__all__ = ["png"]


def png(drawing: Figure, dpi: int = 160) -> bytes:
    """The figure as the content of a file."""
    buffer = io.BytesIO()
    drawing.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()
