"""Data that estimators are given: checked and turned into `Rows`."""

from __future__ import annotations

from typing import Any

from sklearn.utils.validation import validate_data

from hrf.learn.rows import DTYPES, Array, ArrayRows, Rows, check_weights

__all__ = ["is_dask", "rows_of"]


def is_dask(data: Any) -> bool:
    """Whether data are a Dask array, data frame or series; looks at names only, so that Dask is not imported."""
    return type(data).__module__.partition(".")[0] in ("dask", "dask_expr")


def rows_of(
    estimator: Any, x: Any, y: Any = None, weight: Any = None, *, width: int, reset: bool, **checks: Any
) -> Rows:
    """Check data as scikit-learn does and return their rows.

    Args:
        estimator: gets ``n_features_in_`` and ``feature_names_in_`` if ``reset``; they are compared otherwise.
        x: ``(N, d)``: an array, a sparse matrix, a data frame of pandas or polars, or a Dask array or data frame.
        y: targets, or ``None``.
        weight: weights of rows ``(N,)``, not negative, or ``None``.
        width: number of features that steps make per row.
        reset: whether the estimator learns its columns from this data.
        **checks: arguments of scikit-learn's ``validate_data``, for targets.
    """
    if any(map(is_dask, (x, y, weight))):
        from hrf.learn.dask_rows import dask_rows

        return dask_rows(
            estimator, x, y, weight, width=width, reset=reset, multi_output=checks.get("multi_output", False)
        )
    shared: dict[str, Any] = {"dtype": DTYPES, "accept_sparse": "csr", "reset": reset}
    if y is None:
        x = validate_data(estimator, x, **shared)
    else:
        x, y = validate_data(estimator, x, y, **shared, **checks)
    return ArrayRows(x, y, width, None if weight is None else _some_weights(weight, x.shape[0]))


def _some_weights(weight: Any, n: int) -> Array:
    weights = check_weights(weight, n)
    if not weights.any():
        raise ValueError(f"sample_weight is 0 for all {n} rows; expected at least one non-zero number")
    return weights
