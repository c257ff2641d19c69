"""Bad input on one rank: what every rank says."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

import hrf
import hrf.distributed
from attention.data import inputs
from features.registry import DIM, MAPS, Builder
from ranked.processes import texts

Case = Callable[[bool, list[Any]], dict[str, Any]]


def positive(seed: int = 0) -> hrf.FeatureMap:
    return hrf.Positive(DIM, n_projections=6, seed=seed).double()


def edited(index: int, change: Callable[[Any], Any]) -> Case:
    """Change one of query, key and value on the bad rank."""

    def case(bad: bool, tokens: list[Any]) -> dict[str, Any]:
        if bad:
            tokens[index] = change(tokens[index].detach())
        return {}

    return case


def nan(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.index_fill(-2, torch.tensor([0]), torch.nan)


def argument(name: str, bad_value: Any, value: Any = None) -> Case:
    """Give an argument another value on the bad rank, or on every rank where the value is the same."""

    def case(bad: bool, tokens: list[Any]) -> dict[str, Any]:
        chosen = bad_value if bad else value
        return {} if chosen is None else {name: chosen() if callable(chosen) else chosen}

    return case


def everywhere(name: str, value: Callable[[], Any]) -> Case:
    return argument(name, value, value)


def clustered(**options: Any) -> hrf.FeatureMap:
    return Builder(None, "orthogonal", 0).clustered("separable", **options).double()


CASES: dict[str, Case] = {
    "other map": argument("feature_map", lambda: positive(1)),
    "other kind of map": argument(
        "feature_map", lambda: MAPS["angular hybrid"](Builder(None, "iid", 0)).double()
    ),
    "nan in key": edited(1, nan),
    "nan in query": edited(0, nan),
    "a string": edited(0, lambda _: "query"),
    "integers": edited(2, lambda t: t.long()),
    "other width": edited(1, lambda t: t[..., :-1]),
    "other heads": lambda bad, tokens: (
        tokens.__setitem__(slice(None), [t[:, : 2 + 2 * (not bad)] for t in tokens]) or {}
    ),
    "other batch": lambda bad, tokens: tokens.__setitem__(slice(None), [t[: 2 - bad] for t in tokens]) or {},
    "other dtype": lambda bad, tokens: (
        tokens.__setitem__(slice(None), [t.float() for t in tokens] if not bad else tokens)
        or {"feature_map": positive().float()}
    ),
    "other direction": argument("is_causal", True),
    "other scale": argument("scale", 0.7),
    "bad scale": argument("scale", -1.0),
    "bad rule": argument("denominator", "ignore"),
    "queries and keys that do not pair": lambda bad, tokens: (
        tokens.__setitem__(0, tokens[0][..., : 4 - bad, :]) or {"is_causal": True}
    ),
    "exact pairs": everywhere("feature_map", lambda: clustered(exact=torch.eye(2, dtype=torch.bool))),
    "moving centres": everywhere("feature_map", lambda: clustered(recenter=True)),
    "summaries": everywhere("feature_map", hrf.SummarisedAttention),
    "no map": argument("feature_map", lambda: "positive"),
    "batch of packed sequences": everywhere("cu_seqlens", lambda: torch.tensor([0, 8])),
    "no grad": argument("grad", False),
    "small denominator": lambda bad, tokens: (
        tokens.__setitem__(slice(2), [(99 if bad else 0.1) * tokens[0].detach(), 0.1 * tokens[1].detach()])
        or {"denominator": "raise", "feature_map": hrf.Trigonometric(DIM, n_projections=6, seed=0).double()}
    ),
}
ONE = {
    name: CASES[name]
    for name in ("nan in key", "a string", "bad scale", "exact pairs", "summaries", "no map")
}
PACKED: dict[str, Case] = {
    "packed too short": everywhere("cu_seqlens", lambda: torch.tensor([0, 3])),
    "packed in a list": argument("cu_seqlens", lambda: [0, 12], lambda: torch.tensor([0, 12])),
    "packed on one rank": argument("cu_seqlens", lambda: torch.tensor([0, 4 * distributed.get_world_size()])),
    "packed in another way": argument(
        "cu_seqlens",
        lambda: torch.tensor([0, 1, 4 * distributed.get_world_size()]),
        lambda: torch.tensor([0, 2, 4 * distributed.get_world_size()]),
    ),
}


def refused(case: Case, batch: int) -> str:
    """Return the type and text of this rank's error; the last rank but one is the bad one."""
    bad = distributed.get_rank() == max(0, distributed.get_world_size() - 2)
    tokens: list[Any] = inputs(batch, length=4)
    options = {"feature_map": positive(), **case(bad, tokens)}
    grad = torch.no_grad if not options.pop("grad", True) else nullcontext

    def call() -> None:
        with grad():
            hrf.distributed.attention(*tokens, **options)

    return texts({"call": call})["call"]


def every_refusal() -> dict[str, str]:
    """Texts by case; after each, the group still works."""
    alone, found = distributed.get_world_size() == 1, {}
    for cases, batch in ((ONE, 2),) if alone else ((CASES, 2), (PACKED, 1)):
        for name, case in cases.items():
            found[name] = refused(case, batch)
            assert hrf.distributed.attention(*inputs(1, length=4), positive()).isfinite().all()
    return found


def missing_rank() -> str:
    """The last rank does not come."""
    # Ranks leave this group at different times, and must not take the store along.
    group = distributed.new_group(timeout=timedelta(seconds=2))
    if distributed.get_rank() < distributed.get_world_size() - 1:
        try:
            hrf.distributed.attention(*inputs(1, length=4), positive(), group=group)
        except hrf.distributed.RankError as error:
            text = str(error)
    else:
        text = "did not come"
    distributed.barrier()
    return text


def missing_in_backward() -> str:
    """The first rank raises between its forward and its backward pass."""
    group = distributed.new_group(timeout=timedelta(seconds=2))
    out = hrf.distributed.attention(*inputs(1, length=4), positive(), group=group, is_causal=True)
    text = "raised"
    if distributed.get_rank():
        try:
            out.sum().backward()
        except hrf.distributed.RankError as error:
            text = str(error)
    distributed.barrier()
    return text
