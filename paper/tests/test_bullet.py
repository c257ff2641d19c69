"""Clients of Bullet: worlds apart, closed once, and quiet at the end of the interpreter."""

from __future__ import annotations

import subprocess
import sys

from hrf_paper.robots import BulletClient

UNCLOSED = """
from hrf_paper.manipulation.environment import SweepingTable
kept = [SweepingTable(1), SweepingTable(1)]
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
