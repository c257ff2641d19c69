"""Data sets of the paper's experiments, one row a point, in float64; a ``ValueError`` says what is missing."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["boston", "wine"]

_EXTRA = "(pip install 'hybrid-random-features[learn]')"
_BOSTON = Path("boston-housing") / "boston_house_prices.csv"


def wine() -> Tensor:
    """The 178 wines of scikit-learn, 13 measurements each."""
    try:
        from sklearn.datasets import load_wine  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ValueError(f"the wine data need scikit-learn {_EXTRA}") from error
    return torch.from_numpy(load_wine().data).double()


def boston() -> Tensor:
    """The 506 districts of Boston, 13 numbers each, without the price.

    They are read from ``$HRF_DATA/boston-housing/boston_house_prices.csv`` if there is such a file, and else
    downloaded from OpenML by scikit-learn, which keeps them.
    """
    path = Path(os.environ.get("HRF_DATA", "")) / _BOSTON
    if "HRF_DATA" in os.environ and path.is_file():
        return _read(path)
    try:
        from sklearn.datasets import fetch_openml  # type: ignore[import-untyped, unused-ignore]

        data = fetch_openml(name="boston", version=1, as_frame=False, parser="liac-arff").data
    except (ImportError, OSError, ValueError) as error:
        raise ValueError(
            f"the Boston data are missing: there is no {_BOSTON} in the directory HRF_DATA, and OpenML did not answer; "
            "set HRF_DATA to where that file is, or go online"
        ) from error
    return torch.from_numpy(data.astype(float))


def _read(path: Path) -> Tensor:
    """A line with the shape, a line with names, then numbers; the last column is the price."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))[2:]
    try:
        return torch.tensor([[float(cell) for cell in row[:-1]] for row in rows], dtype=torch.float64)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
