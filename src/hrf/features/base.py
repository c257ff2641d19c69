"""The contract: K(x, y) ≈ queries(x) · keys(y).

`Linearised` is anything that splits into a query side and a key side: it checks inputs, streams features and
keeps log scales. `FeatureMap` is a `Linearised` whose products estimate a kernel. Coefficients of hybrids are
the other kind (``coefficients``).

To define a map, set ``dim``, ``heads`` and ``feature_dim`` and define `scaled`. Nothing has to be registered: a class
that is defined can be saved and loaded (``registry.py``). Everything else is optional: `config` lets the map be
saved, ``_log_mse`` gives its error in closed form, ``_flops`` its cost, and the members under *For engines* make
attention faster.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from types import EllipsisType
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Generator, Tensor, nn
from typing_extensions import Self

from hrf import atomic_write, kernels, tuning
from hrf.checks import generator_of
from hrf.features.affine_exponents import AffineExponents
from hrf.features.files import encode, load_part
from hrf.features.flops import Flops
from hrf.numerics import Features, check_finite, check_range, full_precision, is_traced
from hrf.projections import Projections
from hrf.registry import Handled, Registered

__all__ = ["Block", "FeatureMap", "Linearised", "Side", "Table", "load", "of_heads"]

# Features are written block by block: a block is small enough to be finished in the cache.
# Indices of sequences, of all heads, of rows and of columns.
Block = tuple[slice, EllipsisType, slice, slice]


class Table(NamedTuple):
    """Inputs and outputs with their leading axes folded into one, and the size of a block.

    Heads keep an axis of their own. Without heads all inputs are one long sequence.

    Attributes:
        inputs: ``(B, L, d)``, or ``(B, H, L, d)`` with heads.
        out: uninitialised, ``(B, L, D)`` or ``(B, H, L, D)``.
        n_sequences: how many of the B sequences a block has.
        n_rows: how many of the L rows a block has, of every head.
    """

    inputs: Tensor
    out: Tensor
    n_sequences: int
    n_rows: int

    @classmethod
    def of(cls, x: Tensor, heads: int | None, width: int, n_floats: int) -> Table:
        """Fold ``x (..., L, d)`` and lay out ``width`` features per row, in blocks of ``n_floats``."""
        if heads is None:
            shape: tuple[int, ...] = (1, x.shape[:-1].numel())
        else:
            shape = (x.shape[:-3].numel(), heads, x.shape[-2])
        n_rows = max(1, n_floats // ((heads or 1) * width))
        n_sequences = max(1, n_rows // max(1, shape[-1]))
        return cls(x.reshape(*shape, x.shape[-1]), x.new_empty(*shape, width), n_sequences, n_rows)

    def blocks(self) -> Iterator[Block]:
        """Yield the index of each block."""
        for first in range(0, len(self.out), self.n_sequences):
            for start in range(0, self.out.shape[-2], self.n_rows):
                yield (
                    slice(first, first + self.n_sequences),
                    ...,
                    slice(start, start + self.n_rows),
                    slice(None),
                )

    def scratch(self) -> Tensor:
        """Allocate a buffer as large as the largest block, which stays in the cache from block to block."""
        return torch.empty_like(self.out[: self.n_sequences, ..., : self.n_rows, :])


Side = Literal["query", "key"]


class Linearised(Registered, nn.Module):
    """A function f(x, y) ≈ queries(x) · keys(y), with randomness in `Projections`.

    Methods that take a side expect inputs that `queries` and its siblings have checked: ``(..., L, d)``,
    ``(..., H, L, d)`` with heads, in float32 or wider.
    """

    dim: int
    heads: int | None
    feature_dim: int

    @full_precision
    def queries(self, x: Tensor) -> Tensor:
        """Map queries to features: ``(..., L, d) -> (..., L, feature_dim)``."""
        return self._stream(self._checked(x, "x"), "query")

    @full_precision
    def keys(self, y: Tensor) -> Tensor:
        """Map keys to features, signs included: ``(..., S, d) -> (..., S, feature_dim)``."""
        return self._stream(self._checked(y, "y"), "key")

    @full_precision
    def scaled_queries(self, x: Tensor) -> Features:
        """Map queries to values and one log scale per row: finite at any norm."""
        return self.scaled(self._checked(x, "x"), "query")

    @full_precision
    def scaled_keys(self, y: Tensor) -> Features:
        """Map keys to values and one log scale per row: finite at any norm."""
        return self.scaled(self._checked(y, "y"), "key")

    @full_precision
    def estimate(self, x: Tensor, y: Tensor) -> Tensor:
        """Estimate every pair: ``(..., L, d), (..., S, d) -> (..., L, S)``."""
        return self.scaled_estimate(*self._checked_pair(x, y)).unscaled()

    def forward(self, *args: Any) -> Tensor:
        """Refuse to guess a side."""
        name = type(self).__name__
        raise TypeError(f"{name} has two sides; call phi.queries(x) or phi.keys(y), not phi(x)")

    @property
    def unbiased(self) -> bool:
        """Whether the mean over draws is exactly the estimated function."""
        return all(omega.gaussian for omega in self.all_projections())

    def redraw_(self, generator: Generator | None = None, *, seed: int | None = None) -> Self:
        """Draw every ω anew, in place. Nothing else ever does: a forward pass is deterministic."""
        generator = generator_of(generator, seed)
        for omega in self.all_projections():
            omega.redraw_(generator)
        return self

    def reset_parameters(self) -> None:
        """Draw every ω as the constructor did, for a map whose tensors were emptied (``to_empty``).

        A seed or generator given then gives the same ω again. Fitted tensors cannot be restored: load them instead.
        """
        if fitted := self.fitted_tensors():
            raise ValueError(
                f"{type(self).__name__} has tensors that come from data or arguments: {', '.join(fitted)}; expected "
                "load_state_dict in place of reset_parameters"
            )
        for omega in self.all_projections():
            omega.reset_parameters()

    def flops(self) -> int:
        """Count the floating-point operations to map one vector, 2 per multiply-add (`hrf.features.flops`)."""
        return self._flops().total

    def __repr__(self) -> str:
        arguments = self.config() | {"feature_dim": self.feature_dim}
        shown = (f"{name}={_brief(value)}" for name, value in arguments.items() if value is not None)
        return f"{type(self).__name__}({', '.join(shown)})"

    # For engines: attention, sampling and advice use these.

    def scaled(self, x: Tensor, side: Side) -> Features:
        """Map checked vectors of one side to values and one log scale per row."""
        raise NotImplementedError(f"{type(self).__name__} does not define its features")

    def scaled_into(self, x: Tensor, side: Side, out: Tensor) -> Features:
        """Do as `scaled`, without autograd; the values may be written to ``out (..., L, feature_dim)``."""
        return self.scaled(x, side)

    def unscaled(self, x: Tensor, side: Side, out: Tensor | None = None) -> Tensor:
        """Map all rows to plain features; refuse rows that the dtype cannot hold.

        With ``out``, which rules out autograd, the features are written there.
        """
        values, log_scale = self.scaled(x, side)
        check_range(log_scale)
        return torch.mul(values, log_scale.exp(), out=out)

    def scaled_estimate(self, x: Tensor, y: Tensor) -> Features:
        """Estimate every pair of checked queries and keys, with one log scale per pair."""
        q, k = self.scaled(x, "query"), self.scaled(y, "key")
        return Features(q.values @ k.values.mT, q.log_scale + k.log_scale.mT)

    @property
    def has_pullback(self) -> bool:
        """Whether `pullback` is defined, as for maps where it is much faster than autograd."""
        return False

    def pullback(self, x: Tensor, side: Side, values: Tensor, grad: Features) -> Tensor:
        """Return the gradient of x, given the ``values`` of `scaled_into` and the gradient of its result.

        It may overwrite ``grad``.
        """
        raise NotImplementedError(f"{type(self).__name__} leaves its gradients to autograd")

    def needs_graph(self, x: Tensor) -> bool:
        """Whether autograd or the compiler must see every operation, so that none may write in place."""
        if is_traced():
            return True
        return torch.is_grad_enabled() and (
            x.requires_grad or any(t.requires_grad for t in (*self.parameters(), *self.buffers()))
        )

    def check_values(self, x: Tensor, name: str) -> None:
        """Refuse NaN and infinity; maps that sum the squares of x anyway check the sums instead."""
        check_finite(x, x, name)

    def all_projections(self) -> Iterator[Projections]:
        """Yield every drawn ω inside, once even if several parts share it."""
        return (module for module in self.modules() if isinstance(module, Projections))

    def fitted_tensors(self) -> list[str]:
        """Name the tensors that come from data or arguments: all but ω."""
        drawn = {id(tensor) for omega in self.all_projections() for tensor in omega.buffers()}
        return [name for name, tensor in self.named_buffers() if id(tensor) not in drawn]

    @property
    def dtype(self) -> torch.dtype:
        """The precision of ω, or of the buffers of a map without randomness."""
        buffers = [omega.omega for omega in self.all_projections()] or list(self.buffers())
        return ([b.dtype for b in buffers if b.is_floating_point()] or [torch.get_default_dtype()])[0]

    # For subclasses.

    @property
    def _block(self) -> int:
        return tuning.FEATURE_FLOATS

    def _flops(self) -> Flops:
        raise NotImplementedError(f"{type(self).__name__} does not count its FLOPs")

    def _stream(self, x: Tensor, side: Side) -> Tensor:
        """Write plain features block by block, unless `needs_graph`."""
        if self.needs_graph(x):
            return self.unscaled(x, side)
        table = Table.of(x, self.heads, self.feature_dim, self._block)
        for block in table.blocks():
            self.unscaled(table.inputs[block], side, table.out[block])
        return table.out.view(*x.shape[:-1], self.feature_dim)

    def _checked(self, x: Tensor, name: str) -> Tensor:
        """Return ``x`` in the precision of the computation, or refuse it."""
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

    def _checked_pair(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x, y = self._checked(x, "x"), self._checked(y, "y")
        pairs = zip(reversed(x.shape[:-2]), reversed(y.shape[:-2]), strict=False)
        if not all(m == n or 1 in (m, n) for m, n in pairs):  # torch.broadcast_shapes imports SymPy
            shapes = f"{tuple(x.shape)} and {tuple(y.shape)}"
            raise ValueError(f"x and y have shapes {shapes}, whose leading axes do not match")
        dtype = torch.promote_types(x.dtype, y.dtype)
        return x.to(dtype), y.to(dtype)


class FeatureMap(Handled, Linearised):
    """A random feature map: ``queries(x) @ keys(y).mT`` estimates a kernel.

    Attributes:
        dim: length d of the inputs.
        feature_dim: width of ``queries(x)`` and ``keys(y)``.
        heads: ``None``, or H for one map per head, applied to inputs ``(..., H, L, d)``.
        kernel: ``"softmax"`` for exp(xᵀy) or ``"gaussian"`` for exp(−‖x − y‖²/2).

    Inputs may have any floating dtype; features come in float32 or wider, since half
    precision cannot carry an exponential.
    """

    kernel: Literal["softmax", "gaussian"] = "softmax"

    @property
    def nonnegative(self) -> bool:
        """Whether no estimate can be negative, since no feature is."""
        return False

    @full_precision
    def log_kernel(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the exact logarithm of the kernel: ``(..., L, S)``."""
        exact = kernels.log_softmax_kernel if self.kernel == "softmax" else kernels.log_gaussian_kernel
        return exact(*self._checked_pair(x, y))

    def mse(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean squared error of ``estimate(x, y)`` over draws of ω, in closed form: ``(..., L, S)``.

        In float64 for inputs of any dtype: MSEs span hundreds of orders of magnitude.
        """
        return self.log_mse(x, y).exp()

    @full_precision
    def log_mse(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the logarithm of `mse`, finite where `mse` overflows; −inf where the estimate is exact."""
        return self._log_mse(*(u.double() for u in self._checked_pair(x, y)))

    def relative_error(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the root of the MSE over the kernel, the paper's ε: ``(..., L, S)``."""
        return (self.log_mse(x, y) / 2 - self.log_kernel(x.double(), y.double())).exp()

    def save(self, path: str | PathLike[str]) -> None:
        """Write the map to a ``.safetensors`` file that `hrf.load` opens."""
        atomic_write.write(Path(path), encode(self))

    # For engines: attention, sampling and advice use these.

    @property
    def factorised(self) -> bool:
        """Whether estimates are products of features, and features of a vector depend on no other vector."""
        return all(
            part.factorised for part in self.modules() if isinstance(part, FeatureMap) and part is not self
        )

    def affine(self) -> AffineExponents | None:
        """Return the exponents as affine functions of the inputs, for features that are functions of such exponents."""
        return None

    @property
    def active_width(self) -> int:
        """The number of features of one vector that can differ from zero; attention touches that many per vector."""
        return self.feature_dim

    @property
    def follows_keys(self) -> bool:
        """Whether features depend on the keys at hand, so that a sample of keys says little about the rest."""
        return False

    def with_fixed_centres(self) -> Self:
        """Return the map with features that do not depend on the keys at hand, as causal attention needs them."""
        return self

    @property
    def is_random(self) -> bool:
        """Whether the map has projections to draw."""
        return any(True for _ in self.all_projections())

    @full_precision
    def active_queries(self, x: Tensor) -> None:
        """Do the work of mapping queries ``(L, d)`` without features that are zero by construction, to time it."""
        self.scaled_queries(x)

    @property
    def whitening(self) -> Tensor | None:
        """The matrix W ``(D, m)`` of features that `unwhitened` gives up to W; ``None`` for all others."""
        return None

    def unwhitened(self, x: Tensor) -> Features:
        """Return b(x), cheaper than the features φ(x) = W b(x), where `whitening` is W: ``(..., L, m)``.

        A linear model takes its products wᵀφ(x) as (Wᵀw)ᵀb(x). Without whitening b is φ, on the query side.
        """
        return self.scaled(x, "query")

    def exact_share(self, queries: Tensor, keys: Tensor) -> float:
        """Return the share of pairs of vectors that are computed exactly rather than estimated."""
        return 0.0

    # For subclasses.

    def _log_mse(self, x: Tensor, y: Tensor) -> Tensor:
        raise NotImplementedError(f"no closed form is known for the MSE of {type(self).__name__}")


def _brief(value: Any) -> str:
    """Describe a constructor argument in one short line."""
    if isinstance(value, Tensor):
        return f"<{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}>"
    return repr(value.kind) if isinstance(value, Projections) else repr(value)


def load(path: str | PathLike[str]) -> FeatureMap:
    """Read a map that `FeatureMap.save` wrote; a ``ValueError`` says what is wrong with any other file.

    >>> import hrf, tempfile, torch
    >>> phi = hrf.Positive(4, n_projections=8)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     phi.save(f"{folder}/map.safetensors")
    ...     copy = hrf.load(f"{folder}/map.safetensors")
    >>> x = torch.randn(3, 4)
    >>> torch.equal(phi.queries(x), copy.queries(x))
    True
    """
    return load_part(path, FeatureMap, "a feature map")


Map = TypeVar("Map", bound=FeatureMap)
Module = TypeVar("Module", bound=nn.Module)


def of_heads(feature_map: Map, heads: slice | Tensor) -> Map:
    """Return the map restricted to a slice of its heads, or to heads by index: a copy whose tensors are views or rows.

    Gradients therefore reach the parameters of the map itself. A part may have several heads per head of the
    map, side by side, as `ClusteredHybrid` has for pairs of clusters. A map without heads is returned as it is.
    """
    if feature_map.heads is None or (isinstance(heads, slice) and heads == slice(0, feature_map.heads)):
        return feature_map
    return _Restriction(heads, feature_map.heads).of(feature_map, feature_map.heads)


class _Restriction:
    """Copies of the parts of one map; parts that share a part share its copy."""

    def __init__(self, heads: slice | Tensor, n_heads: int) -> None:
        self._heads, self._n_heads = heads, n_heads
        self._copies: dict[nn.Module, nn.Module] = {}

    def _rows(self, each: int) -> tuple[slice | Tensor, int]:
        """Return the rows of a part with several heads per head, and how many there are."""
        heads = self._heads
        if isinstance(heads, slice):
            rows = slice(heads.start * each, heads.stop * each)
            return rows, rows.stop - rows.start
        if each > 1:
            heads = (heads.unsqueeze(-1) * each + torch.arange(each, device=heads.device)).flatten()
        return heads, len(heads)

    def of(self, module: Module, n_heads: int | None) -> Module:
        """Return the copy of a part, which has as many heads as its owner unless it says otherwise."""
        n_heads = getattr(module, "heads", n_heads)
        if n_heads is None:
            return module
        rows, n_rows = self._rows(n_heads // self._n_heads)

        def rows_of(tensor: Tensor | None) -> Tensor | None:
            return tensor if tensor is None or tensor.shape[:1] != (n_heads,) else tensor[rows]

        if module not in self._copies:
            self._copies[module] = twin = copy.copy(module)
            vars(twin).update(
                _parameters={name: rows_of(tensor) for name, tensor in module._parameters.items()},
                _buffers={name: rows_of(tensor) for name, tensor in module._buffers.items()},
                _modules={
                    name: part if part is None else self.of(part, n_heads)
                    for name, part in module._modules.items()
                },
            )
            if hasattr(module, "heads"):
                vars(twin).update(heads=n_rows)
        return self._copies[module]  # type: ignore[return-value]
