"""Second moments at three angles."""

from __future__ import annotations

from hrf_paper.experiments.experiment import Results, Table
from hrf_paper.experiments.lambda_estimates.claims import worst
from hrf_paper.experiments.lambda_estimates.measure import STEPS, Settings

__all__ = ["tables"]


def tables(settings: Settings, results: Results) -> list[Table]:
    """Show E λ̂², exact and drawn, at three angles, and the largest deviation of all moments."""
    rows = []
    places = [settings.angles * k // 4 for k in (1, 2, 3)]
    for name, part in results.items():
        exact, drawn = part["square"]["exact"][:: STEPS // settings.angles], part["square"]["seen"]
        texts = (f"{exact[k]:.3f} | {drawn[k]:.3f}" for k in places)
        rows.append((*name.split(", "), *texts, f"{worst(part):.1f}"))
    header = ("coefficient", "", "rows", "θ = π/4", "π/2", "3π/4", "deviation")
    return [Table("E λ̂², exact | drawn; largest deviation of all moments in standard errors", header, rows)]
