"""One call of attention, tensors aside, and how a path through an engine is run with or without gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hrf._attention.denominator import Denominator
from hrf._attention.inputs import Inputs
from hrf._attention.label_blocks import Part
from hrf.features.base import FeatureMap, of_heads
from hrf.numerics import without_autocast

__all__ = ["Call", "Path", "runner"]


@dataclass(frozen=True)
class Call:
    """Everything that a call of attention fixes, its tensors aside.

    Attributes:
        feature_map: the map.
        rule: what to do with small denominators.
        moments: sums of the keys that each row sees, ``(B, H, 1 or L, ·)`` (`hrf._attention.denominator`).
        ignore: keys to leave out, ``(B, S)``, or ``None``.
        root: √scale.
        dtype: of the computation.
        learned: tensors of the map that want gradients.
        resumed: whether a state of earlier tokens is continued.
        past: keys and values so far, where exact pairs of clusters need them.
        visible: values of the keys before this call, for causal calls.
    """

    feature_map: FeatureMap
    rule: Denominator
    moments: Tensor
    ignore: Tensor | None
    root: float
    dtype: torch.dtype
    learned: tuple[Tensor, ...]
    resumed: bool = False
    past: Any = None
    visible: Any = None

    @classmethod
    def of(
        cls, inputs: Inputs, moments: Tensor, feature_map: FeatureMap, rule: Denominator, **extra: Any
    ) -> Call:
        """Describe a call on ``inputs``."""
        learned = [t for t in (*feature_map.parameters(), *feature_map.buffers()) if t.requires_grad]
        return cls(
            feature_map, rule, moments, inputs.ignore, inputs.root, inputs.dtype, tuple(learned), **extra
        )

    def part(self, part: Part) -> Call:
        """Restrict the call to some batch elements and heads."""
        ignore = None if self.ignore is None else self.ignore[part[0]]
        feature_map = of_heads(self.feature_map, part[1])
        return replace(self, feature_map=feature_map, moments=self.moments[part], ignore=ignore)


class Path(NamedTuple):
    """One way to compute attention.

    Attributes:
        prepare: from `Inputs`, a map, a `Denominator` and perhaps a `Carry` to a `Call` and its tensors.
        forward: from a call and its tensors to outputs, of which the first two may have gradients. Where gradients
            will be needed, it appends the tensors that ``backward`` uses to the list ``saved``.
        backward: from a call, the saved tensors, the gradients of the outputs and which inputs need gradients, to
            the gradients of the tensors and of ``call.learned``.
    """

    prepare: Callable[..., tuple[Call, tuple[Tensor | None, ...]]]
    forward: Callable[..., tuple[Tensor, ...]]
    backward: Callable[..., Sequence[Tensor | None]]


def runner(path: Path, call: Call, tensors: Sequence[Tensor | None]) -> Callable[[], tuple[Tensor, ...]]:
    """Bind ``path.forward`` to a call: with gradients where some tensor wants them, without autograd elsewhere."""
    wanted = call.learned or any(t is not None and t.requires_grad for t in tensors)
    if torch.is_grad_enabled() and wanted:
        return partial(_Attend.apply, path, call, *tensors, *call.learned)
    return partial(torch.no_grad()(path.forward), call, *tensors)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, path: Path, call: Call, *tensors: Tensor | None) -> Any:
        saved: list[Tensor | None] = []
        outputs = path.forward(call, *tensors[: len(tensors) - len(call.learned)], saved=saved)
        # The backward pass needs neither keys so far nor, unless they are saved, moments.
        ctx.call = replace(call, moments=call.moments[:0], past=None)
        ctx.path, ctx.n_saved = path, len(saved)
        # It uses the map again: saved here, a redraw or a step of an optimiser in between is an error.
        ctx.save_for_backward(*saved, *call.learned, *call.feature_map.buffers())
        ctx.mark_non_differentiable(*outputs[2:])
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        saved = ctx.saved_tensors[: ctx.n_saved]
        # Autocast may be on where ``backward`` is called, and would take matrix products to half precision.
        with without_autocast(grads[0].device):
            return None, None, *ctx.path.backward(ctx.call, saved, grads, ctx.needs_input_grad[2:])
