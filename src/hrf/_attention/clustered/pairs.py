"""Pairs of clusters with a map each: ``paper`` and ``moments``."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from hrf import tuning
from hrf._attention.clustered.tokens import LOG2E, PairEngine, added
from hrf.features.base import Side
from hrf.features.grouping import Groups, gather_rows
from hrf.numerics import Features, finite

__all__ = ["Pairs"]


class Pairs(PairEngine):
    """Sums with a map per pair of clusters.

    Clusters are padded to the largest, and a few places of all of them are mapped at a time.
    """

    @override
    def sums(self) -> Features:
        states, table = self._states()
        if self.active is not None:
            table = table.masked_fill(~self.active.view(table.shape), -torch.inf)
        groups = Groups.of(self.queries.labels, self.phi.n_q)
        tokens = (
            gather_rows(self.queries.tokens, groups.members[..., some])
            for some in self._places(groups.filled)
        )
        read = [self.recomputed(self._read, some, states, table) for some in tokens]
        index = self.queries.labels * groups.filled.shape[-1] + groups.place
        every = (torch.cat(t, -2).flatten(-3, -2) for t in zip(*read, strict=True))
        return Features(*(gather_rows(t, index).flatten(0, -3) for t in every))

    def _states(self) -> tuple[Tensor, Tensor]:
        """Sum φ(y) v(y)ᵀ for all pairs, ``(..., n_q, n_k·D, c)``; the scales are ``(..., n_q, n_k, 1, 1)``."""
        values = self.columns(self.values)
        groups = Groups.of(self.keys.labels, self.phi.n_k + 1)  # the last are keys left out
        members, filled = (t[..., :-1, :] for t in (groups.members, groups.filled))
        total: Features | None = None
        for some in self._places(filled):
            tokens, v = (gather_rows(t, members[..., some]) for t in (self.keys.tokens, values))
            part = self.recomputed(self._write, tokens, v, filled[..., some].unsqueeze(-1))
            total = added(total, part)
        assert total is not None
        return total.values.flatten(-3, -2), total.log_scale

    def _write(self, tokens: Tensor, values: Tensor, filled: Tensor) -> Features:
        """Return the states of keys in some places of all clusters, ``(..., n_k, places, ·)`` each."""
        features, logs = self._map(tokens.unsqueeze(-4) * self.keys.root, "key")
        logs = logs.masked_fill(~filled.unsqueeze(-4), -torch.inf)
        scale = logs.detach().amax(-2, keepdim=True)
        weighted = features * (logs - finite(scale)).exp2()
        return Features(weighted.mT @ values.masked_fill(~filled, 0).unsqueeze(-4), scale)

    def _read(self, tokens: Tensor, states: Tensor, table: Tensor) -> Features:
        """Return the sums of queries in some places of all clusters, ``(..., n_q, places, ·)``."""
        features, logs = self._map(tokens.unsqueeze(-3) * self.queries.root, "query")
        logs = logs + table
        scale = logs.detach().amax(-3, keepdim=True)
        weighted = features * (logs - finite(scale)).exp2()
        return Features(weighted.transpose(-3, -2).flatten(-2) @ states, scale.squeeze(-3))

    def _map(self, u: Tensor, side: Side) -> Features:
        """Map ``(..., H, n_q or 1, n_k or 1, places, d)`` by the map of every pair; logs are to the base 2."""
        phi = self.phi
        assert phi.feature_map is not None
        every = u.expand(*u.shape[:-4], phi.n_q, phi.n_k, -1, -1)
        features = phi.feature_map.scaled(every.flatten(-4 if phi.heads is None else -5, -3), side)
        values, log_scale = (t.view(*every.shape[:-1], -1) for t in features)
        return Features(values, log_scale * LOG2E)

    def _places(self, filled: Tensor) -> list[slice]:
        """Cut the places that hold tokens into batches whose features stay small."""
        assert self.phi.feature_map is not None
        n_places = max(1, int(filled.sum(-1).max()))
        n_rows = self.queries.centers.shape[0] * self.phi.n_q * self.phi.n_k
        step = max(1, tuning.CLUSTER_FLOATS // (n_rows * self.phi.feature_map.feature_dim))
        return [slice(start, min(start + step, n_places)) for start in range(0, n_places, step)]
