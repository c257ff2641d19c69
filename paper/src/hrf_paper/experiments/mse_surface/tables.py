"""MSEs at five angles."""

from __future__ import annotations

from hrf.report import number
from hrf_paper.experiments.experiment import Results, Table
from hrf_paper.experiments.mse_surface.measure import NAMES, Settings

__all__ = ["tables"]


def tables(settings: Settings, results: Results) -> list[Table]:
    """Show exact and empirical MSEs at five angles and all drawn lengths."""
    rows = []
    for radius in settings.drawn_radii:
        for name in NAMES:
            drawn = results[name]["drawn"][f"{radius:g}"]
            for kind in ("exact", "seen"):
                texts = (number(drawn[kind][k]) for k in range(0, 17, 4))
                rows.append((name, f"{radius:g}", kind, *texts))
    title = f"MSE, m = {settings.n_projections}, n = {settings.n_coefficient_projections}"
    return [Table(title, ("estimator", "r", "", "θ = 0", "π/4", "π/2", "3π/4", "π"), rows)]
