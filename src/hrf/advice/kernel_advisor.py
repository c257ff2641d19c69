"""`advise_kernel`: fit every map for kernel machines at one width, measure it on held-out rows, rank."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Generator, Tensor

from hrf.advice.advisor import FAILURES, Advice, Progress, as_vectors
from hrf.advice.candidates import check_matrix, seconds
from hrf.advice.errors import GramProblem, LabelledRows, predicted_gram_error
from hrf.advice.findings import Candidate, Settings
from hrf.checks import check_positive
from hrf.features.base import FeatureMap
from hrf.features.exponential import Exponential, Positive, Trigonometric
from hrf.features.gaussian import GaussianKernel
from hrf.features.landmarks import LandmarkChoice, Landmarks
from hrf.features.optimal import DenseExponential, OptimalPositive
from hrf.projections import ProjectionKind

__all__ = [
    "ADVISED",
    "LEAST_ROWS",
    "NAMES",
    "KernelName",
    "advise_kernel",
    "choose_map",
    "input_scale",
    "make_map",
]

# Maps for kernel machines by name: at most so many features, fitted to rows where the map is fitted at all.
#
# A kernel machine is a linear model on features φ(x), the query side of a map, so its kernel is φ(x)·φ(y). Both sides
# of these maps are equal, so that is the map's own estimate.


KernelName = Literal["rbf", "softmax"]
MapName = Literal[
    "trigonometric",
    "positive",
    "optimal-positive",
    "dense-exponential",
    "centred",
    "landmarks",
    "landmarks-k-means++",
    "landmarks-leverage",
]
NAMES: tuple[MapName, ...] = get_args(MapName)
# ``centred`` stands for ``positive``, too, which it is for rows with mean 0.
ADVISED: tuple[MapName, ...] = (
    "trigonometric",
    "landmarks",
    "centred",
    "optimal-positive",
    "dense-exponential",
)

# A maker takes rows to fit to, the number of features, and ``projection`` and ``generator``.
Maker = Callable[..., FeatureMap]


def _drawn(
    cls: Callable[..., FeatureMap], per_row: int, rows: Tensor, width: int, **common: Any
) -> FeatureMap:
    return cls(rows.shape[-1], n_projections=_rows_within(width, per_row), **common)


def _tilted(
    cls: type[OptimalPositive | DenseExponential], rows: Tensor, width: int, **common: Any
) -> FeatureMap:
    return cls(rows.shape[-1], n_projections=width, **common).fit(rows, rows)


def _centred(rows: Tensor, width: int, **common: Any) -> FeatureMap:
    return Exponential.fit(
        rows, rows, n_projections=_rows_within(width, 2), matrix=None, shift=True, **common
    )


def _landmarks(choice: LandmarkChoice, rows: Tensor, width: int, **common: Any) -> FeatureMap:
    return Landmarks.fit(rows, n_landmarks=width, choice=choice, generator=common["generator"])


_MAKERS: dict[MapName, Maker] = {
    "trigonometric": partial(_drawn, Trigonometric, 2),
    "positive": partial(_drawn, Positive, 2),
    "optimal-positive": partial(_tilted, OptimalPositive),
    "dense-exponential": partial(_tilted, DenseExponential),
    "centred": _centred,
    "landmarks": partial(_landmarks, "uniform"),
    "landmarks-k-means++": partial(_landmarks, "k-means++"),
    "landmarks-leverage": partial(_landmarks, "leverage"),
}


def make_map(
    name: MapName, rows: Tensor, width: int, *, kernel: KernelName, projection: ProjectionKind, seed: int
) -> FeatureMap:
    """Draw and fit a map with at most ``width`` features, or with one projection if they are too few for that.

    Args:
        name: one of `NAMES`.
        rows: ``(N, d)`` to fit to, scaled as the kernel needs them: exp(−‖x − y‖²/2) or exp(xᵀy).
        width: the largest number of features.
        kernel: ``"rbf"`` or ``"softmax"``.
        projection: one of `hrf.projections.KINDS`.
        seed: seed of ω.
    """
    if name not in _MAKERS:
        raise ValueError(
            f"feature_map is {name!r}; expected 'auto', one of {', '.join(NAMES)}, or a FeatureMap"
        )
    made = _MAKERS[name](rows, width, projection=projection, generator=Generator().manual_seed(seed))
    return GaussianKernel(made) if kernel == "rbf" else made


def _rows_within(width: int, per_row: int) -> int:
    """Return the number of projections with ``per_row`` features each: at least one."""
    return max(1, width // per_row)


LEAST_ROWS = 8  # six to fit to, and two to measure on
# With fewer rows to fit to, maps are chosen that do not stay the best with more.
_FITTED, _HELD_OUT = 4096, 2048
_FITTED_SHARE = 0.75
_WITH_MATRIX = ("optimal-positive", "dense-exponential")
_FAMILIES = {"trigonometric": "isotropic", "optimal-positive": "isotropic"}
_NOTES = {
    "trigonometric": "exact at x = y",
    "optimal-positive": "FAVOR++; never negative",
    "dense-exponential": "FAVOR#; never negative",
    "centred": "FAVOR+ about the mean; never negative",
    "landmarks": "Nyström; biased, exact at rows of the data",
}


def advise_kernel(
    rows: Any,
    targets: Any = None,
    *,
    gamma: float,
    kernel: KernelName = "rbf",
    budget: int = 256,
    projection: ProjectionKind = "orthogonal",
    n_redraws: int = 5,
    seed: int = 0,
    progress: Progress | None = None,
) -> Advice:
    """Find the feature map to use for a kernel machine on this data: a linear model on at most ``budget`` features.

    Three quarters of the rows, by ``seed``, are fitted to (4,096 at most); errors are measured on up to 2,048 of the
    others. Without targets, maps are ranked by the error of the kernel matrix; with targets, by the error of ridge
    regression, each map at its best of ten penalties. Maps that fail are left out, and `Advice.left_out` says why.

    Args:
        rows: ``(N, d)``, a tensor or an array with 8 rows or more.
        targets: ``(N,)`` or ``(N, k)``, or ``None``.
        gamma: γ of exp(−γ‖x − y‖²), or of exp(γ xᵀy). The maps of the result take rows multiplied by √(2γ), or √γ.
        kernel: ``"rbf"`` or ``"softmax"``.
        budget: the largest number of features.
        projection: one of `hrf.projections.KINDS`.
        n_redraws: draws of ω behind each confidence interval, two or more.
        seed: seed of everything random.
        progress: called with the name of a map, the number of maps done and the number of all.

    >>> import torch, hrf
    >>> x = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    >>> advice = hrf.advise_kernel(x, x[:, :1].sin(), gamma=0.3, budget=64)
    >>> advice.settings.objective, advice.best.queries(x).shape
    ('ridge', torch.Size([400, 64]))
    """
    check_positive("gamma", gamma)
    scale = input_scale(kernel, gamma)
    data = _checked(rows, targets, math.sqrt(scale))
    problem, fitted = _split(data, seed)
    settings = _settings(
        data, problem, budget=budget, n_redraws=n_redraws, seed=seed, scale=scale, unit="width"
    )
    ranking: list[Candidate] = []
    left_out: dict[str, str] = {}
    for index, name in enumerate(ADVISED):
        if progress is not None:
            progress(name, index, len(ADVISED))
        try:
            if name in _WITH_MATRIX:
                check_matrix(settings.dim)
            arguments: dict[str, Any] = {"kernel": kernel, "projection": projection, "seed": seed}
            ranking.append(_measured(name, make_map(name, fitted, budget, **arguments), problem, settings))
        except FAILURES as error:
            left_out[name] = str(error).partition("\n")[0]
    if progress is not None:
        progress("", len(ADVISED), len(ADVISED))
    if not ranking:
        raise ValueError(
            f"no map works (rows have norm {settings.query_norm:.3g}): {next(iter(left_out.values()))}"
        )
    ranking.sort(key=lambda candidate: (candidate.high, candidate.flops))
    return Advice(ranking, [], problem.uniform(ranking[0].feature_map), left_out, settings)


# A choice costs less than two fits: few rows and features tell maps apart that differ by much.
_CHOICE_ROWS, _CHOICE_SHARE, _CHOICE_WIDTH, _CHOICE_DRAWS = 2048, 0.25, 256, 2
# The first map whose error is near the least is taken, and landmarks, which gain most from more features, come first.
_CHOSEN: tuple[MapName, ...] = (
    "landmarks",
    "landmarks-k-means++",
    "trigonometric",
    "centred",
    "dense-exponential",
)
_NEAR = 1.01


def choose_map(rows: Any, targets: Any = None, *, gamma: float, width: int, **options: Any) -> MapName:
    """Return the name of the map that does best at 256 features or fewer on a quarter of the rows, 2,048 at most.

    `advise_kernel` measures with more rows, at full width and over more draws.

    Args:
        rows: ``(N, d)``, 8 rows or more.
        targets: ``(N,)`` or ``(N, k)``, or ``None``.
        gamma: γ of the kernel.
        width: number of features.
        **options: ``kernel``, ``projection`` and ``seed`` of `make_map`.
    """
    data = _checked(rows, targets, math.sqrt(input_scale(options["kernel"], gamma)))
    order = torch.randperm(len(data.x), generator=Generator().manual_seed(options["seed"]))
    few = max(LEAST_ROWS, min(_CHOICE_ROWS, int(_CHOICE_SHARE * len(order))))
    problem, fitted = _split(data.part(order[:few]), options["seed"])
    errors: dict[MapName, float] = {}
    for name in _CHOSEN:
        try:
            if name in _WITH_MATRIX:
                check_matrix(data.x.shape[1])
            phi = make_map(name, fitted, min(width, _CHOICE_WIDTH), **options).float()
            found = problem.error(phi, _CHOICE_DRAWS, Generator().manual_seed(options["seed"] + 1))
            errors[name] = found.value if math.isfinite(found.value) else math.inf
        except FAILURES:
            continue
    near = _NEAR * min(errors.values(), default=0.0)
    return next((name for name, error in errors.items() if error <= near), "trigonometric")


def input_scale(kernel: KernelName, gamma: float) -> float:
    """Return the factor of xᵀy: rows are multiplied by its root, after which γ is 1/2 for ``rbf`` and 1 for softmax."""
    if kernel not in ("rbf", "softmax"):
        raise ValueError(f"kernel is {kernel!r}; expected 'rbf' or 'softmax'")
    return 2 * gamma if kernel == "rbf" else gamma


def _checked(rows: Any, targets: Any, factor: float) -> LabelledRows:
    """Convert tensors or arrays, multiply rows by the factor; errors say what is wrong with them."""
    x = as_vectors(rows, "rows") * factor
    if len(x) < LEAST_ROWS:
        raise ValueError(f"the number of rows is {len(x)}; expected {LEAST_ROWS} or more")
    if targets is None:
        return LabelledRows(x, None)
    y = torch.as_tensor(targets)
    y = as_vectors(y[:, None] if y.ndim == 1 else y, "targets")
    if len(y) != len(x):
        raise ValueError(
            f"the numbers of rows and targets are {len(x)} and {len(y)}; expected one target per row"
        )
    return LabelledRows(x, y)


def _split(data: LabelledRows, seed: int) -> tuple[GramProblem, Tensor]:
    """Return the problem on held-out rows, and the rows to fit to."""
    order = torch.randperm(len(data.x), generator=Generator().manual_seed(seed))
    first, others = order[: int(_FITTED_SHARE * len(order))], order[int(_FITTED_SHARE * len(order)) :]
    fitted, held_out = data.part(first[:_FITTED]), data.part(others[:_HELD_OUT])
    if held_out.y is not None and fitted.y is not None and not (held_out.y - fitted.y.mean(0)).any():
        # Constant targets tell maps apart no better than no targets.
        fitted, held_out = (rows._replace(y=None) for rows in (fitted, held_out))
    return GramProblem(fitted, held_out), fitted.x


def _settings(data: LabelledRows, problem: GramProblem, **options: Any) -> Settings:
    norm = float(data.x.square().sum(-1).mean().sqrt())
    return Settings(
        **options,
        objective=problem.objective,
        length=len(data.x),
        dim=data.x.shape[1],
        value_dim=1 if data.y is None else data.y.shape[1],
        n_queries=len(data.x),
        n_keys=len(data.x),
        query_norm=norm,
        key_norm=norm,
        held_out=(len(problem.held_out.x), len(problem.held_out.x)),
    )


def _measured(name: MapName, feature_map: Any, problem: GramProblem, settings: Settings) -> Candidate:
    feature_map = feature_map.float()
    error = problem.error(feature_map, settings.n_redraws, Generator().manual_seed(settings.seed + 1))
    return Candidate.measured(
        name,
        _FAMILIES.get(name, "fitted"),
        feature_map,
        error,
        predicted_gram_error(feature_map, problem.held_out.x),
        seconds(feature_map, problem.held_out.x.float()),
        _NOTES[name],
    )
