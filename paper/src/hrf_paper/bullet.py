"""A client of Bullet without a display that says nothing and ends with the interpreter."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import pybullet

__all__ = ["BulletClient"]


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
