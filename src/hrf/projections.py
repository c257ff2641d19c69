"""Random projections ω: m rows in ℝᵈ, each N(0, I) on its own, coupled in different ways.

| kind | rows |
| --- | --- |
| `iid` | independent |
| `orthogonal` | blocks of d orthogonal rows, Haar-distributed, with independent χ_d lengths |
| `hadamard` | orthogonal rows from products HD₁HD₂HD₃ of Hadamard and random sign matrices |
| `simplex` | blocks of d rows to the corners of a regular simplex, rotated, χ_d lengths |
| `halton` | a scrambled Halton sequence through the normal quantile |
| `sobol` | a scrambled Sobol sequence through the normal quantile |

Rows of every kind but ``hadamard`` are exactly Gaussian (``sobol`` on a grid of 2⁻³⁰), so estimators
built on them are unbiased; the corners of a signed hypercube only approach a Gaussian as d grows.

References:
    Yu et al., Orthogonal Random Features, NeurIPS 2016 (orthogonal, hadamard).
    Reid et al., Simplex Random Features, ICML 2023 (simplex).
    Avron et al., Quasi-Monte Carlo Feature Maps, JMLR 2016 (halton, sobol).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Generator, Tensor, nn
from typing_extensions import Self, override

from hrf.checks import check_count, generator_of
from hrf.registry import Registered

__all__ = ["KINDS", "ProjectionKind", "Projections", "draw"]

ProjectionKind = Literal["iid", "orthogonal", "hadamard", "simplex", "halton", "sobol"]
KINDS: tuple[ProjectionKind, ...] = get_args(ProjectionKind)


# Up to so many dimensions a block is drawn as a square matrix, so that few rows point where the first of many would.
_SQUARE = 1024
# From so many dimensions on, products with `hadamard` rows go by their factors.
_FACTORED = 512
_CACHED = 1 << 18  # numbers that are turned at a time


def _normal(*shape: int, generator: Generator | None) -> Tensor:
    device = "cpu" if generator is None else generator.device
    return torch.randn(*shape, generator=generator, dtype=torch.float64, device=device)


def _chi(heads: int, n: int, dim: int, generator: Generator | None) -> Tensor:
    """Draw lengths of Gaussian vectors: (heads, n, 1), distributed as χ_dim."""
    return _normal(heads, n, dim, generator=generator).norm(dim=-1, keepdim=True)


def _haar(heads: int, n: int, dim: int, generator: Generator | None) -> Tensor:
    """Draw orthonormal rows, uniform among all sets of them: (heads, blocks, n or dim, dim), n rows or more."""
    if n < dim and dim > _SQUARE:  # QR of n columns: no more numbers than ω has
        return _uniform_columns(_normal(heads, 1, dim, n, generator=generator)).mT
    return _uniform_columns(_normal(heads, math.ceil(n / dim), dim, dim, generator=generator))


def _uniform_columns(gaussian: Tensor) -> Tensor:
    q, r = torch.linalg.qr(gaussian)
    # Sign fix: LAPACK's QR alone is not Haar (Mezzadri 2007), and the estimators would be biased.
    return q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)


def _iid(heads: int, n: int, dim: int, generator: Generator | None) -> Tensor:
    return _normal(heads, n, dim, generator=generator)


def _orthogonal(heads: int, n: int, dim: int, generator: Generator | None) -> Tensor:
    return _haar(heads, n, dim, generator).flatten(1, 2)[:, :n] * _chi(heads, n, dim, generator)


def _signs_and_lengths(heads: int, n: int, dim: int, generator: Generator | None) -> tuple[Tensor, Tensor]:
    """Draw what determines `hadamard` rows: (3, heads, blocks, size) and (heads, n, 1)."""
    size = 1 << (dim - 1).bit_length()  # inputs are padded with zeros to a power of two
    signs = _normal(3, heads, math.ceil(n / size), size, generator=generator).sign()
    return signs, _chi(heads, n, size, generator)


def _hadamard(heads: int, n: int, dim: int, generator: Generator | None) -> Tensor:
    return _hadamard_rows(*_signs_and_lengths(heads, n, dim, generator), dim)


def _hadamard_rows(signs: Tensor, lengths: Tensor, dim: int) -> Tensor:
    """Write the rows HD₁HD₂HD₃ out: (heads, n, dim)."""
    n, size = lengths.shape[-2], signs.shape[-1]
    rows = torch.eye(min(n, size), size, dtype=signs.dtype, device=signs.device)
    for sign in signs.unsqueeze(-2):
        rows = _times_hadamard(rows) * sign
    return rows.flatten(1, 2)[:, :n, :dim] * lengths


def _times_hadamard(x: Tensor) -> Tensor:
    """Multiply by the orthogonal Hadamard matrix of Sylvester: (..., size) -> (..., size).

    It is the Kronecker product of two such matrices of about √size columns, and products with these run at the speed of
    matrix products, which the additions of the fast transform do not.
    """
    size = x.shape[-1]
    first = _sylvester(1 << (size.bit_length() - 1) // 2, x.dtype).to(x.device)
    second = _sylvester(size // len(first), x.dtype).to(x.device)
    return (first @ (x.unflatten(-1, (len(first), len(second))) @ second)).flatten(-2)


@cache
def _sylvester(size: int, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):  # autograd may save the matrix in a later call
        matrix = torch.ones(1, 1, dtype=dtype, device="cpu")
        while len(matrix) < size:
            matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
        return matrix / math.sqrt(size)


def _simplex(heads: int, n: int, dim: int, generator: Generator | None) -> Tensor:
    if dim == 1:  # a simplex with one corner has no direction
        return _iid(heads, n, dim, generator)
    # Corner i is eᵢ less the centroid, scaled to length 1: pairwise products are −1/(d − 1).
    if n < dim and dim > _SQUARE:
        # The axes that are not drawn count in the centroid: their sum has length √(d − n) in a random direction.
        axes, rest = _haar(heads, n + 1, dim, generator)[..., : n + 1, :].split([n, 1], -2)
        centroid = (axes.sum(-2, keepdim=True) + math.sqrt(dim - n) * rest) / dim
    else:
        axes = _haar(heads, n, dim, generator)
        centroid = axes.mean(-2, keepdim=True)
    corners = (axes - centroid) / math.sqrt(1 - 1 / dim)
    return corners.flatten(1, 2)[:, :n] * _chi(heads, n, dim, generator)


def _quasi(engine: str, most: int) -> Callable[[int, int, int, Generator | None], Tensor]:
    def sample(heads: int, n: int, dim: int, generator: Generator | None) -> Tensor:
        if dim > most:
            raise ValueError(f"dim is {dim}; expected at most {most} for {engine.lower()} projections")
        from scipy.special import ndtri
        from scipy.stats import qmc

        sequence = getattr(qmc, engine)
        device = "cpu" if generator is None else generator.device
        seeds = torch.randint(2**62, (heads,), generator=generator, device=device).tolist()
        # A Sobol net is balanced at powers of two: draw that many and keep the first n.
        size = 1 << (n - 1).bit_length()
        points = np.stack([sequence(dim, scramble=True, rng=seed).random(size)[:n] for seed in seeds])
        # Move off the ends of [0, 1), where the quantile is infinite, by less than the grid's step.
        return torch.from_numpy(ndtri(points.clip(2.0**-40, 1 - 2.0**-40))).to(device)

    return sample


_SAMPLERS: dict[ProjectionKind, Callable[[int, int, int, Generator | None], Tensor]] = {
    "iid": _iid,
    "orthogonal": _orthogonal,
    "hadamard": _hadamard,
    "simplex": _simplex,
    # Permutations of digits for the first d primes take 0.5 GB at 2,048 of them, and grow with d².
    "halton": _quasi("Halton", most=2048),
    "sobol": _quasi("Sobol", most=21201),  # as many direction numbers are known
}


def draw(
    kind: ProjectionKind,
    n_projections: int,
    dim: int,
    *,
    heads: int | None = None,
    generator: Generator | None = None,
    seed: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Draw ω: ``(n_projections, dim)``, or ``(heads, n_projections, dim)`` with independent heads.

    The numbers are drawn in float64 and then rounded to ``dtype`` (default: PyTorch's default
    dtype), so one seed gives the same ω in every precision. ``seed`` stands in place of ``generator``.

    >>> omega = draw("orthogonal", 3, 3, seed=0, dtype=torch.float64)
    >>> (omega @ omega.T).abs().gt(1e-12)
    tensor([[ True, False, False],
            [False,  True, False],
            [False, False,  True]])
    """
    return _drawn(kind, n_projections, dim, heads, generator_of(generator, seed), dtype, device)[0]


def _drawn(
    kind: ProjectionKind,
    n_projections: int,
    dim: int,
    heads: int | None,
    generator: Generator | None,
    dtype: torch.dtype | None,
    device: torch.device | str | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return ω, and signs and lengths where products go by factors: ``(3, blocks, size)`` and ``(m,)``."""
    if kind not in _SAMPLERS:
        raise ValueError(f"projection is {kind!r}; expected one of {', '.join(KINDS)}")
    n_heads = 1 if heads is None else check_count("heads", heads)
    n_projections, dim = check_count("n_projections", n_projections), check_count("dim", dim)
    place: Any = {"dtype": dtype or torch.get_default_dtype(), "device": device or torch.get_default_device()}
    if kind == "hadamard" and heads is None and dim >= _FACTORED:
        signs, lengths = _signs_and_lengths(1, n_projections, dim, generator)
        omega = _hadamard_rows(signs, lengths, dim)
        return omega[0].to(**place), signs[:, 0].to(**place), lengths[0, :, 0].to(**place)
    omega = _SAMPLERS[kind](n_heads, n_projections, dim, generator).to(**place)
    return omega.squeeze(0) if heads is None else omega, None, None


_BUFFERS = ("omega", "signs", "lengths")


class Projections(Registered, nn.Module):
    """A drawn ω in a buffer. Maps that hold the same object share its rows.

    Args:
        kind: one of `KINDS`.
        n_projections: number of rows, m.
        dim: length of a row, d.
        heads: with ``heads=H``, H independent draws in one buffer ``(H, m, d)``.
        generator: the source of randomness; PyTorch's global generator by default.
        seed: seed of a new generator, in place of ``generator``.
        device: of ω, which is drawn where the generator is.
        dtype: of ω, which is drawn in float64.
    """

    omega: Tensor
    signs: Tensor | None
    lengths: Tensor | None

    def __init__(
        self,
        kind: ProjectionKind,
        n_projections: int,
        dim: int,
        *,
        heads: int | None = None,
        generator: Generator | None = None,
        seed: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        generator = generator_of(generator, seed)
        # Where the draw comes from, so that `reset_parameters` can repeat it; PyTorch's global generator goes on.
        self._source = None if generator is None else (generator.device, generator.get_state())
        drawn = _drawn(kind, n_projections, dim, heads, generator, dtype, device)
        for name, tensor in zip(_BUFFERS, drawn, strict=True):
            self.register_buffer(name, tensor)
        self.kind, (*leading, self.n_projections, self.dim) = kind, self.omega.shape
        self.heads = leading[0] if leading else None

    @classmethod
    def resolve(
        cls,
        projection: ProjectionKind | Projections,
        n_projections: int,
        dim: int,
        *,
        heads: int | None = None,
        generator: Generator | None = None,
        seed: int | None = None,
    ) -> Projections:
        """Draw ω if a kind is named; return a `Projections` object as it is, if it fits."""
        if isinstance(projection, str):
            return cls(projection, n_projections, dim, heads=heads, generator=generator, seed=seed)
        if not isinstance(projection, Projections):
            raise TypeError(
                f"projection is of type {type(projection).__name__}; expected one of {', '.join(KINDS)}, "
                "or a Projections object"
            )
        received = (projection.n_projections, projection.dim, projection.heads)
        if received != (n_projections, dim, heads):
            raise ValueError(
                f"the shared projections have n_projections, dim, heads = {received}; "
                f"expected {(n_projections, dim, heads)}"
            )
        return projection

    def sizes(self) -> tuple[int, int, int | None]:
        """Return ``dim``, ``n_projections`` and ``heads``."""
        return self.dim, self.n_projections, self.heads

    @property
    def gaussian(self) -> bool:
        """Whether every row is exactly N(0, I): estimators are then unbiased."""
        return self.kind != "hadamard"

    def reset_parameters(self) -> None:
        """Draw ω as the constructor did: from its seed or generator if it had one, and anew if not."""
        generator = None
        if self._source is not None:
            device, state = self._source
            generator = Generator(device)
            generator.set_state(state)
        self.redraw_(generator)

    def redraw_(self, generator: Generator | None = None, *, seed: int | None = None) -> Self:
        """Replace ω by a new draw of the same kind, in place."""
        generator = generator_of(generator, seed)
        drawn = _drawn(**self.config(), generator=generator, dtype=torch.float64, device=None)
        for name, tensor in zip(_BUFFERS, drawn, strict=True):
            if (kept := getattr(self, name)) is not None:
                kept.copy_(tensor)
        return self

    def project(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Return ωᵀx, ``(..., L, d) -> (..., L, m)``: by factors for `hadamard` rows with d ≥ 512."""
        if self.omega.requires_grad:  # ω is trained: the factors are those of the draw
            self.signs = self.lengths = None
        if self.signs is None or self.lengths is None:
            return torch.matmul(x, self.omega.to(x.dtype).mT, out=out)
        signs, lengths = self.signs.to(x.dtype), self.lengths.to(x.dtype)
        n_rows = max(1, _CACHED // signs[0].numel())
        parts = []
        for part in x.split(n_rows, -2):
            turned = nn.functional.pad(part, (0, signs.shape[-1] - x.shape[-1])).unsqueeze(-2)
            for sign in signs.flip(0):
                turned = _times_hadamard(turned * sign)
            parts.append(turned.flatten(-2)[..., : self.n_projections] * lengths)
        return torch.cat(parts, -2) if out is None else out.copy_(torch.cat(parts, -2))

    @override
    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *args: Any) -> None:
        if f"{prefix}signs" not in state:  # files of before: ω alone
            self.signs = self.lengths = None
        super()._load_from_state_dict(state, prefix, *args)

    @override
    def config(self) -> dict[str, Any]:
        return {"kind": self.kind, "n_projections": self.n_projections, "dim": self.dim, "heads": self.heads}

    def __repr__(self) -> str:
        arguments = (f"{name}={value!r}" for name, value in self.config().items() if value is not None)
        return f"{type(self).__name__}({', '.join(arguments)})"
