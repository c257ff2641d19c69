"""Agreement before ranks compute together: an error on one rank, or a difference, is a sentence on every rank.

Each rank hands in a line of numbers: whether it failed, a hash of everything that has to be the same, whether it wants
gradients, and its length. Only if something is wrong, texts follow.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple, NoReturn, TypeVar, cast

import torch

from hrf.distributed.ranks import RankError, Ranks

__all__ = ["Description", "digest", "together"]

Result = TypeVar("Result")

_TEXT = 2048  # bytes of a text


def digest(*parts: bytes) -> int:
    """Hash bytes to a signed number of 64 bits."""
    found = hashlib.blake2b(digest_size=8)
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + part)
    return int.from_bytes(found.digest(), "little", signed=True)


class Description(NamedTuple):
    """What a rank tells the others.

    Attributes:
        claims: what has to be the same on every rank, by name.
        wants_gradients: whether autograd follows along on this rank.
        length: number of tokens on this rank.
    """

    claims: Mapping[str, str] = {}
    wants_gradients: bool = False
    length: int = 0


def together(
    ranks: Ranks, work: Callable[[], Result], describe: Callable[[Result], Description]
) -> tuple[Result, list[Description]]:
    """Run ``work`` on every rank; if one raises, all raise, and if claims differ, too.

    Returns:
        The result of this rank, and the descriptions of all, without claims.
    """
    result, failure, own = None, None, Description()
    try:
        result = work()
        own = describe(result)
    except Exception as error:
        failure = error
    marks = (digest(name.encode(), text.encode()) for name, text in own.claims.items())
    same = digest(*(str(mark).encode() for mark in marks))
    line = [failure is not None, same, own.wants_gradients, own.length]
    lines = ranks.gather(torch.tensor(line, device=ranks.device), "agreement on a call").tolist()
    if failed := [rank for rank, line in enumerate(lines) if line[0]]:
        _raise_failures(ranks, failure, failed)
    if len({line[1] for line in lines}) > 1:
        _raise_difference(ranks, own.claims)
    return cast("Result", result), [Description({}, bool(wants), length) for _, _, wants, length in lines]


def _raise_failures(ranks: Ranks, failure: Exception | None, failed: list[int]) -> NoReturn:
    own = "" if failure is None else f"{type(failure).__name__}: {failure}"
    texts = _gather_texts(ranks, own)
    if failure is not None:
        raise failure
    raise RankError("; ".join(f"rank {rank} raised {texts[rank]}" for rank in failed))


def _raise_difference(ranks: Ranks, claims: Mapping[str, str]) -> NoReturn:
    """Name the claim that differs and the ranks that differ from most ranks, or from the first if there is no most."""
    every = [text.split("\n") for text in _gather_texts(ranks, "\n".join(claims.values()))]
    # Ranks in different functions have different claims.
    for name, texts in zip(claims, zip(*every, strict=False), strict=False):
        if len(set(texts)) == 1:
            continue
        counts = Counter(texts)
        most, count = counts.most_common(1)[0]
        usual = most if count > ranks.size / 2 else texts[0]
        others = [f"rank {rank} has {text}" for rank, text in enumerate(texts) if text != usual]
        raise ValueError(
            f"ranks differ in {name}: {'; '.join(others)}; expected {usual}, as on rank {texts.index(usual)}"
        )
    raise ValueError(
        "ranks differ in the function they call; expected the same calls in the same order on every rank"
    )


def _gather_texts(ranks: Ranks, text: str) -> list[str]:
    encoded = text.encode()[:_TEXT]
    own = torch.zeros(_TEXT, dtype=torch.uint8, device=ranks.device)
    own[: len(encoded)] = torch.tensor(list(encoded), dtype=torch.uint8)
    every = ranks.gather(own, "the texts of errors").cpu().numpy()
    return [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in every]
