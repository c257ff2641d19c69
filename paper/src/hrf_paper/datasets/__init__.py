"""Data sets of the paper's experiments, read from ``$HRF_DATA`` or downloaded."""

from hrf_paper.datasets.files import MissingData
from hrf_paper.datasets.points import boston, wine
from hrf_paper.datasets.text import Batch, Corpus, Vocabulary, batches, penn_treebank, read_text, wikitext2

__all__ = [
    "Batch",
    "Corpus",
    "MissingData",
    "Vocabulary",
    "batches",
    "boston",
    "penn_treebank",
    "read_text",
    "wikitext2",
    "wine",
]
