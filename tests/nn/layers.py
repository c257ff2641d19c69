"""Sizes, PyTorch's layer beside ours, and inputs for both."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

import hrf

WIDTH, HEADS, BATCH, LENGTH, KEYS = 12, 3, 2, 5, 7
ROUNDING = {"rtol": 1e-12, "atol": 1e-12}  # float64, sums of a dozen terms

positive = partial(hrf.Positive, n_projections=16)


def pair(**options):
    """PyTorch's layer with random biases, and ours with its parameters."""
    reference = nn.MultiheadAttention(WIDTH, HEADS, **options)
    for parameter in reference.parameters():
        nn.init.normal_(parameter, std=0.5)
    return reference, hrf.nn.MultiheadAttention.from_torch(reference, feature_map=positive)


def padding():
    mask = torch.zeros(BATCH, KEYS, dtype=torch.bool)
    mask[0, 4:] = mask[1, 2] = True
    return mask
