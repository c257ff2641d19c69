"""The contract: K(x, y) ≈ queries(x) · keys(y).

`Linearised` is whatever splits into a query side and a key side, with the input checks,
the streaming and the log scales that all of them need. `FeatureMap` is one whose products
estimate a kernel; coefficients (``coefficients.py``) are the other kind.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Generator, Tensor, nn
from typing_extensions import Self

from hrf import kernels
from hrf.features.flops import Flops
from hrf.projections import Projections

__all__ = ["FeatureMap", "Features", "Linearised"]

Side = Literal["query", "key"]

# Row by row what the features are made of, ``(..., L, ·)`` each; what a map does without is None.
Rows = list[Tensor | None]

P = ParamSpec("P")
Result = TypeVar("Result")


def full_precision(method: Callable[P, Result]) -> Callable[P, Result]:
    """Switch autocast off inside a method: half precision cannot carry an exponential."""

    @functools.wraps(method)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Result:
        first = next(iter((*args[1:], *kwargs.values())), None)  # after self
        device = getattr(first, "device", torch.device("cpu")).type
        if not torch.is_autocast_enabled(device):
            return method(*args, **kwargs)
        with torch.autocast(device, enabled=False):
            return method(*args, **kwargs)

    return wrapped


class Features(NamedTuple):
    """The tensor ``values · exp(log_scale)``, kept apart so that neither factor overflows.

    Attributes:
        values: ``(..., L, D)``.
        log_scale: ``(..., L, 1)``, one scale a row (``(..., L, D)`` for pairwise estimates).
    """

    values: Tensor
    log_scale: Tensor

    def unscaled(self) -> Tensor:
        """The product itself; ±inf, never NaN, where it is too large for the dtype."""
        # Two steps, each finite: values may be tiny where exp(log_scale) alone would overflow.
        largest = math.log(torch.finfo(self.values.dtype).max) - 1
        half = (self.log_scale / 2).clamp(max=largest).exp()
        return self.values * half * half


class Linearised(nn.Module):
    """Something of the form f(x, y) ≈ queries(x) · keys(y), with randomness in `Projections`.

    Subclasses set ``dim``, ``heads`` and ``feature_dim``, and define `scaled` and `config`.
    """

    dim: int
    heads: int | None
    feature_dim: int

    # Floats of output in a block: few enough to be finished in the cache, many enough to busy all threads.
    _block: int = 1 << 21

    @full_precision
    def queries(self, x: Tensor) -> Tensor:
        """Features of queries: ``(..., L, d) -> (..., L, feature_dim)``."""
        return self._stream(self._checked(x, "x"), "query")

    @full_precision
    def keys(self, y: Tensor) -> Tensor:
        """Features of keys, signs included: ``(..., S, d) -> (..., S, feature_dim)``."""
        return self._stream(self._checked(y, "y"), "key")

    @full_precision
    def scaled_queries(self, x: Tensor) -> Features:
        """Features of queries as values and a log scale a row: finite at any norm."""
        return self.scaled(self._checked(x, "x"), "query")

    @full_precision
    def scaled_keys(self, y: Tensor) -> Features:
        """Features of keys as values and a log scale a row: finite at any norm."""
        return self.scaled(self._checked(y, "y"), "key")

    @full_precision
    def estimate(self, x: Tensor, y: Tensor) -> Tensor:
        """The estimate for every pair: ``(..., L, d), (..., S, d) -> (..., L, S)``."""
        return self.scaled_estimate(*self._checked_pair(x, y)).unscaled()

    def all_projections(self) -> Iterator[Projections]:
        """All drawn ω inside, each once however many parts share it."""
        return (module for module in self.modules() if isinstance(module, Projections))

    @property
    def unbiased(self) -> bool:
        """Whether the mean over draws is exactly the estimated function."""
        return all(omega.gaussian for omega in self.all_projections())

    def redraw_(self, generator: Generator | None = None) -> Self:
        """Draw every ω anew, in place. Nothing else ever does: a forward pass is deterministic."""
        for omega in self.all_projections():
            omega.redraw_(generator)
        return self

    def flops(self) -> int:
        """Floating-point operations to map one vector, 2 for a multiply-add (`hrf.features.flops`)."""
        return self._flops().total

    def config(self) -> dict[str, Any]:
        """Constructor arguments that rebuild this object; drawn and fitted state aside."""
        raise NotImplementedError(f"{type(self).__name__} cannot be saved")

    def __repr__(self) -> str:
        arguments = self.config() | {"feature_dim": self.feature_dim}
        shown = (f"{name}={_brief(value)}" for name, value in arguments.items() if value is not None)
        return f"{type(self).__name__}({', '.join(shown)})"

    # What subclasses define. `x` is checked, floating point, at least float32.

    def _flops(self) -> Flops:
        raise NotImplementedError(f"{type(self).__name__} does not count its FLOPs")

    def scaled(self, x: Tensor, side: Side) -> Features:
        raise NotImplementedError(f"{type(self).__name__} does not define its features")

    def scaled_into(self, x: Tensor, side: Side, out: Tensor) -> Features:
        """As `scaled`, without autograd: the values may be written to ``out``, ``(..., L, feature_dim)``."""
        return self.scaled(x, side)

    @property
    def has_pullback(self) -> bool:
        """Whether `pullback` is defined: for maps where it is much faster than autograd."""
        return False

    def pullback(self, x: Tensor, side: Side, values: Tensor, grad: Features) -> Tensor:
        """The gradient of x from those of what `scaled_into` returned; it may write to ``grad``."""
        raise NotImplementedError(f"{type(self).__name__} leaves its gradients to autograd")

    def _prepare(self, x: Tensor, side: Side) -> Rows:
        """What the features are made of, row by row."""
        return [x]

    def _check_range(self, rows: Rows) -> None:
        """Refuse rows whose features the dtype cannot hold, if `_finish` would not."""

    def _finish(
        self, rows: Rows, side: Side, out: Tensor | None = None, scratch: Tensor | None = None
    ) -> Tensor:
        """The features from what `_prepare` returned.

        They are written to ``out`` if that is given, without autograd then; ``scratch``, of the same shape,
        is a place for what comes before.
        """
        (x,) = rows
        assert x is not None
        values, log_scale = self.scaled(x, side)
        check_range(log_scale)
        return torch.mul(values, log_scale.exp(), out=out)

    def scaled_estimate(self, x: Tensor, y: Tensor) -> Features:
        q, k = self.scaled(x, "query"), self.scaled(y, "key")
        return Features(q.values @ k.values.mT, q.log_scale + k.log_scale.mT)

    # Shared machinery.

    def needs_graph(self, x: Tensor) -> bool:
        """Whether autograd or the compiler has to see every operation, so that none may write to ``out``."""
        if is_traced():
            return True
        return torch.is_grad_enabled() and (
            x.requires_grad or any(t.requires_grad for t in (*self.parameters(), *self.buffers()))
        )

    def _stream(self, x: Tensor, side: Side) -> Tensor:
        """The features, written block by block into the result unless `needs_graph`."""
        if self.needs_graph(x):
            return self._whole(self._prepare(x, side), side)
        # Heads stay together and all else becomes one axis; without heads it is one long sequence.
        heads, length = (1, x.shape[:-1].numel()) if self.heads is None else (self.heads, x.shape[-2])
        inner = (length,) if self.heads is None else (heads, length)
        n_batches = x.shape[:-3].numel() if self.heads is not None else 1
        rows = self._prepare(x.reshape(n_batches, *inner, self.dim), side)
        self._check_range(rows)
        out = x.new_empty(n_batches, *inner, self.feature_dim)
        n_rows = max(1, self._block // (heads * self.feature_dim))  # of every head, in a block
        n_whole = max(1, n_rows // max(1, length))  # sequences in a block
        scratch = torch.empty_like(out[:n_whole, ..., :n_rows, :])  # stays in the cache from block to block
        for first in range(0, n_batches, n_whole):
            for start in range(0, length, n_rows):
                block = (slice(first, first + n_whole), ..., slice(start, start + n_rows), slice(None))
                place = out[block]
                some = [None if row is None else row[block] for row in rows]
                self._finish(some, side, place, scratch[: len(place), ..., : place.shape[-2], :])
        return out.view(*x.shape[:-1], self.feature_dim)

    def _whole(self, rows: Rows, side: Side, out: Tensor | None = None) -> Tensor:
        """The features of all rows at once, after a look at their range."""
        self._check_range(rows)
        return self._finish(rows, side, out, out)

    def _checked(self, x: Tensor, name: str) -> Tensor:
        """``x`` in the precision of the computation, or an error that says what is wrong with it."""
        if not isinstance(x, Tensor) or not x.is_floating_point():
            received = f"a tensor of {x.dtype}" if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"{name} is {received}; expected a real floating-point tensor")
        heads = () if self.heads is None else (self.heads,)
        shape = ("...", *map(str, heads), "L", str(self.dim))
        expected = f"expected a shape ({', '.join(shape)})"
        if x.ndim < 2 + len(heads):
            raise ValueError(f"{name} has shape {tuple(x.shape)}; {expected}")
        if x.shape[-1] != self.dim:
            raise ValueError(f"{name} has last dimension {x.shape[-1]}, the map was built for dim={self.dim}")
        if heads and x.shape[-3] not in (1, self.heads):
            raise ValueError(f"{name} has {x.shape[-3]} heads, the map has {self.heads}; {expected}")
        self.check_values(x, name)
        if self.heads is not None:
            x = x.expand(*x.shape[:-3], self.heads, -1, -1)  # one input for all heads is a view
        return x.to(torch.promote_types(torch.promote_types(x.dtype, self.dtype), torch.float32))

    def check_values(self, x: Tensor, name: str) -> None:
        """Refuse NaN and infinity; maps that add up the squares of x anyway look at those instead."""
        check_finite(x, x, name)

    def _checked_pair(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x, y = self._checked(x, "x"), self._checked(y, "y")
        try:
            torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        except RuntimeError as error:
            shapes = f"{tuple(x.shape)} and {tuple(y.shape)}"
            raise ValueError(f"x and y have shapes {shapes}, whose leading axes do not match") from error
        dtype = torch.promote_types(x.dtype, y.dtype)
        return x.to(dtype), y.to(dtype)

    @property
    def dtype(self) -> torch.dtype:
        """The precision of ω, or of whatever a map without randomness is made of."""
        buffers = [omega.omega for omega in self.all_projections()] or list(self.buffers())
        return next((b.dtype for b in buffers if b.is_floating_point()), torch.get_default_dtype())


def is_traced() -> bool:
    """Whether the compiler or a transform of torch.func follows along: no branches on values then."""
    return (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch.autograd.forward_ad._current_level >= 0
    )


def can_look(x: Tensor) -> bool:
    """Whether a check of values is free: on an accelerator it would wait for the device."""
    return x.device.type == "cpu" and not is_traced()


def check_finite(sums: Tensor, x: Tensor, name: str) -> None:
    """Refuse ``x`` if some of ``sums``, which its values enter, are not finite."""
    if not can_look(sums):
        return
    total = sums.detach().sum(dtype=torch.promote_types(sums.dtype, torch.float32))
    if not total.isfinite():
        bad = int((~x.isfinite()).sum())
        received = (
            f"{bad} values that are NaN or infinite" if bad else "values that are too large to be squared"
        )
        raise ValueError(f"{name} has {received}; expected finite values")


def out_of_range(low: Tensor, high: Tensor) -> bool:
    """Whether exp(low) or exp(high) is more than the dtype can hold; never if nobody can look."""
    if not can_look(high) or not high.numel():
        return False
    limits = torch.finfo(high.dtype)
    return bool(low.detach().min() < math.log(limits.tiny) or high.detach().max() > math.log(limits.max))


def check_range(row_logs: Tensor) -> None:
    """Refuse rows whose largest feature, exp of these, does not fit the dtype, naming the way out."""
    if out_of_range(row_logs, row_logs):
        low, high = (f"exp({float(log):.0f})" for log in row_logs.detach().aminmax())
        raise OverflowError(
            f"the largest features of the rows run from {low} to {high}, which {row_logs.dtype} cannot hold; "
            "the inputs are too long for plain features: use scaled_queries and scaled_keys, or estimate"
        )


def common_scale(features: Sequence[Features]) -> tuple[list[Tensor], Tensor]:
    """The values of all on one scale a row, the largest, and that scale; −∞ is the scale of nothing."""
    scales = torch.broadcast_tensors(*(f.log_scale for f in features))
    scale = torch.stack(scales).detach().amax(0)
    return [f.values * (s - finite(scale)).exp() for f, s in zip(features, scales, strict=True)], scale


def finite(scale: Tensor) -> Tensor:
    """A log scale where there is something, 0 where there is nothing (−∞)."""
    return scale.masked_fill(scale.isneginf(), 0)


def _brief(value: Any) -> str:
    """One short line for a constructor argument."""
    if isinstance(value, Tensor):
        return f"<{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}>"
    return repr(value.kind) if isinstance(value, Projections) else repr(value)


def half_square(x: Tensor) -> Tensor:
    """‖x‖²/2 a row: ``(..., L, d) -> (..., L, 1)``."""
    if x.requires_grad or is_traced():  # the norm has no second derivative at 0
        return x.square().sum(-1, keepdim=True) / 2
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True).square() / 2


class FeatureMap(Linearised):
    """A random feature map: ``queries(x) @ keys(y).mT`` estimates a kernel.

    Attributes:
        dim: length d of the inputs.
        feature_dim: width of ``queries(x)`` and ``keys(y)``.
        heads: ``None``, or H for a map a head, applied to inputs ``(..., H, L, d)``.
        kernel: ``"softmax"`` for exp(xᵀy) or ``"gaussian"`` for exp(−‖x − y‖²/2).
        unbiased: whether the mean over draws is exactly the kernel.
        nonnegative: whether no estimate can be negative.

    Inputs may have any floating dtype; features come in float32 or wider, since half
    precision cannot carry an exponential.
    """

    kernel: Literal["softmax", "gaussian"] = "softmax"

    @property
    def nonnegative(self) -> bool:
        """Whether no estimate can be negative, since no feature is."""
        return False

    @property
    def factorised(self) -> bool:
        """Whether an estimate is a product of features, each of its own vector alone."""
        return all(
            part.factorised for part in self.modules() if isinstance(part, FeatureMap) and part is not self
        )

    @property
    def active_width(self) -> int:
        """How many features of one vector can differ from zero; attention touches that many per vector."""
        return self.feature_dim

    @property
    def follows_keys(self) -> bool:
        """Whether features depend on the keys at hand, so that a sample of keys says little about the rest."""
        return False

    @property
    def is_random(self) -> bool:
        """Whether the map has projections to draw."""
        return any(True for _ in self.all_projections())

    @full_precision
    def active_queries(self, x: Tensor) -> None:
        """Do the work of mapping queries ``(L, d)`` without features that are zero by construction, to time it."""
        self.scaled_queries(x)

    def exact_share(self, queries: Tensor, keys: Tensor) -> float:
        """Return the share of pairs of vectors that are computed exactly rather than estimated."""
        return 0.0

    def with_fixed_centres(self) -> FeatureMap:
        """Return this map, or a shallow copy whose features no longer depend on the keys at hand."""
        return self

    @full_precision
    def log_kernel(self, x: Tensor, y: Tensor) -> Tensor:
        """The exact logarithm of the kernel that is estimated: ``(..., L, S)``."""
        exact = kernels.log_softmax_kernel if self.kernel == "softmax" else kernels.log_gaussian_kernel
        return exact(*self._checked_pair(x, y))

    def mse(self, x: Tensor, y: Tensor) -> Tensor:
        """The mean squared error of ``estimate(x, y)`` over draws of ω, in closed form: ``(..., L, S)``.

        In float64 whatever the inputs: MSEs span hundreds of orders of magnitude.
        """
        return self.log_mse(x, y).exp()

    @full_precision
    def log_mse(self, x: Tensor, y: Tensor) -> Tensor:
        """The logarithm of `mse`, finite where that overflows; −inf where the estimate is exact."""
        x, y = self._checked_pair(x, y)
        return self._log_mse(x.double(), y.double())

    def relative_error(self, x: Tensor, y: Tensor) -> Tensor:
        """The root of the MSE over the kernel, the paper's ε: ``(..., L, S)``."""
        return (self.log_mse(x, y) / 2 - self.log_kernel(x.double(), y.double())).exp()

    def save(self, path: str | PathLike[str]) -> None:
        """Write the map to a ``.safetensors`` file that `hrf.load` opens."""
        from hrf.features.storage import save  # storage knows every map, so it comes after them

        save(self, path)

    def _log_mse(self, x: Tensor, y: Tensor) -> Tensor:
        raise NotImplementedError(f"no closed form is known for the MSE of {type(self).__name__}")
