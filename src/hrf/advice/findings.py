"""Records of what `advise` measured (settings, candidates and their order), and the words for them."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from hrf.advice.candidates import Unit
from hrf.advice.errors import GramObjective, Interval, Objective, SummaryFinding
from hrf.features.base import FeatureMap
from hrf.report import count, number

__all__ = [
    "HEADER",
    "Candidate",
    "Findings",
    "Settings",
    "cells",
    "counts",
    "glossary",
    "headline",
    "legend",
    "rebuild",
    "sentences",
    "terms_of",
    "uniform_cells",
    "warning",
]


@dataclass(frozen=True)
class Settings:
    """Arguments of `advise`, and facts about the data.

    Attributes:
        budget: every candidate may cost as much as positive features of this width.
        unit: the unit of that cost.
        objective: which error is measured.
        n_redraws: draws behind each interval.
        seed: seed of the split, of k-means and of ω.
        scale: factor of the logits; maps take inputs multiplied by its root.
        length: number of keys per sequence in use.
        dim: length d of the vectors.
        value_dim: length d_v of the values; d without values.
        n_queries: number of queries given.
        n_keys: number of keys given.
        query_norm: root of the mean of ‖q‖², scale included.
        key_norm: root of the mean of ‖k‖², scale included.
        held_out: numbers of queries and of keys that errors are measured on.
    """

    budget: int
    unit: Unit
    objective: Objective | GramObjective
    n_redraws: int
    seed: int
    scale: float
    length: int
    dim: int
    value_dim: int
    n_queries: int
    n_keys: int
    query_norm: float
    key_norm: float
    held_out: tuple[int, int]

    @property
    def for_machines(self) -> bool:
        """Whether rows of a kernel machine are advised on, rather than queries and keys."""
        return self.objective in ("gram", "ridge")

    @property
    def most_features(self) -> float:
        """Largest number of features whose state is no larger than the keys and values; no less than the budget.

        Without a bound for the objective ``kernel``, where nothing is summarised.
        """
        if self.objective == "kernel":
            return math.inf
        return max(self.budget, self.length * (self.dim + self.value_dim) // (self.value_dim + 1))


@dataclass(frozen=True)
class Candidate:
    """One map with its cost and its error.

    Attributes:
        name: unique name of the map.
        family: ``isotropic``, ``hybrid``, ``fitted`` or ``clustered``.
        feature_map: fitted, with the ω of the first draw.
        width: active features per vector (`FeatureMap.active_width`).
        flops: operations to map one vector.
        error: on held-out queries and keys, by the objective.
        low: lower end of the 95 % interval of the error over draws of ω.
        high: upper end of that interval.
        predicted: the median of √MSE/K over held-out pairs in closed form; ``None`` where no form is known.
        seconds: measured time to map one vector.
        note: a remark for users of the map.
    """

    name: str
    family: str
    feature_map: FeatureMap
    width: int
    flops: int
    error: float
    low: float
    high: float
    predicted: float | None
    seconds: float
    note: str = ""

    @classmethod
    def measured(
        cls, name: str, family: str, feature_map: FeatureMap, error: Interval, *rest: Any
    ) -> Candidate:
        """Return the candidate of a map and its error; ``rest`` is all from ``predicted`` on."""
        if not math.isfinite(error.high):
            raise ArithmeticError("its estimates overflow or vanish")
        return cls(name, family, feature_map, feature_map.active_width, feature_map.flops(), *error, *rest)

    def with_note(self, remark: str) -> Candidate:
        """Return the candidate with one more remark."""
        return replace(self, note="; ".join(filter(None, [self.note, remark])))

    def expected_error(self, objective: Objective | GramObjective) -> float:
        """Return the error; for ``kernel`` in closed form, since the draws that make it up may be too rare to see."""
        if objective == "kernel" and self.predicted is not None:
            return self.predicted
        return self.error


@dataclass(frozen=True)
class Findings:
    """Candidates in order, with the settings they were measured with; see `Advice`."""

    ranking: list[Candidate]
    beyond: list[Candidate]
    uniform: float
    left_out: dict[str, str]
    settings: Settings
    summarised: SummaryFinding | None = None

    def expected_error(self, candidate: Candidate) -> float:
        """Return `Candidate.expected_error` for the objective of the settings."""
        return candidate.expected_error(self.settings.objective)


# Words that depend on what is measured: attention by queries and keys, or a kernel machine on rows.


class Terms(NamedTuple):
    """Words for one objective.

    Attributes:
        error: what the error is of, for sentences and axes.
        reference: the method without a map that maps are compared with.
        ignores: what the reference does without.
        columns: the meaning of the columns of the table.
        ways: what to do if no map is good enough.
        limit: the norm beyond which random features fail, if that is known.
    """

    error: str
    reference: str
    ignores: str
    columns: str
    ways: tuple[str, ...]
    limit: float | None = None


_ATTENTION = Terms(
    error="relative error of the attention weights",
    reference="uniform attention",
    ignores="queries and keys",
    columns="width: active features per vector; state: numbers that attention keeps per column of the values, in place "
    "of the keys; FLOPs, µs: per vector to map; kernel ε: median of √MSE/K over pairs, in closed form",
    ways=("raise the budget", "lower the scale of the logits", "compute exact attention"),
    limit=2.0,
)
_MACHINE = Terms(
    error="root mean squared error of the kernel",
    reference="mean of the kernel",
    ignores="the rows",
    columns="width, state: features per row; FLOPs, µs: per row to map; kernel ε: root of the mean squared error of "
    "the kernel over pairs of rows, in closed form",
    ways=("scale the columns (StandardScaler)", "raise the budget", "lower gamma", "use the exact kernel"),
)
_TERMS = {
    "attention": _ATTENTION,
    "output": _ATTENTION._replace(error="relative error of the attention output"),
    "kernel": _ATTENTION._replace(error="relative error of the kernel values"),
    "gram": _MACHINE,
    "ridge": _MACHINE._replace(error="relative error of ridge regression", reference="mean of the targets"),
}


def terms_of(settings: Settings) -> Terms:
    """Return the words for the objective of the settings."""
    return _TERMS[settings.objective]


def counts(settings: Settings) -> str:
    """Say how many vectors were given."""
    s = settings
    rows = f"{s.n_queries:,} rows" if s.for_machines else f"{s.n_queries:,} queries, {s.n_keys:,} keys"
    return f"{rows}, d = {s.dim}"


def norms(settings: Settings, digits: int = 1) -> str:
    """Say how long vectors are, for the middle of a sentence."""
    s = settings
    if s.for_machines:
        return f"rows have norm {s.query_norm:.{digits}f}"
    return f"queries have norm {s.query_norm:.{digits}f} and keys {s.key_norm:.{digits}f}"


# The Python that rebuilds a map.


def rebuild(candidate: Candidate, settings: Settings) -> str:
    """Write Python that draws and fits the map of a candidate to all ``queries`` and ``keys``, or to all ``rows``."""
    phi, s, root = candidate.feature_map, settings, settings.scale**0.5
    if s.for_machines:
        gamma = s.scale / (2 if phi.kernel == "gaussian" else 1)
        kernel = "" if phi.kernel == "gaussian" else ', kernel="softmax"'
        return (
            f'phi = hrf.learn.RandomFeatures(gamma={gamma:.9g}, feature_map="{candidate.name}", '
            f"n_components={s.budget}{kernel}, random_state={s.seed}).fit(rows).feature_map_"
        )
    scaled = "" if root == 1 else f"queries, keys = {root:.9g} * queries, {root:.9g} * keys  # √scale\n"
    name, own = type(phi).__name__, phi.config()
    if "settings" in own:
        return f"{scaled}phi = hrf.{name}.fit(queries, keys, {_changed(own['settings'], type(phi))})"
    sizes = f"{phi.dim}, n_projections={own['n_projections']}"
    for key in ("n_coefficient_projections", "sigma", "radius"):
        sizes += f", {key}={own[key]:.9g}" if key in own else ""
    if name in ("OptimalPositive", "DenseExponential"):
        return f"{scaled}phi = hrf.{name}({sizes}, seed={s.seed}).fit(queries, keys)"
    if name == "Exponential":
        kind, _, about = candidate.name.partition(", ")
        matrix = "None" if kind == "centred" else f'"{kind}"'
        shift = kind == "centred" or about == "centred"
        return (
            f"{scaled}phi = hrf.Exponential.fit(queries, keys, n_projections={own['n_projections']}, "
            f"matrix={matrix}, shift={shift}, seed={s.seed})"
        )
    return f"{scaled}phi = hrf.{name}({sizes}, seed={s.seed})"


def _changed(settings: dict[str, Any], cls: Any) -> str:
    """Write the arguments that are not defaults of ``cls.fit``."""
    defaults = inspect.signature(cls.fit).parameters
    changed = {key: value for key, value in settings.items() if value != defaults[key].default}
    return ", ".join(f"{key}={value!r}".replace("'", '"') for key, value in changed.items())


# Advice in words: the headline, the cells of its table, sentences about the best map, and the warning.


HEADER = ("map", "width", "state", "FLOPs", "µs", "error", "95 % interval", "kernel ε")

_GOOD_ENOUGH = 0.5
_NEARLY, _CHEAPER = 1.1, 0.8  # times the error and the FLOPs of the best map
_HARDLY_BETTER = 0.9  # times the error of uniform attention
_WITHIN = {
    "width": "with {} features or fewer",
    "flops": "with no more FLOPs than positive features of width {}",
    "time": "no slower than positive features of width {}",
}


# Words in the names of maps.
_WORDS = {
    "shifted": "expanded around the centres of clusters, unbiased",
    "shrunk": "like shifted, with the random part multiplied by a factor below 1: less variance, some bias",
    "separable": "one feature per pair of clusters, nothing random: no variance, some bias",
    "moments": "a matrix per pair of clusters, from second moments",
    "recentred": "the centres of clusters move to the keys at hand",
    "centred": "vectors are taken relative to their means",
}


class _Rival(NamedTuple):
    """What has a smaller error than every ranked map; ``why`` says why it is not ranked."""

    name: str
    error: float
    why: str


def _best_of_all(found: Findings) -> _Rival | None:
    """Return the best of what is not ranked, unless the best map is better."""
    rivals = [_Rival(c.name, found.expected_error(c), c.note) for c in found.beyond]
    if (s := found.summarised) is not None:
        rivals.append(_Rival("summarised attention", s.error, "it is no map"))
    best = min(rivals, key=lambda rival: rival.error, default=None)
    return None if best is None or best.error >= found.expected_error(found.ranking[0]) else best


def headline(found: Findings) -> str:
    """Say what is best at this budget, and what is best of all."""
    best, rival = found.ranking[0], _best_of_all(found)
    error = number(found.expected_error(best))
    if rival is None:
        return f"Use {best.name}: best at this budget, and best of all, error {error}"
    first = f"Best map at this budget: {best.name}, error {error}"
    return f"{first}; best of all: {rival.name}, error {number(rival.error)}"


def glossary(found: Findings) -> str:
    """Explain the words in the names of maps."""
    names = " ".join(c.name for c in (*found.ranking, *found.beyond)).replace(",", "").split()
    return "; ".join(f"{word}: {meaning}" for word, meaning in _WORDS.items() if word in names)


def cells(candidate: Candidate) -> tuple[str, ...]:
    """Format a candidate as one row of texts under `HEADER`."""
    c = candidate
    return (
        c.name,
        f"{c.width}",
        count(c.feature_map.feature_dim),
        count(c.flops),
        f"{c.seconds * 1e6:.1f}",
        number(c.error),
        "exact" if c.low == c.high == 0 else "no draws" if c.low == c.high else _interval(c),
        "–" if c.predicted is None else number(c.predicted),
    )


def uniform_cells(found: Findings) -> tuple[str, ...]:
    """Format the row of the reference without a map, which has no cost."""
    return (terms_of(found.settings).reference, *[""] * 4, number(found.uniform), "", "")


def legend(found: Findings) -> str:
    """Say how the table is ordered and what its columns mean."""
    order = "kernel ε" if found.settings.objective == "kernel" else "the upper end of the interval"
    return f"Best first, by {order}. {terms_of(found.settings).columns}"


def warning(found: Findings) -> str | None:
    """Say what is wrong and what to do if no ranked map is good enough; else return ``None``."""
    s, best, terms = found.settings, found.ranking[0], terms_of(found.settings)
    error = found.expected_error(best)
    useless = error > _HARDLY_BETTER * found.uniform
    if not useless and error <= _GOOD_ENOUGH:
        return None
    text = f"no map is good enough at this budget: the best, {best.name}, has error {number(error)}"
    if useless:
        how = "no" if error >= found.uniform else "hardly"
        text += f", {how} better than ignoring {terms.ignores} ({terms.reference}: {number(found.uniform)})"
    sentence = norms(s)
    text += f". {sentence[0].upper()}{sentence[1:]}"
    if terms.limit is not None and s.query_norm * s.key_norm > terms.limit**2:
        text += f", and random features fail beyond norms of about {terms.limit:g}"
    ways = [*terms.ways]
    better = min(found.beyond, key=found.expected_error, default=None)
    if better is not None and found.expected_error(better) < 0.8 * error:
        ways.insert(0, f"take '{better.name}' (error {number(better.error)})")
    return f"{text}; {', '.join(ways[:-1])}, or {ways[-1]}."


def sentences(found: Findings) -> list[str]:
    """Say what is best, why, and how large its error is."""
    best, s = found.ranking[0], found.settings
    unlucky = "" if s.objective == "kernel" else ", unlucky draws of ω included"
    texts = [
        f"{headline(found)}.",
        f"Of all maps {_WITHIN[s.unit].format(s.budget)}, {best.name} has the smallest error on data it was not fitted "
        f"to{unlucky}: the {terms_of(s).error} is {number(found.expected_error(best))}{_spread(found)}.",
    ]
    if (rival := _best_of_all(found)) is not None and rival.why:
        texts.append(f"Not ranked: {rival.name}, since {rival.why}.")
    if rivals := _rivals(found):
        texts.append(
            f"The best of the other families: {', '.join(rivals)}; {terms_of(s).reference} {number(found.uniform)}."
        )
    near = [c for c in found.ranking if c.error <= _NEARLY * best.error and c.flops < _CHEAPER * best.flops]
    if near:
        c = min(near, key=lambda c: c.flops)
        texts.append(
            f"Nearly as good with {c.flops / best.flops:.0%} of the FLOPs: {c.name}, {number(c.error)}."
        )
    return texts if found.summarised is None else [*texts, _summarised(found.summarised, s.budget)]


def _summarised(finding: SummaryFinding, budget: int) -> str:
    tolerance = "math.inf" if math.isinf(finding.tolerance) else f"{finding.tolerance:g}"
    return (
        f"Without a map (not causal): hrf.SummarisedAttention(tolerance={tolerance}) has error "
        f"{number(finding.error)}, with {finding.exact_share:.1%} of pairs exact and {finding.relative_cost:.2g} times "
        f"the FLOPs of attention with {budget} positive features."
    )


def _spread(found: Findings) -> str:
    """Say in parentheses how well the error of the best map is known."""
    best = found.ranking[0]
    if found.expected_error(best) != best.error:
        return f" (in closed form; measured: {number(best.error)})"
    return "" if best.low == best.high else f" (95 % interval {_interval(best)})"


def _rivals(found: Findings) -> list[str]:
    """Name the best map of every family other than the winner's, with its error."""
    winner, firsts = found.ranking[0].family, {}
    for family in ("isotropic", "hybrid", "fitted", "clustered"):
        first = next((c for c in found.ranking if c.family == family), None)
        if first is not None and family != winner:
            firsts[family] = first
    return [f"{c.name} {number(found.expected_error(c))}" for c in firsts.values()]


def _interval(candidate: Candidate) -> str:
    return f"{number(candidate.low)}–{number(candidate.high)}"
