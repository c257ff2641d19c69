"""Damaged copies of files, by seed: bytes flipped, cut out, repeated, replaced by others that mean something."""

from __future__ import annotations

import random
from collections.abc import Iterator

TOKENS = [b"", b"0", b"-1", b"999999999999", b"1e999", b"null", b"[" * 2000]
TOKENS += [b"{", b'"', b"\x00", b"\xff" * 8, b"(", b";"]


def damaged(content: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """Return ``count`` damaged copies; most damage is near the beginning, where headers are."""
    rng = random.Random(seed)
    for _ in range(count):
        copy = bytearray(content)
        for _ in range(rng.choice((1, 1, 2, 5))):
            end = rng.choice((16, 128, len(copy))) if copy else 0
            start = rng.randrange(max(1, min(end, len(copy))))
            stop = start + rng.choice((0, 1, 1, 2, 8, 64))
            kind = rng.randrange(5)
            if kind == 0 and start < len(copy):
                copy[start] ^= 1 << rng.randrange(8)
            elif kind == 1:
                del copy[start:stop]
            elif kind == 2:
                copy[start:start] = copy[start:stop]
            elif kind == 3:
                copy[start:stop] = rng.choice(TOKENS)
            else:
                del copy[start + rng.randrange(len(copy) + 1) :]
        yield bytes(copy)
