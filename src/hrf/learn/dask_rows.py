"""Rows in a Dask array or data frame: steps run where the blocks are, and results meet in a tree.

Nothing but the results of steps, D² numbers each, and a sample of rows leaves a worker. Tasks have no state, so that a
worker that dies loses nothing: Dask repeats its tasks elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any, TypeVar

import numpy as np
from sklearn.utils.validation import check_array, validate_data

from hrf.learn.rows import DTYPES, Array, ArrayRows, Block, Step, advance, check_weights, wanted

try:
    import dask
    import dask.array as da
    from dask.callbacks import Callback
except ImportError as error:
    raise ImportError(
        f"{error.name} is missing; pip install 'hybrid-random-features[dask]' brings it"
    ) from error

__all__ = ["dask_rows"]

Result = TypeVar("Result")

_FAN_IN = 8  # results that one task combines
_SAMPLED_BLOCKS = 16


def dask_rows(
    estimator: Any, x: Any, y: Any, weight: Any = None, *, reset: bool, multi_output: bool = True
) -> DaskRows:
    """Check columns and chunks; values are checked where the blocks are.

    Args:
        estimator: gets ``n_features_in_`` and ``feature_names_in_`` if ``reset``; they are compared otherwise.
        x: a Dask array ``(N, d)`` in one chunk along its columns, or a data frame.
        y: a Dask array or series with the same rows, an array in memory, or ``None``.
        weight: likewise.
        reset: whether the estimator learns its columns from this data.
        multi_output: whether there may be more than one target per row.
    """
    header = _header(x)
    x = _as_array(x, "X")
    if x.ndim != 2:
        raise ValueError(f"X has shape {x.shape}; expected a Dask array (N, d) or a data frame")
    if not x.shape[1]:
        raise ValueError(f"Found array with 0 feature(s) (shape={x.shape}) while a minimum of 1 is required.")
    if x.numblocks[1] > 1:
        raise ValueError(
            f"X has {x.numblocks[1]} chunks along its features, of {', '.join(map(str, x.chunks[1]))} columns; "
            "expected one, as X.rechunk({1: -1}) makes it: a block needs all features of its rows"
        )
    validate_data(estimator, header, skip_check_array=True, reset=reset)
    y, weight = (
        None if given is None else _aligned(x, given, name)
        for given, name in ((y, "y"), (weight, "sample_weight"))
    )
    if y is not None and y.ndim > (2 if multi_output else 1):
        raise ValueError(f"y has shape {y.shape}; expected one target per row, (N,)")
    return DaskRows(x, y, weight)


class DaskRows:
    """Rows in a Dask array ``(N, d)`` in one chunk along its columns.

    Args:
        x: the rows.
        y: targets in the same chunks, or ``None``.
        weight: weights in the same chunks, or ``None``.
        width: number of features that steps make per row.
    """

    def __init__(self, x: Any, y: Any, weight: Any = None, *, width: int = 1) -> None:
        self.x, self.y, self.weight, self.n_features, self.width = x, y, weight, x.shape[1], width
        self.flat_targets = y is not None and y.ndim == 1

    def reduce(self, step: Step[Result], combine: Callable[[Result, Result], Result]) -> Result:
        """Apply the step to every block and combine the results, in a tree on the cluster."""
        on_block = partial(_reduced, step, combine, self.width)
        shared = dask.delayed(on_block, traverse=False)  # sent once, not with every task
        results = [shared(*block) for block in self._blocks()]
        while len(results) > 1:
            groups = [results[k : k + _FAN_IN] for k in range(0, len(results), _FAN_IN)]
            results = [dask.delayed(partial(_combined, combine))(group) for group in groups]
        total = _computed(results[0])
        if total is None:
            raise self._no_rows()
        return total

    def map(self, step: Callable[[Array], Array]) -> Any:
        """Return a lazy array of the step's results."""
        # One row tells the type and the columns of the result.
        probe = step(np.zeros((1, self.n_features), self._dtype))
        axes: dict[str, Any] = (
            {"drop_axis": 1} if probe.ndim == 1 else {"chunks": (self.x.chunks[0], probe.shape[1:])}
        )
        return self.x.map_blocks(
            partial(_mapped, step, self.width, probe[:0]), dtype=probe.dtype, meta=probe[:0], **axes
        )

    def sample(self, n: int, seed: int) -> Block:
        """Return up to n rows from up to 16 blocks, or from all blocks if these have no rows."""
        blocks = self._blocks()
        spread = np.linspace(0, len(blocks) - 1, min(len(blocks), _SAMPLED_BLOCKS)).round().astype(int)
        for chosen in (spread, range(len(blocks))):
            pick = dask.delayed(partial(_sampled, -(-n // len(chosen)), seed), traverse=False)
            parts = _computed(dask.delayed(list)([pick(*blocks[k]) for k in chosen]))
            if parts := [part for part in parts if part is not None]:
                x, y, weight = zip(*parts, strict=True)
                others = (None if u[0] is None else np.concatenate(u) for u in (y, weight))
                return Block(np.concatenate(x), *others)
        raise self._no_rows()

    def _no_rows(self) -> ValueError:
        shape = (0, self.n_features)
        return ValueError(f"Found array with 0 sample(s) (shape={shape}) while a minimum of 1 is required.")

    @property
    def _dtype(self) -> Any:
        return np.float32 if self.x.dtype == np.float32 else np.float64

    def _blocks(self) -> list[tuple[Any, ...]]:
        """Return the rows, targets and weights of every block, as tasks."""
        n = self.x.numblocks[0]
        parts = (self.x, self.y, self.weight)
        return list(zip(*([None] * n if u is None else u.to_delayed().ravel() for u in parts), strict=True))


def _as_array(data: Any, name: str) -> Any:
    """Return a Dask array of a Dask collection."""
    if hasattr(data, "to_dask_array"):
        # Texts of pandas are not texts of NumPy.
        texts = data.ndim == 1 and not isinstance(data.dtype, np.dtype)
        return (data.astype(object) if texts else data).to_dask_array()
    if not isinstance(data, da.Array):
        raise TypeError(
            f"{name} is of type {type(data).__name__}; expected a Dask array or data frame, as the other is"
        )
    return data


def _header(x: Any) -> Any:
    """Return an empty table with the columns of x, for scikit-learn's checks of their number and names."""
    if not hasattr(x, "columns"):
        return np.empty((0, x.shape[1] if x.ndim > 1 else 0))
    import pandas as pd

    return pd.DataFrame(columns=list(x.columns))


def _aligned(x: Any, y: Any, name: str) -> Any:
    """Return targets or weights as a Dask array in the chunks of the rows."""
    rows = x.chunks[0]
    known = not np.isnan(rows).any()
    if isinstance(y, np.ndarray) and known and len(y) == sum(rows):
        return da.from_array(y, chunks=(rows, *y.shape[1:]))
    y = _as_array(y, name)
    if y.ndim == 2 and y.numblocks[1] > 1:
        y = y.rechunk({1: -1})
    if known and not np.isnan(y.chunks[0]).any():
        if len(x) != len(y):
            noun = "target" if name == "y" else "weight"
            raise ValueError(f"X has {len(x)} rows and {name} has {len(y)}; expected one {noun} per row")
        return y.rechunk({0: rows})
    if x.numblocks[0] != y.numblocks[0]:
        raise ValueError(
            f"X has {x.numblocks[0]} blocks of rows and {name} has {y.numblocks[0]}, of unknown lengths; expected the "
            "same partitions"
        )
    return y


def _checked(x: Any, y: Any = None, weight: Any = None, width: int = 1) -> ArrayRows | None:
    """Check one block, where it is; ``None`` if it has no rows.

    Its rows are read in smaller blocks, since features are wider than rows.
    """
    rows = check_array(x, dtype=DTYPES, accept_sparse="csr", ensure_min_samples=0)
    targets = None if y is None else np.asarray(y)
    if targets is not None and len(targets) != rows.shape[0]:
        raise ValueError(
            f"a block has {rows.shape[0]} rows and {len(targets)} targets; expected one target per row"
        )
    if targets is not None and targets.dtype.kind == "f" and not np.isfinite(targets).all():
        raise ValueError("y has values that are NaN or infinite; expected finite values")
    weights = None if weight is None else check_weights(weight, rows.shape[0])
    return ArrayRows(rows, targets, weights, width=width) if rows.shape[0] else None


def _reduced(
    step: Step[Result], combine: Callable[[Result, Result], Result], width: int, x: Any, y: Any, weight: Any
) -> Result | None:
    rows = _checked(x, y, weight, width)
    return None if rows is None else rows.reduce(step, combine)


def _combined(combine: Callable[[Result, Result], Result], results: list[Result | None]) -> Result | None:
    """Combine the results of blocks that have rows."""
    found = [result for result in results if result is not None]
    return reduce(combine, found) if found else None


def _mapped(step: Callable[[Array], Array], width: int, empty: Array, x: Any) -> Array:
    rows = _checked(x, width=width)
    return empty if rows is None else rows.map(step)


def _sampled(n: int, seed: int, x: Any, y: Any, weight: Any) -> Block | None:
    rows = _checked(x, y, weight)
    block = None if rows is None else rows.sample(n, seed)
    return block if block is not None and len(block.x) else None


def _computed(result: Any) -> Any:
    """Compute a task, with a bar if one is wanted: of tasks in this process, or Dask's own on a cluster."""
    if not wanted():
        return result.compute()
    try:
        from distributed import get_client, progress

        future = get_client().compute(result)
    except (ImportError, ValueError):  # no cluster
        with Callback(posttask=_count):
            return result.compute()
    progress(future, notebook=False)
    return future.result()


def _count(key: Any, result: Any, graph: Any, state: dict[str, Any], worker: Any) -> None:
    done = len(state["finished"])
    advance("tasks", done, done + sum(len(state[kind]) for kind in ("ready", "waiting", "running")))
