"""One rank's part of a call of attention: checked inputs and the carry of its own keys."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hrf._attention.call import runner
from hrf._attention.carry import Carry
from hrf._attention.denominator import Denominator, Rule
from hrf._attention.dispatch import engine_for
from hrf._attention.halves import read, write
from hrf._attention.inputs import Inputs, check
from hrf._attention.summarised.method import SummarisedAttention
from hrf.distributed.maps import fingerprint
from hrf.features.base import FeatureMap
from hrf.numerics import check_finite

__all__ = ["Shard"]


class Shard(NamedTuple):
    """The tokens of one rank.

    Attributes:
        inputs: as they were given.
        rows: the same, a row per query and head of the map.
        feature_map: the map; with fixed centres where attention is causal.
        rule: for denominators.
        is_causal: whether queries see no later key.
    """

    inputs: Inputs
    rows: Inputs
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
        inputs = check(
            *tokens, feature_map, paired=paired, key_padding_mask=key_padding_mask, scale=scale
        )
        # Queries are mapped after the last agreement, where an error would leave other ranks alone.
        check_finite(inputs.query, inputs.query, "query")
        if is_causal:
            feature_map = feature_map.with_fixed_centres()
        return cls(inputs, inputs.for_map(feature_map), feature_map, Denominator.of(rule), is_causal)

    def claims(self) -> dict[str, str]:
        """Describe what has to be the same on every rank."""
        query, key, value = self.rows[:3]
        shape = f"batch {self.inputs.batch}, heads {self.inputs.query.shape[1]} and {self.inputs.key.shape[1]}"
        return {
            "the feature map": f"a {type(self.feature_map).__name__} with fingerprint {fingerprint(self.feature_map):x}",
            "shapes but for lengths": f"{shape}, widths {query.shape[-1]}, {key.shape[-1]} and {value.shape[-1]}",
            "dtype of the computation": str(self.inputs.dtype),
            "is_causal": str(self.is_causal),
            "scale": f"{self.inputs.root**2:.9g}",
            "denominator": self.rule.rule,
            "grad mode": "on" if torch.is_grad_enabled() else "off",
        }

    def wants_gradients(self) -> bool:
        """Whether autograd follows any tensor of this rank."""
        tensors = *self.inputs[:3], *self.feature_map.parameters(), *self.feature_map.buffers()
        return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)

    def written(self) -> Carry:
        """Sum over the keys of this rank."""
        return write(self.rows, self.feature_map)

    def attended(self, carry: Carry) -> Tensor:
        """Attend to the keys of a carry; if causal, to those and to the keys of this rank up to each query."""
        if not self.is_causal:
            return read(self.rows, self.feature_map, self.rule, carry)
        path = engine_for(self.feature_map).causal
        call, tensors = path.prepare(self.rows, self.feature_map, self.rule, carry)
        return runner(path, call, tensors)()[0]


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
