"""The parts of a hybrid: how they are built, which of them fit together, and how their estimates covary."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from hrf import theory
from hrf.checks import check_count
from hrf.features.base import FeatureMap, Linearised
from hrf.features.coefficients import Coefficient
from hrf.features.exponential import Exponential, Positive, Trigonometric
from hrf.projections import ProjectionKind, Projections

__all__ = ["bipolar_bases", "check_parts", "relative_covariance", "share_projections"]


def bipolar_bases(
    dim: int,
    n_projections: int,
    share: bool,
    kind: ProjectionKind,
    heads: int | None,
    generator: Generator | None,
) -> list[FeatureMap]:
    """Build positive and trigonometric features, on the same ω or on two draws."""
    check_count("dim", dim)
    draws = [
        Projections(kind, n_projections, dim, heads=heads, generator=generator) for _ in range(2 - share)
    ]
    return [
        base(dim, n_projections=n_projections, projection=omega, heads=heads)
        for base, omega in zip((Positive, Trigonometric), (draws[0], draws[-1]), strict=True)
    ]


def check_parts(bases: Sequence[FeatureMap], coefficients: Sequence[Coefficient]) -> None:
    """Refuse parts that do not fit together, and name them."""
    if len(bases) < 2 or len(coefficients) != len(bases) - 1:
        raise ValueError(
            f"the numbers of bases and coefficients are {len(bases)} and {len(coefficients)}; "
            "expected two or more bases and one coefficient fewer"
        )
    for kind, parts in ((FeatureMap, bases), (Coefficient, coefficients)):
        for part in parts:
            if not isinstance(part, kind):
                raise TypeError(
                    f"{type(part).__name__} is among the {kind.__name__}s; expected a {kind.__name__}"
                )
    for name in ("dim", "heads"):
        values = [getattr(part, name) for part in (*bases, *coefficients)]
        if len(set(values)) > 1:
            raise ValueError(f"the bases and coefficients have {name} = {values}; expected one value for all")
    estimated = [base.kernel for base in bases]
    if len(set(estimated)) > 1:
        raise ValueError(f"the bases estimate the kernels {estimated}; expected one kernel for all")
    if share_projections(bases, coefficients):
        raise ValueError(
            "a coefficient shares projections with a base; it needs its own, or the hybrid is biased"
        )
    _check_draws(list({p for part in (*bases, *coefficients) for p in part.all_projections()}))


def _check_draws(projections: Sequence[Projections]) -> None:
    """Refuse draws from equal seeds: the hybrid would take them for independent draws and be biased."""
    first = [_first_row(p).double().cpu() for p in projections if not p.omega.is_meta]
    if not first:
        return
    rows = torch.stack(first)
    near = torch.cdist(rows, rows) < 1e-6  # rounding of float32; by chance for one pair in 10⁶ at d = 2
    if near.sum() > len(rows):
        raise ValueError(
            "two of the parts have the same ω, drawn from equal seeds; expected independent draws (hand one "
            "generator to all), or one Projections object that the bases share"
        )


def _first_row(projections: Projections) -> Tensor:
    """Return the first direction of a draw, to recognise it; lengths of rows may depend on their number."""
    row = projections.omega.detach().reshape(-1, projections.dim)[0]
    few_directions = projections.dim == 1 or projections.kind == "hadamard"
    return row if few_directions else row / row.norm()


def share_projections(first: Sequence[Linearised], second: Sequence[Linearised]) -> bool:
    """Whether a `Projections` object occurs in a part of both."""
    mine, theirs = ({p for part in parts for p in part.all_projections()} for parts in (first, second))
    return bool(mine & theirs)


def relative_covariance(first: FeatureMap, second: FeatureMap, x: Tensor, y: Tensor) -> theory.Scaled | None:
    """Return the covariance of two base estimates over the squared kernel; ``None`` if they are independent."""
    if not share_projections([first], [second]):
        return None
    if isinstance(first, Exponential) and isinstance(second, Exponential):
        return first.relative_covariance(second, x, y)
    raise NotImplementedError(
        f"no closed form is known for {type(first).__name__} and {type(second).__name__} that share ω"
    )
