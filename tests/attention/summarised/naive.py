"""Summarised attention of one head, one query and one cluster at a time, as its definition reads."""

from __future__ import annotations

import torch
from torch import Tensor

from hrf._attention.summarised.plan import Heads, Plan


def members(parts, head: int) -> list[Tensor]:
    """Tokens of each part of a head."""
    return [i[f] for i, f in zip(parts.tokens[head], parts.filled[head], strict=True)]


def exact_keys(plan: Plan, head: int, group: int) -> set[int]:
    row = head * plan.groups.tokens.shape[1] + group
    places = plan.exact[plan.starts[row] : plan.starts[row + 1]]
    return set(plan.clusters.tokens[head].flatten()[places].tolist())


def opened_by(plan: Plan, head: int, group: int, place: int) -> set[int]:
    """Clusters that a query opens."""
    row = head * plan.groups.tokens.shape[1] + group
    query = row * plan.groups.tokens.shape[2] + place
    return {c for q, c in plan.opened.tolist() if q == query}


def naive(heads: Heads, plan: Plan) -> Tensor:
    """Return ``(N, L, d_v)``, zeros for padding."""
    return torch.stack([_head(heads, plan, n) for n in range(len(heads.x))])


def _head(heads: Heads, plan: Plan, n: int) -> Tensor:
    x, y, v = heads.x[n], heads.y[n], heads.v[n]
    groups, clusters = members(plan.groups, n), members(plan.clusters, n)
    residuals = [x[g] - x[g].mean(0) for g in groups]
    pool = torch.cat(residuals)
    metric = pool.T @ pool / len(pool)
    real = y[heads.keys[n]]
    spread_of_keys = torch.cov(real.T, correction=0).reshape(2 * real.shape[1:])
    lengths = [torch.einsum("qd,de,qe->q", r, spread_of_keys, r) for r in residuals]
    mean_length = torch.cat(lengths).mean()
    outputs: list[Tensor] = [torch.zeros_like(v[0])] * len(x)
    for i, group in enumerate(groups):
        gamma = lengths[i].mean() / mean_length
        exact = exact_keys(plan, n, i)
        summaries = [
            _summary(x[group].mean(0), gamma, metric, y[c], v[c], [int(t) not in exact for t in c])
            for c in clusters
        ]
        for place, (token, delta) in enumerate(zip(group.tolist(), residuals[i], strict=True)):
            opened = opened_by(plan, n, i, place)
            met = exact | {int(j) for c in opened for j in clusters[c]}
            pairs = [(x[token] @ y[j], v[j]) for j in met]
            pairs += [
                (a + delta @ mu, value)
                for c, (a, mu, value) in enumerate(summaries)
                if a is not None and c not in opened
            ]
            logits, values = (torch.stack(u) for u in zip(*pairs, strict=True))
            outputs[token] = logits.softmax(0) @ values
    return torch.stack(outputs)


def _summary(r: Tensor, gamma: Tensor, metric: Tensor, y: Tensor, v: Tensor, rest: list[bool]):
    """Return log A, μ and V of the keys of a cluster that are not exact."""
    if not any(rest):
        return None, None, None
    centred = y - y.mean(0)
    spread = torch.einsum("kd,de,ke->k", centred, metric, centred)
    logits = (y @ r + (gamma * spread / 2).clamp(max=10))[rest]
    weights = logits.softmax(0)
    mu, value = weights @ y[rest], weights @ v[rest]
    offset = mu - y.mean(0)
    return logits.logsumexp(0) - (gamma * (offset @ metric @ offset) / 2).clamp(max=10), mu, value
