"""`advise`: fit every family at one budget, measure it on held-out data, rank."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from hrf.advice.candidates import Proposal, Workshop, proposals
from hrf.advice.cost import UNITS, active_width, cost_in, seconds
from hrf.advice.errors import OBJECTIVES, Problem, predicted_error
from hrf.advice.result import Advice, Candidate, Settings
from hrf.features.base import FeatureMap
from hrf.features.exponential import Positive

__all__ = ["advise"]

Progress = Callable[[str, int, int], None]  # name of the candidate, candidates done, candidates in all

# The most vectors that are fitted to, measured on, and timed: more change the third digit only.
_FITTED, _HELD_OUT_QUERIES, _HELD_OUT_KEYS, _TIMED = 4096, 256, 1024, 1024
_LEAST = 4  # two vectors to fit to and two to measure on


def advise(
    queries: Any,
    keys: Any,
    values: Any = None,
    *,
    budget: int = 256,
    unit: str = "width",
    objective: str | None = None,
    scale: float = 1.0,
    n_redraws: int = 5,
    seed: int = 0,
    progress: Progress | None = None,
) -> Advice:
    """Which feature map to use for exp(qᵀk) on this data, within a budget.

    Half of the queries and half of the keys, by ``seed``, are fitted to (4,096 of each at most); errors are
    measured on up to 256 queries and 1,024 keys of the other half. If there are as many queries as keys, they
    are taken to be of the same tokens and are divided alike. Candidates that fail are left out, and
    `Advice.left_out` says why.

    Args:
        queries: ``(N, d)``, a tensor or an array. The kernel is exp(scale · qᵀk): for queries and keys of
            attention, ``scale=d ** -0.5``, or both sides multiplied by d^(−1/4) beforehand.
        keys: ``(S, d)``.
        values: ``(S, d_v)``, or ``None``.
        budget: each candidate may cost as much as positive features of this width.
        unit: what is counted: ``"width"``, active features of a vector; ``"flops"``, operations to map a
            vector; or ``"time"``, measured, so that the sizes of maps depend on the machine and its load.
            In the last two no map gets more than 16 times ``budget`` active features.
        objective: ``"output"``, the default where there are values: relative error of the attention output;
            ``"attention"``, the default elsewhere: that of the attention weights; or ``"kernel"``: the median
            of √MSE/K over pairs.
        scale: the factor of the logits. The maps of the result take inputs multiplied by its root.
        n_redraws: draws of ω behind each confidence interval, two or more.
        seed: of everything random; the same seed gives the same advice, times aside.
        progress: called with the name of a candidate, the number of those done and that of all.

    >>> import torch, hrf
    >>> _ = torch.manual_seed(0)
    >>> x, y = torch.randn(200, 4) * torch.tensor([3.0, 0.1, 0.1, 0.1]), torch.randn(200, 4) / 4
    >>> advice = advise(x, y, budget=64)
    >>> advice.best.estimate(x, y).shape, advice.warning is None
    (torch.Size([200, 200]), True)
    """
    settings: dict[str, Any] = {
        "budget": budget,
        "unit": unit,
        "n_redraws": n_redraws,
        "seed": seed,
        "scale": scale,
    }
    _check_settings(**settings)
    objective = objective or ("attention" if values is None else "output")
    if objective not in OBJECTIVES:
        raise ValueError(f"objective is {objective!r}; expected one of {', '.join(OBJECTIVES)}")
    q, k = (_vectors(u, name) * math.sqrt(scale) for u, name in ((queries, "queries"), (keys, "keys")))
    v = None if values is None else _vectors(values, "values")
    _check_shapes(q, k, v, objective)
    fit_q, held_q = _halves(q, seed)
    fit_k, held_k = _halves(k, seed)
    fit_v, held_v = (None, None) if v is None else _halves(v, seed)

    held_out = _problem(held_q, held_k, held_v, objective, _HELD_OUT_QUERIES, _HELD_OUT_KEYS)
    if objective == "output" and held_out.values is not None and not held_out.values.any():
        raise ValueError("the values are all zero, so that no output is wrong; leave them out")
    timed = held_q[:_TIMED].float()
    reference = Positive(q.shape[-1], n_projections=budget // 2, generator=Generator().manual_seed(seed))
    shop = Workshop(
        fit_q[:_FITTED],
        fit_k[:_FITTED],
        _problem(fit_q, fit_k, fit_v, objective, _HELD_OUT_QUERIES // 2, _HELD_OUT_KEYS // 2),
        budget,
        unit,
        cost_in(unit, reference, timed),
        seed,
    )
    ranking: list[Candidate] = []
    beyond: list[Candidate] = []
    left_out: dict[str, str] = {}
    everything = list(proposals(shop))
    for index, proposal in enumerate(everything):
        if progress is not None:
            progress(proposal.name, index, len(everything))
        try:
            candidate = _measure(proposal, held_out, timed, n_redraws, seed)
        except (ArithmeticError, ImportError, NotImplementedError, RuntimeError, ValueError) as error:
            left_out[proposal.name] = str(error).partition("\n")[0]
            continue
        (beyond if proposal.apart else ranking).append(candidate)
    if progress is not None:
        progress("", len(everything), len(everything))
    if not ranking:
        raise ValueError(f"no map could be made: {'; '.join(f'{n}: {why}' for n, why in left_out.items())}")
    return Advice(
        sorted(ranking, key=lambda c: _score(c, objective)),
        sorted(beyond, key=lambda c: _score(c, objective)),
        held_out.uniform(),
        left_out,
        Settings(
            **settings,
            objective=objective,
            dim=q.shape[-1],
            n_queries=len(q),
            n_keys=len(k),
            query_norm=float(q.square().sum(-1).mean().sqrt()),
            key_norm=float(k.square().sum(-1).mean().sqrt()),
            held_out=(len(held_out.queries), len(held_out.keys)),
        ),
    )


def _measure(proposal: Proposal, problem: Problem, timed: Tensor, n_redraws: int, seed: int) -> Candidate:
    feature_map: FeatureMap = proposal.make().float()
    error = problem.error(feature_map, n_redraws, Generator().manual_seed(seed + 1))
    if not math.isfinite(error.high):
        raise ArithmeticError("its estimates overflow or vanish")
    return Candidate(
        name=proposal.name,
        family=proposal.family,
        feature_map=feature_map,
        width=active_width(feature_map),
        flops=feature_map.flops(),
        error=error.value,
        low=error.low,
        high=error.high,
        predicted=predicted_error(feature_map, problem.queries, problem.keys),
        seconds=seconds(feature_map, timed),
        note=proposal.note,
    )


def _score(candidate: Candidate, objective: str) -> tuple[float, int]:
    """What candidates are ranked by; the cheaper of two equals comes first."""
    known = candidate.predicted if objective == "kernel" else None
    return candidate.high if known is None else known, candidate.flops


def _halves(vectors: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Two halves by a shuffle that depends on the number of vectors and the seed alone."""
    order = torch.randperm(len(vectors), generator=Generator().manual_seed(seed))
    return vectors[order[: len(vectors) // 2]], vectors[order[len(vectors) // 2 :]]


def _problem(q: Tensor, k: Tensor, v: Tensor | None, objective: str, n_queries: int, n_keys: int) -> Problem:
    return Problem(q[:n_queries], k[:n_keys], None if v is None else v[:n_keys], objective)


def _vectors(given: Any, name: str) -> Tensor:
    """Rows in float64 on the CPU, or an error that says what is wrong with them."""
    tensor = given.detach().cpu() if isinstance(given, Tensor) else torch.tensor(np.asarray(given))
    if tensor.is_complex() or tensor.ndim != 2 or not tensor.numel():
        raise ValueError(
            f"{name} have shape {tuple(tensor.shape)} and {tensor.dtype}; expected real numbers (N, d)"
        )
    tensor = tensor.double()
    if bad := int((~tensor.isfinite()).sum()):
        raise ValueError(f"{name} have {bad} values that are NaN or infinite; expected finite values")
    return tensor


def _check_shapes(q: Tensor, k: Tensor, v: Tensor | None, objective: str) -> None:
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"queries have {q.shape[-1]} columns, keys {k.shape[-1]}; expected the same number")
    if v is not None and len(v) != len(k):
        raise ValueError(f"there are {len(k)} keys and {len(v)} values; expected one value a key")
    if v is None and objective == "output":
        raise ValueError("objective is 'output', but there are no values")
    for name, vectors in (("queries", q), ("keys", k)):
        if len(vectors) < _LEAST:
            raise ValueError(f"there are {len(vectors)} {name}; expected {_LEAST} or more")


def _check_settings(budget: int, unit: str, n_redraws: int, seed: int, scale: float) -> None:
    if unit not in UNITS:
        raise ValueError(f"unit is {unit!r}; expected one of {', '.join(UNITS)}")
    for name, value, low, high in (
        ("budget", budget, 8, 1 << 16),
        ("n_redraws", n_redraws, 2, 1000),
        ("seed", seed, 0, (1 << 32) - 2),  # scikit-learn takes 32 bits
    ):
        if not low <= value <= high:
            raise ValueError(f"{name} is {value}; expected a number from {low} to {high}")
    if not (scale > 0 and math.isfinite(scale)):
        raise ValueError(f"scale is {scale}; expected a positive number")
