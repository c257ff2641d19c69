"""One rank's part of a call of attention: checked inputs and the carry of its own keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hrf._attention.call import runner
from hrf._attention.carry import Carry
from hrf._attention.denominator import Denominator, Rule
from hrf._attention.dispatch import engine_for
from hrf._attention.inputs import Inputs, check
from hrf._attention.state import read, write
from hrf._attention.summarised.method import SummarisedAttention
from hrf.distributed.agreement import Description, together
from hrf.distributed.maps import fingerprint
from hrf.distributed.ranks import Ranks
from hrf.features.base import FeatureMap
from hrf.numerics import check_finite

__all__ = ["Shard", "finished"]


class Shard(NamedTuple):
    """The tokens of one rank.

    Attributes:
        inputs: checked.
        feature_map: the map; with fixed centres where attention is causal.
        rule: for denominators.
        is_causal: whether queries see no later key.
    """

    inputs: Inputs
    feature_map: FeatureMap
    rule: Denominator
    is_causal: bool

    @classmethod
    def of(
        cls,
        tokens: tuple[Tensor, Tensor, Tensor],
        feature_map: FeatureMap,
        rule: Rule | Denominator,
        *,
        is_causal: bool,
        paired: bool,
        key_padding_mask: Tensor | None,
        scale: float | None,
    ) -> Shard:
        """Check everything that can be checked on one rank."""
        _check_served(feature_map, is_causal)
        inputs = check(*tokens, feature_map, paired=paired, key_padding_mask=key_padding_mask, scale=scale)
        # Queries are mapped after the last agreement, where an error would leave other ranks alone.
        check_finite(inputs.query, inputs.query, "query")
        if is_causal:
            feature_map = feature_map.with_fixed_centres()
        return cls(inputs, feature_map, Denominator.of(rule), is_causal)

    def described(self) -> Description:
        """Describe what has to be the same on every rank, and what need not be."""
        inputs, phi, tracing = self.inputs, self.feature_map, torch.is_grad_enabled()
        query, key, value = inputs[:3]
        claims = {
            "the feature map": f"{type(phi).__name__} with fingerprint {fingerprint(phi):x}",
            "batch axes": str(inputs.batch),
            "heads": f"{query.shape[1]} query heads, {key.shape[1]} key heads",
            "width of values": str(value.shape[-1]),
            "dtype of the computation": str(inputs.dtype),
            "is_causal": str(self.is_causal),
            "scale": f"{inputs.root**2:.9g}",
            "denominator": self.rule.rule,
            "grad mode": "on" if tracing else "off",
            "cu_seqlens": "None",
        }
        tensors = query, key, value, *phi.parameters(), *phi.buffers()
        return Description(claims, tracing and any(t.requires_grad for t in tensors), key.shape[2])

    def written(self) -> Carry:
        """Sum over the keys of this rank."""
        return write(self.inputs.for_map(self.feature_map), self.feature_map)

    def attended(self, carry: Carry) -> Tensor:
        """Attend to the keys of a carry; if causal, to those and to the keys of this rank up to each query."""
        rows = self.inputs.for_map(self.feature_map)
        if not self.is_causal:
            return self.inputs.restored(read(rows, self.feature_map, self.rule, carry))
        path = engine_for(self.feature_map).causal
        call, tensors = path.prepare(rows, self.feature_map, self.rule, carry)
        return self.inputs.restored(runner(path, call, tensors)()[0])

    def piece(self, some: slice) -> Shard:
        """Restrict to some tokens."""
        query, key, value, ignore = self.inputs[:4]
        query, key, value = (t[:, :, some] for t in (query, key, value))
        ignore = None if ignore is None else ignore[:, some]
        return self._replace(inputs=self.inputs._replace(query=query, key=key, value=value, ignore=ignore))


def finished(ranks: Ranks, rule: Denominator, attend: Callable[[], Tensor]) -> Tensor:
    """Run the last step of a call; where the rule may raise there, all ranks wait for each other."""
    if rule.rule != "raise":
        return attend()
    out, _ = together(ranks, attend, lambda _: Description())
    return out


def _check_served(feature_map: object, is_causal: bool) -> None:
    if isinstance(feature_map, SummarisedAttention):
        raise TypeError(
            "feature_map is a SummarisedAttention, whose summaries follow all keys; expected a feature map, whose "
            "states ranks can add up"
        )
    if not isinstance(feature_map, FeatureMap):
        return  # which `check` refuses
    served = feature_map.with_fixed_centres() if is_causal else feature_map
    if not served.factorised:
        raise ValueError(
            f"the {type(feature_map).__name__} has exact pairs, or key centres that move with the keys, so that no "
            "state stands for the keys of a rank; expected a map with exact_share=0, and recenter=False unless "
            "is_causal"
        )
