"""`advise`: check and split the data, fit every family at one budget, measure it on held-out data, rank."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from hrf.advice import findings
from hrf.advice.candidates import UNITS, Builder, Proposal, Unit, cost_in, proposals, seconds
from hrf.advice.errors import OBJECTIVES, Objective, Problem, find_summaries, predicted_error
from hrf.advice.findings import Candidate, Findings, Settings
from hrf.checks import not_finite
from hrf.features.base import FeatureMap
from hrf.features.exponential import Positive

__all__ = ["FAILURES", "Advice", "Progress", "advise", "advise_heads", "as_vectors"]

# Queries, keys and values that `advise` was given: checked, scaled and split.


_LEAST = 4  # two vectors to fit to and two to measure on
_LONGEST = 1e7  # logits of longer vectors have no correct decimals in float64


class Data(NamedTuple):
    """Queries ``(N, d)``, keys ``(S, d)`` and perhaps values ``(S, d_v)``, in float64 on the CPU."""

    queries: Tensor
    keys: Tensor
    values: Tensor | None

    @classmethod
    def checked(cls, queries: Any, keys: Any, values: Any, scale: float) -> Data:
        """Convert tensors or arrays, multiply queries and keys by √scale; errors say what is wrong with them."""
        q, k = (as_vectors(u, name) * math.sqrt(scale) for u, name in ((queries, "queries"), (keys, "keys")))
        v = None if values is None else as_vectors(values, "values")
        if q.shape[-1] != k.shape[-1]:
            raise ValueError(
                f"queries have {q.shape[-1]} columns, keys {k.shape[-1]}; expected the same number"
            )
        if v is not None and len(v) != len(k):
            raise ValueError(
                f"the numbers of keys and values are {len(k)} and {len(v)}; expected one value per key"
            )
        for name, vectors in (("queries", q), ("keys", k)):
            if len(vectors) < _LEAST:
                raise ValueError(f"the number of {name} is {len(vectors)}; expected {_LEAST} or more")
            if (longest := float(torch.linalg.vector_norm(vectors, dim=-1).max())) > _LONGEST:
                raise ValueError(
                    f"the longest of the {name} has norm {longest:.1e} (with the root of scale); expected at most "
                    f"{_LONGEST:.0e}, as random features are for norms of about 1: scale the columns (StandardScaler), "
                    "or divide all by one number"
                )
        return cls(q, k, v)

    @property
    def dim(self) -> int:
        """Length d of queries and keys."""
        return self.queries.shape[-1]

    @property
    def value_dim(self) -> int:
        """Length of the values; without values, the length of the keys."""
        return (self.keys if self.values is None else self.values).shape[-1]

    def halves(self, seed: int) -> tuple[Data, Data]:
        """Split into two halves by a shuffle that depends on the number of vectors and the seed alone."""
        (q, other_q), (k, other_k) = _halves(self.queries, seed), _halves(self.keys, seed)
        v, other_v = (None, None) if self.values is None else _halves(self.values, seed)
        return Data(q, k, v), Data(other_q, other_k, other_v)

    def problem(self, objective: Objective, n_queries: int, n_keys: int) -> Problem:
        """Pose the problem on the first queries and keys."""
        values = None if self.values is None else self.values[:n_keys]
        return Problem(self.queries[:n_queries], self.keys[:n_keys], values, objective)


def _halves(vectors: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    order = torch.randperm(len(vectors), generator=Generator().manual_seed(seed))
    return vectors[order[: len(vectors) // 2]], vectors[order[len(vectors) // 2 :]]


def as_vectors(given: Any, name: str) -> Tensor:
    """Convert to rows in float64 on the CPU, or say what is wrong with them."""
    tensor = given.detach().cpu() if isinstance(given, Tensor) else torch.tensor(np.asarray(given))
    if tensor.is_complex() or tensor.ndim != 2 or not tensor.numel():
        raise ValueError(
            f"{name} have shape {tuple(tensor.shape)} and {tensor.dtype}; expected real numbers (N, d)"
        )
    tensor = tensor.double()
    if bad := not_finite(tensor):
        raise ValueError(f"{name} have {bad}; expected finite values")
    return tensor


# `Advice`, the result of `advise`.


_FIELDS = ("name", "family", "width", "flops", "error", "low", "high", "predicted", "note")


@dataclass(frozen=True)
class Advice(Findings):
    """Maps for given data and budget, best first.

    Attributes:
        ranking: by the upper end of the interval: a map that needs luck is not a good one. For the objective
            ``kernel`` by the closed form where it is known, since draws that make up an error may be rare.
        beyond: maps that cost more than the budget, or that need all keys at hand.
        uniform: the error of attention that ignores queries and keys.
        left_out: why a candidate is missing, by name.
        settings: the arguments of `advise`, and facts about the data.
        summarised: summarised attention, which is no map, at the cost of attention within the budget; ``None`` without
            values, with fewer than 512 queries or keys, or with a ``length`` below 256.
    """

    @property
    def best(self) -> FeatureMap:
        """The best map, fitted and ready to use."""
        return self.ranking[0].feature_map

    @property
    def warning(self) -> str | None:
        """A sentence on what is wrong and what to do if no ranked map is good enough, else ``None``."""
        return findings.warning(self)

    @property
    def legend(self) -> str:
        """The order of the table, and the meaning of its columns."""
        return findings.legend(self)

    @property
    def headline(self) -> str:
        """What is best at this budget, and what is best of all."""
        return findings.headline(self)

    @property
    def glossary(self) -> str:
        """The meaning of the words in the names of the maps."""
        return findings.glossary(self)

    def sentences(self) -> list[str]:
        """Say what is best, why, and how large its error is."""
        return findings.sentences(self)

    def to_dict(self) -> dict[str, Any]:
        """Return numbers and texts only, without times: one seed gives one text. Errors that overflow are ``None``."""
        return {
            "settings": vars(self.settings) | {"held_out": list(self.settings.held_out)},
            "ranking": [_plain(c) for c in self.ranking],
            "beyond": [_plain(c) for c in self.beyond],
            "uniform": _finite(self.uniform),
            "summarised": self.summarised and {k: _finite(v) for k, v in vars(self.summarised).items()},
            "left_out": self.left_out,
            "warning": self.warning,
        }

    def plot(self, path: str | PathLike[str]) -> None:
        """Draw errors and costs to an image file; its suffix names the format. Needs matplotlib."""
        from hrf.advice.figure import figure  # advice itself needs no matplotlib

        figure(self).savefig(path, dpi=160)

    def __str__(self) -> str:
        reference = findings.uniform_cells(self)
        rows = [
            findings.HEADER,
            *map(findings.cells, self.ranking),
            reference,
            *map(findings.cells, self.beyond),
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [_aligned(row, widths) for row in rows]
        rule = "-" * max(map(len, lines))
        lines.insert(1, rule)
        if self.beyond:
            lines.insert(len(self.ranking) + 3, rule)
        warning = [f"Warning: {self.warning}"] if self.warning else []
        explained = filter(None, [self.legend, self.glossary])
        return "\n".join([*lines, *explained, "", *self.sentences(), *warning])


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    """Join cells: the first aligned to the left, all others to the right."""
    first, *others = zip(row, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]).rstrip()


def _finite(value: Any) -> Any:
    """Return the value, or ``None`` for infinity and NaN, which JSON does not know."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _plain(candidate: Candidate) -> dict[str, Any]:
    described = {name: _finite(getattr(candidate, name)) for name in _FIELDS}
    return described | {"map": repr(candidate.feature_map), "state": candidate.feature_map.feature_dim}


# Called with the name of the current candidate, the number of candidates done and the number of all candidates.
Progress = Callable[[str, int, int], None]

# The most vectors to fit to, to measure on, and to time: more change the third digit only.
_FITTED, _HELD_OUT_QUERIES, _HELD_OUT_KEYS, _TIMED = 4096, 256, 1024, 1024
# Errors that leave a candidate out of the ranking; `Advice.left_out` holds their messages.
FAILURES = (ArithmeticError, ImportError, NotImplementedError, RuntimeError, ValueError)


def advise(
    queries: Any,
    keys: Any,
    values: Any = None,
    *,
    budget: int = 256,
    unit: Unit = "width",
    objective: Objective | None = None,
    scale: float = 1.0,
    length: int | None = None,
    n_redraws: int = 5,
    seed: int = 0,
    progress: Progress | None = None,
) -> Advice:
    """Find the feature map to use for exp(qᵀk) on this data, within a budget.

    Half of the queries and half of the keys, by ``seed``, are fitted to (4,096 of each at most); errors are
    measured on up to 256 queries and 1,024 keys of the other half. If there are as many queries as keys, they
    are taken to belong to the same tokens and are split alike. Candidates that fail are left out, and
    `Advice.left_out` says why. For attention, a map with more features than ``budget`` is left out if its state,
    features × (d_v + 1) numbers, is larger than the keys and values that it summarises.

    Args:
        queries: ``(N, d)``, a tensor or an array. The kernel is exp(scale · qᵀk): for queries and keys of
            attention, ``scale=d ** -0.5``, or both sides multiplied by d^(−1/4) beforehand.
        keys: ``(S, d)``.
        values: ``(S, d_v)``, or ``None``.
        budget: each candidate may cost as much as positive features of this width.
        unit: the unit of cost: ``"width"``, active features per vector; ``"flops"``, operations to map a
            vector; or ``"time"``, measured, so that the sizes of maps depend on the machine and its load.
            With the last two, no map gets more than 16 times ``budget`` active features.
        objective: ``"output"``, the default if there are values: relative error of the attention output;
            ``"attention"``, the default otherwise: relative error of the attention weights; or ``"kernel"``: the
            median of √MSE/K over pairs. Weights and outputs are the ones that `hrf.attention` computes.
        scale: factor of the logits. The maps of the result take inputs multiplied by its root.
        length: number of keys per sequence in use, by default the number of ``keys``; it bounds the state of maps
            for attention.
        n_redraws: draws of ω behind each confidence interval, two or more.
        seed: seed of everything random; the same seed gives the same advice, times aside.
        progress: called with the name of a candidate, the number of candidates done and the number of all.

    >>> import torch, hrf
    >>> _ = torch.manual_seed(0)
    >>> x, y = torch.randn(200, 4) * torch.tensor([3.0, 0.1, 0.1, 0.1]), torch.randn(200, 4) / 4
    >>> advice = advise(x, y, budget=64)
    >>> advice.best.estimate(x, y).shape, advice.warning is None
    (torch.Size([200, 200]), True)
    """
    objective = objective or ("attention" if values is None else "output")
    _check_settings(budget, unit, objective, n_redraws, seed, scale, length)
    data = Data.checked(queries, keys, values, scale)
    fit, held_out = data.halves(seed)
    problem = _held_out_problem(held_out, objective)
    options = {"budget": budget, "unit": unit, "n_redraws": n_redraws, "seed": seed, "scale": scale}
    settings = _settings(data, problem, length=length or len(data.keys), **options)
    return _ranked(settings, fit, problem, held_out.queries[:_TIMED].float(), progress)


def advise_heads(
    queries: Any, keys: Any, values: Any = None, *, progress: Progress | None = None, **options: Any
) -> tuple[Advice, ...]:
    """Do as `advise` for each head of attention.

    Args:
        queries: ``(H, N, d)``.
        keys: ``(H, S, d)``.
        values: ``(H, S, d_v)``, or ``None``.
        progress: called with the name of a candidate, the number of candidates done and the number of all.
        **options: other arguments of `advise`.
    """
    given = {"queries": queries, "keys": keys} | ({} if values is None else {"values": values})
    sizes = {name: tuple(np.shape(u)) for name, u in given.items()}
    numbers = {size[0] for size in sizes.values() if len(size) == 3}
    if any(len(size) != 3 for size in sizes.values()) or len(numbers) != 1 or not all(numbers):
        listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise ValueError(
            f"the shapes are {listed}; expected (heads, N, d), with the same number of heads, one or more"
        )
    heads = [tuple(u[head] for u in given.values()) for head in range(len(queries))]

    def of_head(head: int) -> Progress | None:
        if progress is None:
            return None
        return lambda name, done, all_: progress(
            f"head {head}: {name}", head * all_ + done, len(heads) * all_
        )

    return tuple(advise(*head, progress=of_head(place), **options) for place, head in enumerate(heads))


def _held_out_problem(held_out: Data, objective: Objective) -> Problem:
    """Pose the problem that candidates are ranked by."""
    if held_out.values is None and objective == "output":
        raise ValueError("objective is 'output', but there are no values")
    problem = held_out.problem(objective, _HELD_OUT_QUERIES, _HELD_OUT_KEYS)
    if objective == "output" and problem.values is not None and not problem.values.any():
        raise ValueError("the values are all zero, so no output can be wrong; leave them out")
    return problem


def _settings(data: Data, problem: Problem, **options: Any) -> Settings:
    """Collect the arguments of `advise` and facts about the data."""
    return Settings(
        **options,
        objective=problem.objective,
        dim=data.dim,
        value_dim=data.value_dim,
        n_queries=len(data.queries),
        n_keys=len(data.keys),
        query_norm=_norm(data.queries),
        key_norm=_norm(data.keys),
        held_out=(len(problem.queries), len(problem.keys)),
    )


def _ranked(
    settings: Settings, fit: Data, problem: Problem, timed: Tensor, progress: Progress | None
) -> Advice:
    """Fit, measure and rank all candidates."""
    ranking: list[Candidate] = []
    beyond: list[Candidate] = []
    left_out: dict[str, str] = {}
    builder = _builder(settings, fit, timed, problem.objective)
    everything = list(proposals(builder))
    for index, proposal in enumerate(everything):
        if progress is not None:
            progress(proposal.name, index, len(everything))
        try:
            candidate = _measure(proposal, problem, timed, settings)
        except FAILURES as error:
            left_out[proposal.name] = str(error).partition("\n")[0]
            continue
        if slow := builder.slowness(candidate.feature_map):
            candidate = candidate.with_note(f"takes {slow:.1f} times the time allowed")
        (beyond if proposal.apart or slow else ranking).append(candidate)
    if progress is not None:
        progress("", len(everything), len(everything))
    if not ranking:
        raise ValueError(_nothing_to_rank(settings, beyond, left_out))

    def score(candidate: Candidate) -> tuple[float, int]:
        """Sort key: the closed form or the upper end of the interval; the cheaper of two equals comes first."""
        known = candidate.predicted if settings.objective == "kernel" else None
        return candidate.high if known is None else known, candidate.flops

    ranked, others = sorted(ranking, key=score), sorted(beyond, key=score)
    summarised = find_summaries(problem, _reference(settings), settings.length)
    return Advice(ranked, others, problem.uniform(), left_out, settings, summarised)


def _nothing_to_rank(settings: Settings, beyond: list[Candidate], left_out: dict[str, str]) -> str:
    """Say why no map is left, by the most common reason."""
    reasons = [*left_out.values(), *(c.note for c in beyond)]
    common = max(reasons, key=reasons.count, default="none was tried")
    norms = f"queries have norm {settings.query_norm:.3g} and keys {settings.key_norm:.3g}"
    return f"no map works ({norms}): {common}; lower the scale of the logits, or compute exact attention"


def _builder(settings: Settings, fit: Data, timed: Tensor, objective: Objective) -> Builder:
    """Collect what candidates are built from."""
    return Builder(
        fit.queries[:_FITTED],
        fit.keys[:_FITTED],
        fit.problem(objective, _HELD_OUT_QUERIES // 2, _HELD_OUT_KEYS // 2),
        settings.budget,
        settings.unit,
        cost_in(settings.unit, _reference(settings), timed),
        settings.seed,
        settings.most_features,
    )


def _reference(settings: Settings) -> Positive:
    """Return the map that costs as much as the budget allows."""
    generator = Generator().manual_seed(settings.seed)
    return Positive(settings.dim, n_projections=settings.budget // 2, generator=generator)


def _measure(proposal: Proposal, problem: Problem, timed: Tensor, settings: Settings) -> Candidate:
    feature_map: FeatureMap = proposal.make().float()
    _check_state(feature_map, settings)
    error = problem.error(feature_map, settings.n_redraws, Generator().manual_seed(settings.seed + 1))
    return Candidate.measured(
        proposal.name,
        proposal.family,
        feature_map,
        error,
        predicted_error(feature_map, problem.queries, problem.keys),
        seconds(feature_map, timed),
        proposal.note,
    )


def _check_state(feature_map: FeatureMap, settings: Settings) -> None:
    """Refuse a map whose state is larger than the keys and values that attention summarises by it."""
    features, s = feature_map.feature_dim, settings
    if features > s.most_features:
        raise ValueError(
            f"its state of {features:,} × {s.value_dim + 1} numbers is larger than the {s.length:,} keys and values "
            f"that it summarises ({s.length:,} × {s.dim + s.value_dim}); it may pay for longer sequences (length)"
        )


def _norm(vectors: Tensor) -> float:
    """Return the root of the mean squared norm."""
    return float(vectors.square().sum(-1).mean().sqrt())


def _check_settings(
    budget: int, unit: str, objective: str, n_redraws: int, seed: int, scale: float, length: int | None
) -> None:
    for name, choice, choices in (("unit", unit, UNITS), ("objective", objective, OBJECTIVES)):
        if choice not in choices:
            raise ValueError(f"{name} is {choice!r}; expected one of {', '.join(choices)}")
    for name, value, low, high in (
        ("budget", budget, 8, 1 << 16),
        ("n_redraws", n_redraws, 2, 1000),
        ("seed", seed, 0, (1 << 32) - 2),  # scikit-learn takes 32 bits
    ):
        if not low <= value <= high:
            raise ValueError(f"{name} is {value}; expected a number from {low} to {high}")
    if length is not None and length < 1:
        raise ValueError(f"length is {length}; expected the number of keys per sequence, 1 or more")
    if not (scale > 0 and math.isfinite(scale)):
        raise ValueError(f"scale is {scale}; expected a positive number")
