"""Texts: read, downloaded, damaged, missing; vocabulary and batches; counts of the real texts."""

from __future__ import annotations

import gzip
from hashlib import sha256

import pytest
import torch

from hrf_paper import datasets
from hrf_paper.datasets import data_folder

TEXTS = {"train": " a b a <unk>\n\n b a\n", "valid": "a c\n", "test": "b\n"}


@pytest.fixture
def published(tmp_path, monkeypatch):
    """Publish a small Penn Treebank; return the folder for data."""
    (tmp_path / "origin").mkdir()
    for split, content in TEXTS.items():
        (tmp_path / "origin" / f"ptb.{split}.txt").write_text(content, encoding="utf-8")
    address = (tmp_path / "origin").as_uri() + "/ptb.{}.txt"
    checksums = [sha256(content.encode()).hexdigest() for content in TEXTS.values()]
    monkeypatch.setitem(datasets._SOURCES, "ptb", (address, *checksums))
    monkeypatch.setenv("HRF_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def test_words_are_numbered_by_frequency_and_lines_end(published):
    corpus = datasets.penn_treebank()
    assert corpus.vocabulary.words == ("a", "<eos>", "b", "<unk>")
    assert corpus.train.tolist() == [0, 2, 0, 3, 1, 1, 2, 0, 1]
    assert corpus.valid.tolist() == [0, 3, 1]  # "c" is unknown
    assert [corpus.vocabulary.words[i] for i in corpus.test] == ["b", "<eos>"]
    assert len(corpus.vocabulary) == 4


def test_downloads_are_kept(published):
    first = datasets.penn_treebank()
    assert sorted(path.name for path in (published / "ptb").iterdir()) == [
        "ptb.test.txt.gz",
        "ptb.train.txt.gz",
        "ptb.valid.txt.gz",
    ]
    for path in (published.parent / "origin").iterdir():
        path.unlink()
    again = datasets.penn_treebank(download=False)
    assert all(a.equal(b) for a, b in zip(first[:3], again[:3], strict=True))


def test_missing_files_are_named_with_the_way_out(published):
    with pytest.raises(
        datasets.MissingData, match=r"ptb\.train\.txt\.gz is not there; set HRF_DATA to the folder"
    ):
        datasets.penn_treebank(download=False)
    (published.parent / "origin" / "ptb.train.txt").unlink()
    with pytest.raises(
        datasets.MissingData, match=r"origin/ptb\.train\.txt cannot be reached .*; set HRF_DATA"
    ):
        datasets.penn_treebank()
    assert not published.exists()


def test_other_contents_are_refused(published):
    (published.parent / "origin" / "ptb.train.txt").write_text("other", encoding="utf-8")
    with pytest.raises(ValueError, match=r"origin/ptb\.train\.txt has the SHA-256 .*; expected"):
        datasets.penn_treebank()
    assert not published.exists()
    path = published / "ptb" / "ptb.train.txt.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(b"other"))
    with pytest.raises(ValueError, match=r"ptb\.train\.txt\.gz has the SHA-256"):
        datasets.penn_treebank()
    path.write_bytes(b"no gzip")
    with pytest.raises(ValueError, match=r"ptb\.train\.txt\.gz cannot be read as gzip"):
        datasets.penn_treebank()


def test_the_folder_of_data(monkeypatch, tmp_path):
    monkeypatch.setenv("HRF_DATA", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder() == tmp_path / ".cache" / "hrf"


def test_errors_say_what_was_received():
    with pytest.raises(
        ValueError, match="'ptb', 'dev'; expected one of ptb, wikitext2 and one of train, valid"
    ):
        datasets.read_text("ptb", "dev")
    with pytest.raises(ValueError, match="3 words have repetitions"):
        datasets.Vocabulary(["a", "b", "a"])
    with pytest.raises(ValueError, match="not in the vocabulary"):
        datasets.Vocabulary(["a"]).encode(["b"])
    with pytest.raises(ValueError, match="the text has 5 words; 3 parts"):
        datasets.batches(torch.arange(5), 3, 1)


@pytest.mark.parametrize(("n", "batch_size", "length"), [(25, 3, 3), (24, 4, 5), (7, 1, 10), (10, 5, 1)])
def test_batches_read_every_word_once_and_ask_for_the_next(n, batch_size, length):
    found = datasets.batches(torch.arange(n), batch_size, length)
    inputs, targets = (torch.cat(parts) for parts in zip(*found, strict=True))
    steps = n // batch_size
    expected = torch.arange(steps * batch_size).view(batch_size, steps).mT
    assert inputs.equal(expected[:-1])
    assert targets.equal(expected[1:])
    assert all(len(batch.inputs) == length for batch in found[:-1])
    assert 1 <= len(found[-1].inputs) <= length


COUNTS = {
    "penn_treebank": (929_589, 73_760, 82_430, 10_000),
    "wikitext2": (2_088_628, 217_646, 245_569, 33_278),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_of_the_real_texts(name):
    try:
        corpus = getattr(datasets, name)(download=False)
    except datasets.MissingData as error:
        pytest.skip(str(error))
    assert (*map(len, corpus),) == COUNTS[name]
    frequencies = corpus.train.bincount()
    assert (frequencies[:-1] >= frequencies[1:]).all()
