"""The data: elevators, protein, kin40k and bike (regression), letter (26 classes)."""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.minilm import data_folder

__all__ = ["SETS", "Split", "read", "split"]

Array = NDArray[np.float64]

REGRESSION = ("elevators", "protein", "kin40k", "bike")
SETS = (*REGRESSION, "letter")
LETTER_TRAIN = 16_000  # the usual split: the first rows train


class Split(NamedTuple):
    """Rows to train on and to test on; columns are standardised by the training rows.

    Attributes:
        x: ``(n, d)``.
        y: ``(n, k)``: the standardised target, or one indicator per class.
        new_x: ``(m, d)``.
        new_y: ``(m, k)``.
        classes: whether targets are indicators of classes.
    """

    x: Array
    y: Array
    new_x: Array
    new_y: Array
    classes: bool


@cache
def read(name: str) -> tuple[Array, NDArray[np.str_] | Array, NDArray[np.bool_]]:
    """Return rows, targets, and which rows are for testing in each of the splits ``(N, splits)``."""
    if name == "letter":
        text = _lines(data_folder() / "letter" / "LetterRecognition.csv.gz")
        cells = np.array([line.split(",") for line in text[1:]])
        test = np.arange(len(cells))[:, None] >= LETTER_TRAIN
        return cells[:, 1:].astype(np.float64), np.char.strip(cells[:, 0], '"'), test
    folder = data_folder() / "uci-regression"
    table = np.loadtxt(_lines(folder / f"{name}.csv.gz"), delimiter=",")
    test = np.loadtxt(_lines(folder / f"{name}.test_mask.csv.gz"), delimiter=",").astype(bool)
    return table[:, :-1], table[:, -1], test


def split(name: str, seed: int, rows: int, new_rows: int) -> Split:
    """Return a random sample of up to ``rows`` training rows and ``new_rows`` test rows of split number ``seed``."""
    x, y, masks = read(name)
    mask = masks[:, seed % masks.shape[1]]
    generator = np.random.default_rng(seed)
    train = generator.permutation(np.flatnonzero(~mask))[:rows]
    test = generator.permutation(np.flatnonzero(mask))[:new_rows]
    mean, deviation = x[train].mean(0), x[train].std(0)
    varies = deviation > 1e-9 * np.abs(mean)  # not only by rounding
    scaled = (x - mean) / np.where(varies, deviation, np.inf)
    if y.dtype.kind == "U":
        targets = (y[:, None] == np.unique(y)).astype(np.float64)
    else:
        targets = ((y - y[train].mean()) / y[train].std())[:, None]
    return Split(scaled[train], targets[train], scaled[test], targets[test], y.dtype.kind == "U")


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is not there; set HRF_DATA to the folder that holds {path.parent.name}/"
        )
    return gzip.decompress(path.read_bytes()).decode().splitlines()
