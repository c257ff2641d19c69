"""Agreement before ranks compute together: an error on one rank, or a difference, is a sentence on every rank.

Each rank hands in a line of numbers: whether it failed, a hash of everything that has to be the same, and numbers of
its own. Only if something is wrong, texts follow.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from hrf.distributed.ranks import RankError, Ranks

__all__ = ["agree", "digest"]

_TEXT = 2048  # bytes of a text


def digest(*parts: bytes) -> int:
    """Hash bytes to a signed number of 64 bits."""
    found = hashlib.blake2b(digest_size=8)
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + part)
    return int.from_bytes(found.digest(), "little", signed=True)


def agree(
    ranks: Ranks,
    failure: Exception | None = None,
    claims: Mapping[str, str] | None = None,
    numbers: Sequence[int] = (),
) -> list[list[int]]:
    """Return the numbers of every rank, or raise on every rank.

    Args:
        ranks: all ranks of the group call this.
        failure: the error of this rank, raised here; other ranks raise a `RankError` with its text.
        claims: what has to be the same on every rank, by name.
        numbers: the numbers of this rank, as many on each.
    """
    texts = {} if claims is None else claims
    marks = [digest(f"{name}: {text}".encode()) for name, text in texts.items()]
    line = [int(failure is not None), digest(*(str(mark).encode() for mark in marks)), *numbers]
    lines = ranks.gather(torch.tensor(line, device=ranks.device), "agreement on a call").tolist()
    if any(failed for failed, *_ in lines):
        _raise_failures(ranks, failure, [rank for rank, (failed, *_) in enumerate(lines) if failed])
    if len({same for _, same, *_ in lines}) > 1:
        _raise_difference(ranks, texts)
    return [own for _, _, *own in lines]


def _raise_failures(ranks: Ranks, failure: Exception | None, failed: list[int]) -> None:
    own = "" if failure is None else f"{type(failure).__name__}: {failure}"
    texts = _gather_texts(ranks, own)
    if failure is not None:
        raise failure
    raise RankError("; ".join(f"rank {rank} raised {texts[rank]}" for rank in failed))


def _raise_difference(ranks: Ranks, claims: Mapping[str, str]) -> None:
    """Name the claim that differs and the ranks that differ from most ranks, or from the first if there is no most."""
    every = [text.split("\n") for text in _gather_texts(ranks, "\n".join(claims.values()))]
    for name, texts in zip(claims, zip(*every, strict=True), strict=True):
        if len(set(texts)) == 1:
            continue
        counts = Counter(texts)
        most, count = counts.most_common(1)[0]
        usual = most if count > ranks.size / 2 else texts[0]
        others = [f"rank {rank} has {text}" for rank, text in enumerate(texts) if text != usual]
        raise ValueError(
            f"ranks differ in {name}: {'; '.join(others)}; expected {usual}, as on rank {texts.index(usual)}"
        )


def _gather_texts(ranks: Ranks, text: str) -> list[str]:
    encoded = text.encode()[:_TEXT]
    own = torch.zeros(_TEXT, dtype=torch.uint8, device=ranks.device)
    own[: len(encoded)] = torch.tensor(list(encoded), dtype=torch.uint8)
    every = ranks.gather(own, "the texts of errors").cpu().numpy()
    return [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in every]
