"""Words that depend on what is measured: attention by queries and keys, or a kernel machine on rows."""

from __future__ import annotations

from typing import NamedTuple

from hrf.advice.findings import Settings

__all__ = ["Terms", "counts", "norms", "terms_of"]


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
