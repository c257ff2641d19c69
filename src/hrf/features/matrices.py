"""Complex matrices in real arithmetic: u = Ax as a real and an imaginary part.

Every exponential map carries a pair of matrices, A for the queries and conj(A⁻ᵀ) for the keys.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hrf.checks import check_tensor, shapes_with_heads
from hrf.features import flops
from hrf.features.flops import Flops

__all__ = ["ComplexMatrix", "matrix_pair"]


class ComplexMatrix(nn.Module):
    """A map x ↦ (Re Ax, Im Ax): a part that vanishes is ``None``, and multiplication by 1 or i is free.

    Args:
        matrix: complex, ``(..., d)`` for a diagonal or ``(..., d, d)``, with a leading axis for heads.
        diagonal: whether ``matrix`` is a diagonal.
        dtype: real dtype of the buffers.
    """

    real: Tensor | None
    imag: Tensor | None

    def __init__(self, matrix: Tensor, *, diagonal: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.diagonal = diagonal
        self.has_real, self.has_imag = bool(matrix.real.any()), bool(matrix.imag.any())
        self.is_unit = diagonal and bool((matrix == 1).all() or (matrix == 1j).all())
        self.shape = tuple(matrix.shape)
        if diagonal:
            matrix = matrix.unsqueeze(-2)  # (1, d) or (H, 1, d), against (..., L, d)
        for name, part, present in (
            ("real", matrix.real, self.has_real),
            ("imag", matrix.imag, self.has_imag),
        ):
            kept = part.to(dtype).contiguous() if present and not self.is_unit else None
            self.register_buffer(name, kept)

    def forward(self, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the real and the imaginary part of Ax: ``(..., L, d) -> (..., L, d)`` each."""
        if self.is_unit:
            return (x, None) if self.has_real else (None, x)
        real, imag = self.real, self.imag
        if real is not None:
            real = x * real.to(x.dtype) if self.diagonal else x @ real.to(x.dtype).mT
        if imag is not None:
            imag = x * imag.to(x.dtype) if self.diagonal else x @ imag.to(x.dtype).mT
        return real, imag

    def transposed(self, real: Tensor | None, imag: Tensor | None) -> Tensor:
        """Return (Re A)ᵀu + (Im A)ᵀv for the parts that A has: ``(..., L, d) -> (..., L, d)``."""
        found: Tensor | None = None
        for u, part in ((real, self.real), (imag, self.imag)):
            if u is None:
                continue
            if part is not None:
                u = u * part.to(u.dtype) if self.diagonal else u @ part.to(u.dtype)
            found = u if found is None else found + u
        assert found is not None, "a matrix has a real or an imaginary part"
        return found

    def matrix(self) -> Tensor | None:
        """Return A in its original form, real if it has no imaginary part; ``None`` for the identity."""
        if self.is_unit:
            return None if self.has_real else torch.full(self.shape, 1j, device="cpu")
        if self.imag is None:
            matrix = self.real
        else:
            matrix = torch.complex(torch.zeros_like(self.imag) if self.real is None else self.real, self.imag)
        return matrix.squeeze(-2) if matrix is not None and self.diagonal else matrix

    def flops(self, dim: int) -> Flops:
        """Count operations for one vector."""
        parts = 0 if self.is_unit else self.has_real + self.has_imag
        return (flops.scaled(dim) if self.diagonal else flops.projected(dim, dim)).times(parts)


def matrix_pair(matrix: Tensor | None, dim: int, heads: int | None) -> tuple[ComplexMatrix, ComplexMatrix]:
    """Return the query side A and the key side conj(A⁻ᵀ) of an exponential map; refuse a singular A."""
    shapes = shapes_with_heads(heads, (dim,), (dim, dim))
    if matrix is None:
        matrix = torch.ones(shapes[0], device="cpu")  # its values are looked at, on the meta device, too
    check_tensor("matrix", matrix, shapes, complex_too=True)
    diagonal = tuple(matrix.shape) == shapes[0]
    query = matrix.detach().to(torch.complex128)
    if diagonal:
        if (query == 0).any():
            raise ValueError(f"matrix is singular: {int((query == 0).sum())} of its diagonal entries are 0")
        key = 1 / query
    else:
        condition = torch.linalg.cond(query).max()
        if not condition < 1 / torch.finfo(torch.float64).eps:
            raise ValueError(f"matrix is singular: its condition number is {condition:.1e}")
        key = torch.linalg.inv(query).mT
    dtype = torch.empty(0, dtype=matrix.dtype).abs().dtype if matrix.dtype.is_complex else matrix.dtype
    dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    return (
        ComplexMatrix(query, diagonal=diagonal, dtype=dtype),
        ComplexMatrix(key.conj_physical(), diagonal=diagonal, dtype=dtype),
    )
