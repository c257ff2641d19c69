"""Data that estimators are given: checked and turned into `Rows`."""

from __future__ import annotations

from typing import Any

from sklearn.utils.validation import validate_data

from hrf.learn.rows import DTYPES, ArrayRows, Rows

__all__ = ["is_dask", "rows_of"]


def is_dask(data: Any) -> bool:
    """Whether data are a Dask array, data frame or series; looks at names only, so that Dask is not imported."""
    return type(data).__module__.partition(".")[0] in ("dask", "dask_expr")


def rows_of(estimator: Any, x: Any, y: Any = None, *, width: int, reset: bool, **checks: Any) -> Rows:
    """Check data as scikit-learn does and return their rows.

    Args:
        estimator: gets ``n_features_in_`` and ``feature_names_in_`` if ``reset``; they are compared otherwise.
        x: ``(N, d)``: an array, a data frame of pandas or polars, or a Dask array or data frame.
        y: targets, or ``None``.
        width: number of features that steps make per row.
        reset: whether the estimator learns its columns from this data.
        **checks: arguments of scikit-learn's ``validate_data``, for targets.
    """
    if is_dask(x) or is_dask(y):
        from hrf.learn.dask_rows import dask_rows

        return dask_rows(estimator, x, y, width=width, reset=reset)
    if y is None:
        return ArrayRows(validate_data(estimator, x, dtype=DTYPES, reset=reset), None, width)
    x, y = validate_data(estimator, x, y, dtype=DTYPES, reset=reset, **checks)
    return ArrayRows(x, y, width)
