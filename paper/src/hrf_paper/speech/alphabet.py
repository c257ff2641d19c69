"""Characters and their numbers; 0 is the blank of the transducer."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["BLANK", "CHARACTERS", "characters", "decoded", "encoded"]

BLANK = 0
CHARACTERS = " 'ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_NUMBERS = {character: i for i, character in enumerate(CHARACTERS, start=1)}


def encoded(text: str) -> list[int]:
    """Return the numbers of the characters of a normalised text.

    >>> encoded("A B")
    [3, 1, 4]
    """
    if unknown := set(text) - _NUMBERS.keys():
        raise ValueError(f"the text has {min(unknown)!r}; expected characters among {CHARACTERS!r}")
    return [_NUMBERS[character] for character in text]


def characters(labels: Iterable[int]) -> str:
    """Return the characters of labels, blanks of the transducer left out, spaces as they are."""
    return "".join(CHARACTERS[label - 1] for label in labels if label != BLANK)


def decoded(labels: Iterable[int]) -> str:
    """Return the text of labels, blanks of the transducer left out, with single spaces between words.

    >>> decoded([1, 3, 0, 1, 1, 4])
    'A B'
    """
    return " ".join(characters(labels).split())
