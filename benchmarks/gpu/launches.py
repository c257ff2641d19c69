"""Launches of kernels, recorded on the meta device: shapes and constants without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import hrf
from hrf._attention import map_kernels
from hrf._attention.triton import maps

__all__ = ["MAPS", "Launch", "Shape", "record"]


@dataclass(frozen=True)
class Shape:
    """A call: heads, tokens and widths; ``groups`` query heads per key head; with keys to ignore where ``padded``."""

    rows: int = 32
    length: int = 4096
    dim: int = 64
    width: int = 64
    n_projections: int = 128
    groups: int = 1
    dtype: torch.dtype = torch.bfloat16
    padded: bool = False


@dataclass(frozen=True)
class Launch:
    """A launch: the kernel, its grid and its arguments by name, constants among them."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    num_warps: int

    @property
    def label(self) -> str:
        """Name the kernel and the constants that make it another one."""
        flags = ("ONLINE", "SCAN", "REVERSE", "CAUSAL", "KEYS", "TOKENS", "VALUES")
        return " ".join(
            [self.kernel.fn.__name__, *(f.lower() for f in flags if self.arguments.get(f) is True)]
        )


def _shifted(dim: int, n_projections: int) -> hrf.FeatureMap:
    shift = torch.ones(dim)
    return hrf.Exponential(dim, n_projections=n_projections, matrix=torch.eye(dim) + 0.1, key_shift=shift)


# A map of each kind of exponents, and one with further columns.
MAPS = {
    "positive": lambda d, m: hrf.Positive(d, n_projections=m, seed=0),
    "trigonometric": lambda d, m: hrf.Trigonometric(d, n_projections=m, seed=0),
    "single": lambda d, m: hrf.OptimalPositive(d, n_projections=2 * m, seed=0),
    "shifted": _shifted,
}


@contextmanager
def _recording(*, amd: bool) -> Iterator[list[Launch]]:
    found: list[Launch] = []
    before = maps.launch, maps.AMD, map_kernels.ON_CPU

    def recorded(kernel: Any, grid: tuple[int, ...], arguments: dict[str, Any], num_warps: int) -> None:
        found.append(Launch(kernel, grid, arguments, num_warps))

    maps.launch, maps.AMD, map_kernels.ON_CPU = recorded, amd, True
    try:
        yield found
    finally:
        maps.launch, maps.AMD, map_kernels.ON_CPU = before


def _meta(shape: Shape, heads: int, length: int, width: int) -> Tensor:
    return torch.empty(1, heads, length, width, dtype=shape.dtype, device="meta")


def record(name: str, shape: Shape, *, amd: bool = False) -> dict[str, list[Launch]]:
    """Return all launches of the passes of a call: forward and with gradients, both ways, and a step."""
    phi, heads = MAPS[name](shape.dim, shape.n_projections).to("meta"), shape.rows
    query = _meta(shape, heads * shape.groups, shape.length, shape.dim)
    key, value = (_meta(shape, heads, shape.length, n) for n in (shape.dim, shape.width))
    found, ignore = (
        {},
        torch.empty(1, shape.length, dtype=torch.bool, device="meta") if shape.padded else None,
    )
    for is_causal in (False, True):
        way, tokens = (
            "causal" if is_causal else "bidirectional",
            [u.requires_grad_() for u in (query, key, value)],
        )
        with _recording(amd=amd) as launches:
            out = hrf.attention(*tokens, phi, is_causal=is_causal, key_padding_mask=ignore)
            n_forward = len(launches)
            out.sum().backward()
        found |= {way: launches[:n_forward], f"{way}, backward": launches[n_forward:]}
    state = hrf.AttentionState(phi)
    with _recording(amd=amd) as launches, torch.no_grad():
        for length in (min(64, shape.length), 1):
            launches.clear()
            hidden = None if ignore is None else ignore[:, :length]
            state.prefill(*(u[..., :length, :] for u in (query, key, value)), key_padding_mask=hidden)
    return found | {"step": list(launches)}
