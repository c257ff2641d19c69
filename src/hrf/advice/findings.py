"""Records of what `advise` measured: settings, candidates and their order."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hrf.advice.cost import Unit
from hrf.advice.errors import Objective
from hrf.advice.gram import GramObjective
from hrf.advice.summaries import SummaryFinding
from hrf.features.base import FeatureMap

__all__ = ["Candidate", "Findings", "Settings"]


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
