"""Clients of Bullet, and GIFs."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from hrf_paper.robots import BulletClient, write_gif

# Clients of Bullet: worlds apart, closed once, and quiet at the end of the interpreter.

UNCLOSED = """
from hrf_paper.manipulation.environment import SweepingTable
kept = [SweepingTable(), SweepingTable()]
kept[0].close()
"""


def test_worlds_are_apart_and_end_once():
    first, second = BulletClient(), BulletClient()
    first.createMultiBody(1.0)
    assert (first.getNumBodies(), second.getNumBodies()) == (1, 0)
    first.disconnect()
    third = BulletClient()  # Bullet gives it the number of the first
    first.disconnect()
    del first
    assert third.isConnected()
    assert third.getNumBodies() == 0


def test_a_world_that_nobody_closed_is_not_mentioned_at_the_end():
    found = subprocess.run([sys.executable, "-c", UNCLOSED], capture_output=True, text=True, check=True)
    assert not found.stdout
    assert [line for line in found.stderr.splitlines() if "build time" not in line] == []


RED, BLUE = np.full((2, 20, 30, 3), 0, np.uint8)
RED[..., 0] = 255
BLUE[..., 2] = 255


def test_frames_come_back_with_their_colours(tmp_path):
    write_gif(tmp_path / "two.gif", [RED, BLUE], frames_per_second=5)
    with Image.open(tmp_path / "two.gif") as found:
        assert (found.n_frames, found.size, found.info["loop"]) == (2, (30, 20), 0)
        for place, frame in enumerate((RED, BLUE)):
            found.seek(place)
            assert found.info["duration"] == 200
            assert np.array_equal(np.asarray(found.convert("RGB")), frame)


def test_frames_that_do_not_fit_get_a_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"\(20, 30, 3\) and \(10, 30, 3\)"):
        write_gif(tmp_path / "a.gif", [RED, BLUE[:10]])
    with pytest.raises(ValueError, match="no frames"):
        write_gif(tmp_path / "a.gif", [])
    assert not list(tmp_path.iterdir())


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ModuleNotFoundError, match="a GIF needs Pillow: pip install"):
        write_gif(tmp_path / "a.gif", [RED])
