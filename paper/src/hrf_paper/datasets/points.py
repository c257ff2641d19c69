"""Data sets of points, one row per point, in float64."""

from __future__ import annotations

import csv
from pathlib import Path

import torch
from torch import Tensor

from hrf_paper.datasets.files import MissingData, data_folder

__all__ = ["boston", "wine"]

_EXTRA = "(pip install scikit-learn)"
_BOSTON = Path("boston-housing") / "boston_house_prices.csv"


def wine() -> Tensor:
    """Return the 178 wines of scikit-learn, 13 measurements each."""
    try:
        from sklearn.datasets import load_wine  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise MissingData(f"the wine data need scikit-learn {_EXTRA}") from error
    return torch.from_numpy(load_wine().data).double()


def boston() -> Tensor:
    """Return the 506 districts of Boston, 13 numbers each, without the price.

    They are read from ``boston-housing/boston_house_prices.csv`` in ``$HRF_DATA``, or ``~/.cache/hrf``. If there is
    no such file, scikit-learn downloads them from OpenML and caches them.
    """
    path = data_folder() / _BOSTON
    if path.is_file():
        return _read(path)
    try:
        from sklearn.datasets import fetch_openml  # type: ignore[import-untyped, unused-ignore]

        data = fetch_openml(name="boston", version=1, as_frame=False, parser="liac-arff").data
    except (ImportError, OSError, ValueError) as error:
        raise MissingData(
            f"{path} is not there and OpenML did not answer; set HRF_DATA to the folder that holds "
            f"{_BOSTON.parent}/, or go online"
        ) from error
    return torch.from_numpy(data.astype(float))


def _read(path: Path) -> Tensor:
    """Read a line with the shape, a line with names, then numbers; the last column is the price."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))[2:]
    try:
        return torch.tensor([[float(cell) for cell in row[:-1]] for row in rows], dtype=torch.float64)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
