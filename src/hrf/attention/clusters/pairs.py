"""Pairs of clusters with a map each."""

from __future__ import annotations

import torch
from torch import Tensor

from hrf.attention.clusters import common
from hrf.attention.clusters.common import LOG2E, Engine
from hrf.features.base import Features, Side, finite
from hrf.features.grouping import Groups, gather_rows

__all__ = ["Pairs"]


class Pairs(Engine):
    """For ``paper`` and ``moments``, a map a pair of clusters.

    Clusters are padded to the largest, and some places of all of them are mapped at a time.
    """

    def sums(self) -> Features:
        """Those of all queries."""
        states, table = self._states()
        if self.active is not None:
            table = table.masked_fill(~self.active.view(table.shape), -torch.inf)
        groups = Groups.of(self.queries.labels, self.phi.n_q)
        sums, scales = [], []
        for some in self._places(groups.filled):
            tokens = gather_rows(self.queries.tokens, groups.members[..., some]) * self.queries.root
            features, logs = self._map(tokens.unsqueeze(-3), "query")
            logs = logs + table
            scale = logs.detach().amax(-3, keepdim=True)
            weighted = features * (logs - finite(scale)).exp()
            sums.append(weighted.transpose(-3, -2).flatten(-2) @ states)  # (..., n_q, places, c)
            scales.append(scale.squeeze(-3) * LOG2E)
        index = self.queries.labels * groups.filled.shape[-1] + groups.place
        return Features(
            *(gather_rows(torch.cat(t, -2).flatten(-3, -2), index).flatten(0, -3) for t in (sums, scales))
        )

    def _states(self) -> tuple[Tensor, Tensor]:
        """Sums of φ(y) v(y)ᵀ for all pairs, ``(..., n_q, n_k·D, c)``, and their scales ``(..., n_q, n_k, 1, 1)``."""
        phi, values = self.phi, self._columns(self.values)
        assert phi.feature_map is not None
        groups = Groups.of(self.keys.labels, phi.n_k + 1)  # the last are those left out
        groups = Groups(groups.members[..., :-1, :], groups.filled[..., :-1, :], groups.place)
        table = values.new_full((*values.shape[:-2], phi.n_q, phi.n_k, 1, 1), -torch.inf)
        states = values.new_zeros(*table.shape[:-2], phi.feature_map.feature_dim, values.shape[-1])
        for some in self._places(groups.filled):
            members, empty = groups.members[..., some], ~groups.filled[..., some].unsqueeze(-1)
            tokens = gather_rows(self.keys.tokens, members) * self.keys.root
            features, logs = self._map(tokens.unsqueeze(-4), "key")
            logs = logs.masked_fill(empty.unsqueeze(-4), -torch.inf)
            scale = torch.maximum(table, logs.detach().amax(-2, keepdim=True))
            weighted = features * (logs - finite(scale)).exp()
            product = weighted.mT @ gather_rows(values, members).masked_fill(empty, 0).unsqueeze(-4)
            states = states * (table - finite(scale)).exp() + product
            table = scale
        return states.flatten(-3, -2), table

    def _map(self, u: Tensor, side: Side) -> Features:
        """Features of ``(..., H, n_q or 1, n_k or 1, places, d)`` by the map of every pair of clusters."""
        phi = self.phi
        assert phi.feature_map is not None
        every = u.expand(*u.shape[:-4], phi.n_q, phi.n_k, -1, -1)
        features = phi.feature_map._scaled(every.flatten(-4 if phi.heads is None else -5, -3), side)
        return Features(*(t.view(*every.shape[:-1], -1) for t in features))

    def _places(self, filled: Tensor) -> list[slice]:
        """Places of the clusters that hold tokens, so many at a time that their features stay small."""
        assert self.phi.feature_map is not None
        n_places = int(filled.sum(-1).max())
        n_rows = self.queries.centers.shape[0] * self.phi.n_q * self.phi.n_k
        step = max(1, common.FLOATS // (n_rows * self.phi.feature_map.feature_dim))
        return [slice(start, min(start + step, n_places)) for start in range(0, n_places, step)]
