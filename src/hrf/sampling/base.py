"""The interface of all samplers: checks of arguments, and queries flattened to ``(N, d)``."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn
from typing_extensions import Self, override

from hrf.checks import check_count, check_tensor, check_tensors, generator_of
from hrf.numerics import can_look, check_finite

__all__ = ["EmbeddingSampler", "Sampler", "Samples"]


class Samples(NamedTuple):
    """Drawn classes.

    Attributes:
        ids: ``(..., k)``, whole numbers below the number of classes.
        log_probs: log q of each class, ``(..., k)``: class c is drawn k·q(c | x) times on average.
    """

    ids: Tensor
    log_probs: Tensor


class Sampler(nn.Module):
    """Sampler of classes for queries, from a distribution q(c | x) that it knows.

    Subclasses define `_sample` and `_log_prob` for queries ``(N, d)``.

    Attributes:
        n_classes: number C of classes.
        dim: length d of a query; ``None`` if draws do not depend on queries.
    """

    dim: int | None = None

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.n_classes = check_count("n_classes", n_classes)

    @torch.no_grad()
    def sample(
        self, queries: Tensor, k: int, generator: Generator | None = None, *, seed: int | None = None
    ) -> Samples:
        """Draw k classes for each query: ``(..., d) -> (..., k)``.

        Args:
            queries: at least one query; no gradient flows through them.
            k: number of draws, at most the number of classes.
            generator: the source of randomness, on the device of the queries; PyTorch's global generator by default.
            seed: seed of a new generator, in place of ``generator``.
        """
        flat = self.checked_queries(queries, k)
        generator = generator_of(generator, seed, queries.device)
        with torch.autocast(queries.device.type, enabled=False):  # half precision cannot carry an exponential
            ids, log_probs = self._sample(flat, k, generator)
        return Samples(ids.view(*queries.shape[:-1], k), log_probs.view(*queries.shape[:-1], k))

    @torch.no_grad()
    def log_prob(self, queries: Tensor, ids: Tensor) -> Tensor:
        """Return log q(id | x) for any classes: ``(..., d), (..., n) -> (..., n)``."""
        flat = self.checked_pairs(queries, ids)
        with torch.autocast(queries.device.type, enabled=False):
            return self._log_prob(flat, ids.reshape(len(flat), -1)).view(ids.shape)

    def update_(self, ids: Tensor, embeddings: Tensor) -> Self:
        """Replace the embeddings of a few classes; a sampler without embeddings stays as it is.

        Args:
            ids: distinct classes, ``(n,)``.
            embeddings: ``(n, d)``.
        """
        return self

    def rebuild_(self, embeddings: Tensor | None = None) -> Self:
        """Recompute everything, from new embeddings ``(C, d)`` if there are any."""
        return self

    def checked_queries(self, queries: Tensor, k: int) -> Tensor:
        """Check the arguments of `sample`, and return the queries as ``(N, d)``, in float32 or wider."""
        if check_count("k", k) > self.n_classes:
            raise ValueError(f"k is {k}; expected at most the number of classes, {self.n_classes}")
        return self._flat(queries)

    def checked_pairs(self, queries: Tensor, ids: Tensor) -> Tensor:
        """Check the arguments of `log_prob`, and return the queries as ``(N, d)``, in float32 or wider."""
        flat = self._flat(queries)
        check_tensors(ids=ids)
        if ids.ndim != queries.ndim or ids.shape[:-1] != queries.shape[:-1] or not ids.shape[-1]:
            raise ValueError(
                f"ids has shape {tuple(ids.shape)}; expected ({', '.join(map(str, queries.shape[:-1]))}, n), n ≥ 1"
            )
        self.check_ids(ids)
        return flat

    def check_ids(self, ids: Tensor, name: str = "ids") -> None:
        """Refuse a tensor of anything but classes, calling it ``name``."""
        check_tensors(**{name: ids})
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise TypeError(f"{name} is a tensor of {ids.dtype}; expected whole numbers")
        if not ids.numel() or not can_look(ids):
            return
        low, high = (int(bound) for bound in ids.aminmax())
        if low < 0 or high >= self.n_classes:
            raise ValueError(
                f"{name} run from {low} to {high}; expected classes from 0 to {self.n_classes - 1}"
            )

    @override
    def extra_repr(self) -> str:
        return f"n_classes={self.n_classes}"

    def _sample(self, queries: Tensor, k: int, generator: Generator | None) -> Samples:
        raise NotImplementedError(f"{type(self).__name__} does not define its draws")

    def _log_prob(self, queries: Tensor, ids: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} does not define its probabilities")

    def _flat(self, queries: Tensor) -> Tensor:
        """Check queries and flatten them to ``(N, d)``, in float32 or wider."""
        check_tensors(queries=queries)
        if not queries.is_floating_point():
            raise TypeError(f"queries is a tensor of {queries.dtype}; expected a real floating-point tensor")
        width = "d" if self.dim is None else self.dim
        if not queries.ndim or not queries.numel() or self.dim not in (None, queries.shape[-1]):
            raise ValueError(
                f"queries has shape {tuple(queries.shape)}; expected (..., {width}) with at least one query"
            )
        check_finite(queries, queries, "queries")
        return queries.reshape(-1, queries.shape[-1]).to(torch.promote_types(queries.dtype, torch.float32))


class EmbeddingSampler(Sampler):
    """Sampler that compares queries with embeddings of the classes, of which it holds a copy.

    Args:
        class_embeddings: ``(C, d)``, finite.
        dtype: dtype of the copy, or else the wider one of the embeddings.
    """

    dim: int
    embeddings: Tensor

    def __init__(self, class_embeddings: Tensor, dtype: torch.dtype) -> None:
        check_tensors(class_embeddings=class_embeddings)
        if class_embeddings.ndim != 2:
            shape = tuple(class_embeddings.shape)
            raise ValueError(f"class_embeddings is a tensor of shape {shape}; expected a tensor (C, d)")
        super().__init__(len(class_embeddings))
        self.dim = class_embeddings.shape[1]
        rows = self._rows(class_embeddings, self.n_classes)
        dtype = torch.promote_types(class_embeddings.dtype, dtype)
        self.register_buffer("embeddings", rows.to(dtype, copy=True))

    @override
    def update_(self, ids: Tensor, embeddings: Tensor) -> Self:
        self.check_ids(ids)
        if ids.ndim != 1 or ids.unique().numel() != ids.numel():
            raise ValueError(
                f"ids has shape {tuple(ids.shape)} or repeats a class; expected distinct classes, (n,)"
            )
        self.embeddings[ids] = self._rows(embeddings, len(ids)).to(self.embeddings.dtype)
        if len(ids):
            self._refreshed(ids)
        return self

    @override
    def rebuild_(self, embeddings: Tensor | None = None) -> Self:
        if embeddings is not None:
            self.embeddings.copy_(self._rows(embeddings, self.n_classes))
        self._refreshed(None)
        return self

    @override
    def extra_repr(self) -> str:
        return f"n_classes={self.n_classes}, dim={self.dim}"

    def _rows(self, embeddings: Tensor, n: int) -> Tensor:
        """Check embeddings and bring them to the form in which they are held."""
        check_tensor("class_embeddings", embeddings, [(n, self.dim)])
        return embeddings.detach()

    @torch.no_grad()
    def _refreshed(self, ids: Tensor | None) -> None:
        with torch.autocast(self.embeddings.device.type, enabled=False):
            self._refresh(ids)

    def _refresh(self, ids: Tensor | None) -> None:
        """Recompute what depends on the embeddings of these classes, or of all classes."""
