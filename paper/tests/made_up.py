"""Small, learnable text in place of the real texts."""

from __future__ import annotations

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
