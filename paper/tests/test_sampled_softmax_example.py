"""The example runs from end to end, on a made-up text in place of Penn Treebank."""

from __future__ import annotations

import pytest
import torch

from examples import sampled_softmax
from hrf_paper import datasets
from hrf_paper.datasets import Corpus, Vocabulary

WORDS = 60


@pytest.fixture
def corpus():
    """Each word follows from the one before it."""
    order = torch.randperm(WORDS, generator=torch.Generator().manual_seed(0))
    words = order.repeat(500)
    return Corpus(words, words[:4000], words[:4000], Vocabulary([str(i) for i in range(WORDS)]))


@pytest.mark.slow
@pytest.mark.parametrize("model", sampled_softmax.MODELS)
def test_models_learn_with_tied_weights(corpus, model):
    assert sampled_softmax.run(corpus, model, "features", steps=40) < WORDS / 4


def test_prints_a_line_for_every_model(corpus, monkeypatch, capsys):
    monkeypatch.setattr(sampled_softmax, "penn_treebank", lambda: corpus)
    assert sampled_softmax.main(["--steps", "1", "--sampler", *sampled_softmax.SAMPLERS]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        [model, sampler] for model in ("lstm", "transformer") for sampler in sampled_softmax.SAMPLERS
    ]


def test_a_missing_text_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HRF_DATA", str(tmp_path))
    nowhere = (tmp_path / "nowhere-{}").as_uri().replace("%7B%7D", "{}")
    monkeypatch.setitem(datasets._SOURCES, "ptb", (nowhere, *datasets._SOURCES["ptb"][1:]))
    assert sampled_softmax.main([]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "HRF_DATA" in error
