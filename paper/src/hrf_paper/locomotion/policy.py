"""The Implicit Attention Policy: pixels normalised, patches ranked by attention, an action from the highest."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Generator, Tensor

import hrf
from hrf import catalogue
from hrf_paper.locomotion.environment import LARGEST_SHIFT
from hrf_paper.locomotion.terrain import HEIGHT, N_CAMERAS, WIDTH, ground_points

# Observation normalisation: mean and deviation of each pixel over all images seen so far.

_SHAPE = (N_CAMERAS, HEIGHT, WIDTH)
_LEAST_DEVIATION = 0.05  # pixels that hardly vary are not blown up
_LARGEST = 3.0


def _zeros() -> Tensor:
    return torch.zeros(_SHAPE, dtype=torch.float64)


@dataclass(frozen=True)
class PixelMoments:
    """Sums over images, in float64.

    Attributes:
        count: the number of images.
        total: sum of the images, ``(2, 24, 32)``.
        squares: sum of their squares.
    """

    count: int = 0
    total: Tensor = field(default_factory=_zeros)
    squares: Tensor = field(default_factory=_zeros)

    def plus(self, images: Tensor) -> PixelMoments:
        """Add images ``(n, 2, 24, 32)``."""
        wide = images.double()
        return PixelMoments(
            self.count + len(wide), self.total + wide.sum(0), self.squares + (wide * wide).sum(0)
        )

    def merged(self, other: PixelMoments) -> PixelMoments:
        """Add other moments."""
        return PixelMoments(self.count + other.count, self.total + other.total, self.squares + other.squares)

    def normalised(self, images: Tensor) -> Tensor:
        """Centre and scale images ``(..., 2, 24, 32)``, within three deviations; 0 while nothing has been seen."""
        if self.count == 0:
            return torch.zeros_like(images)
        mean = self.total / self.count
        variance = (self.squares / self.count - mean * mean).clamp_min(0)
        deviation = variance.sqrt().clamp_min(_LEAST_DEVIATION)
        return ((images - mean) / deviation).clamp(-_LARGEST, _LARGEST).float()


# Rank patches by the attention they get: column sums of softmax(QKᵀ), exact or by random features.
#
# With features, the sum over queries comes before the product with keys, so that no matrix of attention is made:
# s_k = ψ(k) · Σ_q φ(q) / (φ(q) · Σ_k' ψ(k')).

Plain = Literal["exact", "uniform", "blind"]
Method = Plain | hrf.FeatureMap
_PLAIN: tuple[Plain, ...] = ("exact", "uniform", "blind")

# Names of maps are those of `hrf.catalogue`: a number is m, the number of projections. With 58 of them, FAVOR+ and
# trigonometric features of 8 numbers cost no more FLOPs than the angular hybrid.
HYBRID, REGULAR = "HRF-A (8, 8)", "FAVOR+ 256"
SMALL = ("FAVOR+ 58", "Trig 58")
METHODS = ("exact", REGULAR, SMALL[0], HYBRID, SMALL[1], "uniform", "blind")


def build(name: str, dim: int, generator: Generator) -> Method:
    """Return a method by its name: a map for vectors of ``dim`` numbers, or what needs no map.

    "uniform" keeps all patches, and "blind" sees none.
    """
    for plain in _PLAIN:
        if name == plain:
            return plain
    if name not in METHODS:
        raise ValueError(f"method is {name!r}; expected one of {', '.join(METHODS)}")
    return catalogue.build(name, dim, generator=generator)


def attention_received(queries: Tensor, keys: Tensor, method: Literal["exact"] | hrf.FeatureMap) -> Tensor:
    """Return the sum of attention to each key, ``(..., n)``, for queries and keys ``(..., n, d)``.

    A ``FloatingPointError`` names a method whose sums are not finite.
    """
    if isinstance(method, str):
        received = torch.softmax(queries @ keys.mT, -1).sum(-2)
    else:
        of_queries, of_keys = method.queries(queries), method.keys(keys)
        denominator = of_queries @ of_keys.sum(-2).unsqueeze(-1)
        received = (of_keys @ (of_queries / denominator).sum(-2).unsqueeze(-1)).squeeze(-1)
    if not bool(received.isfinite().all()):
        name = method if isinstance(method, str) else type(method).__name__
        raise FloatingPointError(f"attention by {name} is not finite")
    return received


def ranking_flops(method: Method, n_patches: int, dim: int) -> int:
    """Count the operations of a ranking, without the projections to queries and keys.

    Two per multiply-add, and one per exponential, division or sum: the accounting of `hrf.FeatureMap.flops`.
    """
    if isinstance(method, hrf.FeatureMap):
        # Both maps; the sum of keys, the denominator, the sum of queries and the product with it.
        return n_patches * (2 * method.flops() + (1 + 2 + 2 + 2) * method.feature_dim)
    # Products, exponentials, row sums, divisions, column sums.
    return n_patches**2 * (2 * dim + 4) if method == "exact" else 0


# Implicit Attention Policy: patches of the depth images are ranked by attention, and the lowest are masked out.
#
# A patch is described by its normalised pixels and by the point of level ground that it sees. Queries and keys have
# length one. The patches that get most attention are read out; all others count as zero. The readout is a cost of each
# of a few footholds, v_p summed over the patches p with weights that fall with their distance from the foothold, plus a
# cost of the shift itself; the cheapest foothold is the action. Nothing depends on the order of the patches.

_FEET = 2
_READOUT = 4  # numbers per foot: width and place of the weights, weight and centre of the cost of a shift
_WIDTH, _PLACE, _SHIFT_COST = 0.04, 0.05, 0.1  # units of these numbers; the first and last are exponentials


@dataclass(frozen=True)
class PolicyConfig:
    """Sizes of a policy.

    Attributes:
        method: one of `METHODS`.
        patch: height and width of a patch in pixels.
        dim: of queries and keys.
        kept: patches that are read out.
        candidates: footholds per foot, evenly from the largest shift back to the largest shift forward.
        seed: of the first weights and of the random features.
    """

    method: str = HYBRID
    patch: tuple[int, int] = (2, 8)
    dim: int = 8
    kept: int = 32
    candidates: int = 21
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method is {self.method!r}; expected one of {', '.join(METHODS)}")
        high, wide = self.patch
        if high < 1 or wide < 1 or HEIGHT % high or WIDTH % wide:
            raise ValueError(f"patch is {self.patch}; expected divisors of {HEIGHT} and {WIDTH}")
        if not 1 <= self.kept <= self.n_patches:
            raise ValueError(f"kept is {self.kept}; expected 1 to {self.n_patches}, the number of patches")
        if self.dim < 1 or self.candidates < 2:
            raise ValueError(
                f"dim is {self.dim} and candidates is {self.candidates}; expected at least 1 and 2"
            )

    @property
    def n_patches(self) -> int:
        """The number of patches of both images."""
        return N_CAMERAS * (HEIGHT // self.patch[0]) * (WIDTH // self.patch[1])


class Decision(NamedTuple):
    """An action and what it is based on.

    Attributes:
        action: ``(..., 2)``, for the environment.
        kept: ``(..., n)``, whether each patch was read out.
    """

    action: Tensor
    kept: Tensor


def cut(images: Tensor, patch: tuple[int, int]) -> Tensor:
    """Cut images ``(..., 2, 24, 32)`` into patches ``(..., n, pixels)``, row by row."""
    high, wide = patch
    blocks = images.unflatten(-1, (WIDTH // wide, wide)).unflatten(-3, (HEIGHT // high, high))
    return blocks.transpose(-3, -2).flatten(-2).flatten(-4, -2)


class ImplicitAttentionPolicy:
    """A policy of a few hundred parameters in one vector, for evolution strategies.

    Attributes:
        config: its sizes.
        method: what ranks the patches.
        n_parameters: length of the vector.
    """

    def __init__(self, config: PolicyConfig) -> None:
        self.config = config
        self.method = build(config.method, config.dim, Generator().manual_seed(1_000 + config.seed))
        points = torch.tensor(ground_points(), dtype=torch.float32)
        self._ground = torch.stack([cut(points[..., axis], config.patch).mean(-1) for axis in (0, 1)], -1)
        self._shifts = torch.linspace(-1, 1, config.candidates)
        pixels = config.patch[0] * config.patch[1]
        token = pixels + 2
        self._shapes = {
            "query": (token + 1, config.dim),
            "key": (token + 1, config.dim),
            "value": (token + 1,),
            "readout": (_FEET, _READOUT),
        }
        self.n_parameters = sum(math.prod(shape) for shape in self._shapes.values())

    def first_parameters(self) -> Tensor:
        """Draw projections, and start the readout from the units of its numbers."""
        generator = Generator().manual_seed(self.config.seed)
        drawn = {
            name: torch.randn(shape, generator=generator) * shape[0] ** -0.5
            for name, shape in self._shapes.items()
        }
        # Without values, a policy sees nothing at first.
        drawn["value"].zero_()
        drawn["readout"].zero_()
        return torch.cat([tensor.ravel() for tensor in drawn.values()])

    def split(self, parameters: Tensor) -> dict[str, Tensor]:
        """Return the vector's parts by name."""
        sizes = [math.prod(shape) for shape in self._shapes.values()]
        parts = parameters.split(sizes)
        return {
            name: part.reshape(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
        }

    @torch.no_grad()
    def decide(self, parameters: Tensor, depth: Tensor, footholds: Tensor) -> Decision:
        """Choose the footholds.

        Args:
            parameters: ``(n_parameters,)``.
            depth: normalised images, ``(..., 2, 24, 32)``.
            footholds: Raibert's footholds, ``(..., 2)``.
        """
        parts = self.split(parameters)
        pixels = cut(depth, self.config.patch)
        constant = torch.cat([self._ground, torch.ones(len(self._ground), 1)], -1)
        tokens = torch.cat([pixels, constant.expand(*pixels.shape[:-1], -1)], -1)
        kept = self._kept(tokens, parts)
        values = torch.where(kept, tokens @ parts["value"], 0.0)
        if self.method == "blind":
            values = torch.zeros_like(values)
        width, place, cost, centre = parts["readout"].T
        # (..., feet, candidates, patches)
        candidates = footholds[..., None] + LARGEST_SHIFT * self._shifts + _PLACE * place[:, None]
        distance = (self._ground[:, 0] - candidates[..., None]) / (_WIDTH * width.exp())[:, None, None]
        danger = torch.exp(-(distance**2) / 2) @ values[..., None, :, None]
        effort = _SHIFT_COST * cost.exp()[:, None] * (self._shifts - centre[:, None]) ** 2
        chosen = (danger.squeeze(-1) + effort).argmin(-1)
        return Decision(self._shifts[chosen], kept)

    def _kept(self, tokens: Tensor, parts: dict[str, Tensor]) -> Tensor:
        """Return which patches are read out."""
        if self.method == "uniform" or self.method == "blind":
            return torch.ones(tokens.shape[:-1], dtype=torch.bool)
        queries = torch.nn.functional.normalize(tokens @ parts["query"], dim=-1)
        keys = torch.nn.functional.normalize(tokens @ parts["key"], dim=-1)
        received = attention_received(queries, keys, self.method)
        kept = torch.zeros(tokens.shape[:-1], dtype=torch.bool)
        return kept.scatter(-1, received.topk(self.config.kept).indices, True)

    def ranking_flops(self) -> int:
        """Count the operations of the ranking alone, once there are queries and keys."""
        return ranking_flops(self.method, self.config.n_patches, self.config.dim)

    def flops(self) -> int:
        """Count the operations of a decision: projections, ranking, and the readout of the patches that are kept."""
        c = self.config
        token, dim = self._shapes["query"]
        ranked = c.method not in ("uniform", "blind")
        # Projections to queries and keys, and their lengths.
        projections = c.n_patches * 2 * (2 * token * dim + 3 * dim) if ranked else 0
        read = {"blind": 0, "uniform": c.n_patches}.get(c.method, c.kept)
        # Values; per foot and candidate: distance, square, exponential, and a multiply-add.
        readout = read * (2 * token + _FEET * c.candidates * 6)
        return projections + self.ranking_flops() + readout
