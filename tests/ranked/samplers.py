"""Softmax sampling over ranks against one sampler of all classes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, distributed

import hrf
import hrf.distributed
from hrf.sampling import SoftmaxSampler
from ranked.cases import part
from ranked.processes import texts

DIM, CLASSES = 4, 64
CLASS_EMBEDDINGS = 0.6 * torch.randn(CLASSES, DIM, generator=Generator().manual_seed(0), dtype=torch.float64)
QUERIES = torch.randn(2, 3, DIM, generator=Generator().manual_seed(1), dtype=torch.float64)
EVERY = torch.arange(CLASSES).expand(2, 3, CLASSES)
DRAWS = 20_000


def sizes(aligned: bool) -> list[int]:
    """Classes per rank: a multiple of the 16 classes per node at the top, or anything."""
    size = distributed.get_world_size()
    each = 16 if aligned else 1
    return [each] * (size - 1) + [CLASSES - each * (size - 1)]


def both(kind: type[hrf.FeatureMap], aligned: bool) -> tuple[Any, SoftmaxSampler]:
    phi = kind(DIM, n_projections=8, seed=2).double()
    own = CLASS_EMBEDDINGS[part(sizes(aligned))]
    sharded = hrf.distributed.ShardedSoftmaxSampler(own, phi, leaf_size=4)
    return sharded, SoftmaxSampler(CLASS_EMBEDDINGS, phi, leaf_size=4)


def measured() -> dict[str, Any]:
    """Differences of logs, draws and frequencies, by kind of map and of shares."""
    hrf.tuning.TREE_TOP = 4  # so that few classes make several levels
    found: dict[str, Any] = {}
    for kind in (hrf.Positive, hrf.Trigonometric):
        for aligned in (True, False):
            sharded, single = both(kind, aligned)
            mine, theirs = sharded.log_prob(QUERIES, EVERY), single.log_prob(QUERIES, EVERY)
            ids, log_probs = sharded.sample(QUERIES, 7, seed=3)
            stated = sharded.log_prob(QUERIES, ids)
            many = sharded.sample(QUERIES[0, 0].expand(DRAWS, DIM), 2, seed=4).ids
            found[f"{kind.__name__}, aligned={aligned}"] = {
                "difference": float((mine.exp() - theirs.exp()).abs().max()),
                "sum": float((mine.exp().sum(-1) - 1).abs().max()),
                "stated": float((stated - log_probs).abs().max()),
                "ids": ids.tolist(),
                "counts": many.flatten().bincount(minlength=CLASSES).tolist(),
                "expected": (2 * DRAWS * theirs[0, 0].exp()).tolist(),
                "own": (2 * DRAWS * mine[0, 0].exp()).tolist(),
            }
    return found


def updated() -> float:
    """The difference after an update of classes of several ranks."""
    sharded, single = both(hrf.Positive, True)
    ids = torch.tensor([0, 17, 63])
    new = torch.randn(3, DIM, generator=Generator().manual_seed(5), dtype=torch.float64)
    sharded.update_(ids, new)
    single.update_(ids, new)
    sharded.rebuild_()
    return float((sharded.log_prob(QUERIES, EVERY) - single.log_prob(QUERIES, EVERY)).abs().max())


def refusals() -> dict[str, str]:
    """What this rank says to bad input on the last rank."""
    bad = distributed.get_rank() == distributed.get_world_size() - 1
    sharded, _ = both(hrf.Positive, True)
    own, phi = CLASS_EMBEDDINGS[part(sizes(True))], sharded.tree.feature_map
    build = hrf.distributed.ShardedSoftmaxSampler
    calls = {
        "other queries": lambda: sharded.sample(QUERIES + bad, 3),
        "other k": lambda: sharded.sample(QUERIES, 3 + bad),
        "other classes": lambda: sharded.log_prob(QUERIES, EVERY[..., : 4 + bad]),
        "nan": lambda: sharded.sample(QUERIES / (not bad), 3),
        "too many": lambda: sharded.sample(QUERIES, CLASSES + 1),
        "not a class": lambda: sharded.log_prob(QUERIES, EVERY + bad),
        "no classes": lambda: build(own[: 0 if bad else None], phi),
        "other radius": lambda: build(own, phi, radius=2.0 if bad else None),
        "other map": lambda: build(own, hrf.Positive(DIM, n_projections=8, seed=7 + bad).double()),
        "a list": lambda: build(own.tolist() if bad else own, phi),
    }
    return texts(calls)
