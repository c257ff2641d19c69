"""What commands have in common: libraries beside the dependencies of hrf, how to install them, errors in a sentence."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec

INSTALL = "pip install hybrid-random-features-paper"
# Modules that an extra has.
_EXTRAS = dict.fromkeys(("gymnasium", "numba", "pybullet"), "robotics") | {"soundfile": "speech"}
# Names of distributions that differ from the names of their modules.
_DISTRIBUTIONS = {"sklearn": "scikit-learn", "PIL": "Pillow"}


def missing(modules: Iterable[str]) -> list[str]:
    """Return the names of the distributions whose modules cannot be imported."""
    return [_DISTRIBUTIONS.get(name, name) for name in _absent(modules)]


def require(user: str, modules: Iterable[str]) -> None:
    """Raise a ``ModuleNotFoundError`` of one sentence unless all modules are installed.

    Args:
        user: the subject of the sentence, "the experiment uci" for example.
        modules: names to import.
    """
    if absent := _absent(modules):
        extra = next((_EXTRAS[name] for name in absent if name in _EXTRAS), None)
        install = INSTALL if extra is None else f"pip install 'hybrid-random-features-paper[{extra}]'"
        raise ModuleNotFoundError(f"{user} needs {' and '.join(missing(absent))}: {install}", name=absent[0])


def _absent(modules: Iterable[str]) -> list[str]:
    return [name for name in modules if not _is_there(name)]


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:  # a module without a spec, made by hand
        return True


def run_command(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    """Run the function that arguments name; 2 and one sentence if something is wrong with arguments or files."""
    arguments = parser.parse_args(argv)
    try:
        arguments.run(arguments)
    except (ValueError, OSError, ModuleNotFoundError, FloatingPointError) as error:
        print(f"{parser.prog.removeprefix('python -m ')}: {error}", file=sys.stderr)
        return 2
    return 0
