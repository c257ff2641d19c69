"""Feature maps by name: "FAVOR+ 128", "Trig 128", "HRF-A (8, 8)", "HRF-C (3, 3) 64".

One convention holds for all pages, figures and stored results: a number is the paper's m, the number of random
projections (rows ω), never the number of features. A projection that is used with both signs, or as cosine and sine,
gives two features.

| name                    | map                                               | features   |
| ----------------------- | ------------------------------------------------- | ---------- |
| ``Trig m``              | `Trigonometric`                                   | 2m         |
| ``FAVOR+ m``            | `Positive`                                        | 2m         |
| ``FAVOR++ m``           | `OptimalPositive`                                 | m          |
| ``FAVOR# m``            | `DenseExponential`                                | m          |
| ``HRF-A (m, n)``        | `AngularHybrid`, n for its coefficient            | 4m(n + 1)  |
| ``HRF-G (m, n)``        | `GaussianHybrid`, n for its coefficient           | 4m(2n + 1) |
| ``HRF-C (q, k) m``      | `ClusteredHybrid`, base paper, complex matrices   | 4mqk       |
| ``HRF-C real (q, k) m`` | `ClusteredHybrid`, base paper, real matrices      | 2mqk       |
| ``shifted (q, k) m``    | `ClusteredHybrid`, base shifted                   | 2mqk       |
| ``separable (q, k)``    | `ClusteredHybrid`, base separable, nothing random | qk         |

q and k are numbers of clusters of queries and of keys; matrices are diagonal.

>>> build("HRF-A (8, 8)", dim=16, generator=0).feature_dim
288
>>> label("FAVOR+", 128)
'FAVOR+ 128'
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from torch import Generator, Tensor

from hrf.features.base import FeatureMap
from hrf.features.clustered import ClusteredHybrid
from hrf.features.exponential import Positive, Trigonometric
from hrf.features.hybrid import AngularHybrid, GaussianHybrid
from hrf.features.optimal import DenseExponential, OptimalPositive

__all__ = ["FAMILIES", "WORDS", "Named", "build", "label", "parse"]


class Named(NamedTuple):
    """Settings that a name stands for.

    Attributes:
        family: a key of `FAMILIES`.
        n_projections: m; ``None`` for maps without random features.
        n_coefficient_projections: n of a hybrid's coefficient.
        n_clusters: clusters of queries and of keys.
    """

    family: str
    n_projections: int | None = None
    n_coefficient_projections: int | None = None
    n_clusters: tuple[int, int] | None = None


class _Family(NamedTuple):
    """How names of a family look after its own name, and how to build its maps.

    Attributes:
        form: a key of `_FORMS`.
        make: builds the map; clustered maps take queries and keys, all others take ``dim``.
    """

    form: str
    make: Callable[..., FeatureMap]


_PAIR = r"\((\d+), ?(\d+)\)"
_FORMS = {"m": r"(\d+)", "(m, n)": _PAIR, "(q, k) m": rf"{_PAIR} (\d+)", "(q, k)": _PAIR}

# Families by name, in the order of the table above.
FAMILIES: dict[str, _Family] = {
    "Trig": _Family("m", Trigonometric),
    "FAVOR+": _Family("m", Positive),
    "FAVOR++": _Family("m", OptimalPositive),
    "FAVOR#": _Family("m", DenseExponential),
    "HRF-A": _Family("(m, n)", AngularHybrid),
    "HRF-G": _Family("(m, n)", GaussianHybrid),
    "HRF-C": _Family("(q, k) m", partial(ClusteredHybrid.fit, base="paper", matrix="complex-diagonal")),
    "HRF-C real": _Family("(q, k) m", partial(ClusteredHybrid.fit, base="paper", matrix="real-diagonal")),
    "shifted": _Family("(q, k) m", partial(ClusteredHybrid.fit, base="shifted")),
    "separable": _Family("(q, k)", partial(ClusteredHybrid.fit, base="separable")),
}
# Names of families where a sentence or an axis has room for words.
WORDS = {"trigonometric": "Trig", "angular hybrid": "HRF-A", "Gaussian hybrid": "HRF-G"}


def parse(name: str) -> Named:
    """Return the settings that a name stands for; a ``ValueError`` lists all names.

    >>> parse("HRF-C (3, 3) 64")
    Named(family='HRF-C', n_projections=64, n_coefficient_projections=None, n_clusters=(3, 3))
    """
    for family, (form, _) in FAMILIES.items():
        if found := re.fullmatch(rf"{re.escape(family)} {_FORMS[form]}", name):
            first, second, third = (*(int(text) for text in found.groups()), None, None)[:3]
            if 0 in (first, second, third):
                break
            if first is not None and second is not None and form.startswith("(q, k)"):
                return Named(family, third, n_clusters=(first, second))
            return Named(family, first, second)
    forms = ", ".join(f"{family} {form}" for family, (form, _) in FAMILIES.items())
    raise ValueError(f"there is no map {name!r}; expected one of {forms}, with numbers from 1")


def label(
    family: str,
    n_projections: int | None = None,
    n_coefficient_projections: int | None = None,
    n_clusters: tuple[int, int] | None = None,
) -> str:
    """Return the name of a map: the reverse of `parse`.

    Args:
        family: a key of `FAMILIES` or of `WORDS`.
        n_projections: m.
        n_coefficient_projections: n of a hybrid's coefficient.
        n_clusters: clusters of queries and of keys.

    >>> label("angular hybrid", 16, 8), label("HRF-C real", 64, n_clusters=(2, 3)), label(*parse("Trig 8"))
    ('HRF-A (16, 8)', 'HRF-C real (2, 3) 64', 'Trig 8')
    """
    given = Named(WORDS.get(family, family), n_projections, n_coefficient_projections, n_clusters)
    pair = n_clusters or (n_projections, n_coefficient_projections)
    form = FAMILIES[given.family].form if given.family in FAMILIES else "m"
    sizes = [f"({pair[0]}, {pair[1]})"] if form.startswith("(") else []
    sizes += [f"{n_projections}"] if form.endswith("m") else []
    name = " ".join((given.family, *sizes))
    if (meant := parse(name)) != given:
        raise ValueError(f"{given} has sizes that {family} lacks; expected {meant}")
    return name


def build(
    name: str,
    dim: int,
    *,
    queries: Tensor | None = None,
    keys: Tensor | None = None,
    heads: int | None = None,
    generator: Generator | int | None = None,
    seed: int = 0,
    **options: Any,
) -> FeatureMap:
    """Draw the map of a name, and fit it where it can be fitted and data are given.

    Args:
        name: one of the names above, such as ``"FAVOR+ 128"``.
        dim: d, the size of queries and keys.
        queries: ``(..., L, d)`` to fit to; clustered maps need them, FAVOR++ and FAVOR# use them.
        keys: ``(..., S, d)``, likewise.
        heads: as all maps take it.
        generator: the source of ω, or a seed.
        seed: seed of k-means.
        options: further arguments of the map, such as ``projection``, or ``sigma`` and ``radius`` of HRF-G.
    """
    settings = parse(name)
    source = Generator().manual_seed(generator) if isinstance(generator, int) else generator
    sizes = {key: size for key, size in settings._asdict().items() if size is not None and key != "family"}
    make = partial(FAMILIES[settings.family].make, heads=heads, generator=source, **sizes, **options)
    if settings.n_clusters is not None:
        if queries is None or keys is None:
            raise ValueError(f"{name} is fitted to data; expected queries and keys")
        if queries.shape[-1] != dim:
            raise ValueError(f"queries have last dimension {queries.shape[-1]}, but dim={dim}")
        return make(queries, keys, seed=seed)
    drawn = make(dim)
    if isinstance(drawn, OptimalPositive | DenseExponential) and queries is not None and keys is not None:
        return drawn.fit(queries, keys)
    return drawn
