"""Options with a fixed set of words: type checkers know the same words as the code."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

import hrf
from hrf import projections
from hrf._attention.denominator import RULES, Rule
from hrf.advice.candidates import UNITS, Unit
from hrf.advice.errors import OBJECTIVES, Objective
from hrf.features import clustered
from hrf.fitting import KINDS, DiagonalKind, MatrixKind
from hrf.nn import NAMES, MapName

TABLES = {
    "projection": (projections.ProjectionKind, projections.KINDS),
    "sampler": (projections.ProjectionKind, projections._SAMPLERS),
    "matrix": (MatrixKind, KINDS),
    "diagonal": (DiagonalKind, [kind for kind in KINDS if kind.endswith("diagonal")]),
    "base": (clustered.ClusterBase, clustered.BASES),
    "fit of a base": (clustered.ClusterBase, clustered._FIT),
    "features": (clustered.ResidualFeatures, clustered.FEATURES),
    "default": (clustered.DefaultMap, clustered.DEFAULTS),
    "unit": (Unit, UNITS),
    "objective": (Objective, OBJECTIVES),
    "denominator": (Rule, RULES),
    "map of a layer": (MapName, NAMES),
}


@pytest.mark.parametrize("option", TABLES)
def test_types_and_tables_have_the_same_words(option):
    words, table = TABLES[option]
    assert get_args(words) == tuple(table)


def test_maps_of_convert():
    pytest.importorskip("transformers")
    from hrf.integrations.transformers.conversion import FITS, FitName

    assert get_args(FitName) == tuple(FITS)


def public_callables() -> Iterator[Callable[..., Any]]:
    """Yield functions, constructors and methods that users can import from public modules."""
    modules = (hrf, hrf.coefficients, hrf.fitting, hrf.nn, hrf.sampling, hrf.theory, projections)
    for value in (getattr(module, name) for module in modules for name in module.__all__):
        if inspect.isfunction(value):
            yield value
        elif inspect.isclass(value) and value.__module__.startswith("hrf."):
            yield from (m for name, m in inspect.getmembers(value, inspect.isroutine) if is_own(name, m))


def is_own(name: str, member: Any) -> bool:
    """Whether a member is a constructor or public, and defined in this package."""
    own = getattr(member, "__module__", None) or ""
    return own.startswith("hrf.") and (name == "__init__" or not name.startswith("_"))


def literals(hint: Any) -> set[Any]:
    """Collect the words of a type hint, unions included."""
    if get_origin(hint) is Literal:
        return set(get_args(hint))
    return set().union(*(literals(part) for part in get_args(hint)), set())


def test_a_parameter_with_a_word_as_default_lists_its_words():
    found = 0
    for function in public_callables():
        for parameter in inspect.signature(function).parameters.values():
            if isinstance(parameter.default, str) and parameter.name != "name":  # for messages
                found += 1
                hint = get_type_hints(function)[parameter.name]
                assert parameter.default in literals(hint), (function, parameter.name)
    assert found > 10
