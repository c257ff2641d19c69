"""Small, learnable text in place of the real texts, and settings that are smaller than quick ones."""

from __future__ import annotations

from dataclasses import replace

import torch

from hrf_paper.datasets import Corpus, Vocabulary

WORDS = 60


def corpus(n_words: int = WORDS) -> Corpus:
    """Return a text in which the previous word determines the next, nine times in ten."""
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(n_words, generator=generator).repeat(6000 // n_words)
    noise = torch.randint(n_words, order.shape, generator=generator)
    words = torch.where(torch.rand(order.shape, generator=generator) < 0.1, noise, order)
    return Corpus(words, words[:2000], words[2000:4000], Vocabulary([str(i) for i in range(n_words)]))


def smaller(experiment):
    """Return an experiment whose quick settings take seconds, where trainings would take most of a minute."""
    quick = experiment.quick
    if experiment.name in ("ptb-metrics", "wikitext2-metrics"):
        training = replace(quick.training, width=16, epochs=2, words=1_500, judged_words=1_000)
        quick = replace(quick, training=training, queries=8, fitted=150, redraws=2)
    elif experiment.name == "sampled-softmax":
        training = replace(quick.training, width=16, words=1_500, judged_words=1_000)
        quick = replace(quick, training=training, features=16)
    elif experiment.name == "speech":
        quick = replace(quick, draws=1, lengths=(100,), tuned=("exact", "FAVOR+ 128"), test_utterances=2)
        quick = replace(quick, train_utterances=16)
    elif experiment.name == "locomotion":
        training = replace(quick.training, rehearsals=1, rehearsal_pairs=1, judge_every=1)
        quick = replace(quick, training=training, fields=1)
    elif experiment.name == "sweeping":
        data = replace(quick.training.data, episodes=2, glimpses=20, pupil_episodes=1)
        training = replace(quick.training, data=data, steps=2, batch=4)
        methods = ("exact", "FAVOR+ 128", "HRF-A (8, 8)", "uniform", "blind")
        quick = replace(quick, training=training, methods=methods, episodes=1)
    return replace(experiment, quick=quick)
