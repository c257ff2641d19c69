"""The ranks of a group and the collectives that all of them join, with errors that name ranks and a count of bytes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

__all__ = ["Group", "RankError", "Ranks", "Traffic", "traffic"]

# `None` is the default group.
Group: TypeAlias = ProcessGroup | DeviceMesh | None

_GRACE = 5.0  # seconds in which other ranks that wait in vain say so


class RankError(RuntimeError):
    """Another rank raised an error, or did not come."""


@dataclass
class Traffic:
    """Count of what this rank handed to collectives.

    Attributes:
        bytes: of all tensors handed over, in the forward and the backward pass.
        collectives: number of calls.
    """

    bytes: int = 0
    collectives: int = 0


_OPEN: list[Traffic] = []


@contextmanager
def traffic() -> Iterator[Traffic]:
    """Count the bytes that this rank hands to the collectives of `hrf.distributed`.

    >>> import hrf
    >>> with hrf.distributed.traffic() as moved:
    ...     pass
    >>> moved
    Traffic(bytes=0, collectives=0)
    """
    count = Traffic()
    _OPEN.append(count)
    try:
        yield count
    finally:
        _OPEN[:] = [other for other in _OPEN if other is not count]  # equal counts may be open at once


class Ranks:
    """The ranks of a group, as this one sees them.

    Args:
        group: a process group, a `DeviceMesh` with one axis, or ``None`` for the default group.

    Attributes:
        group: the process group.
        rank: of this process in the group.
        size: number of ranks.
        device: where tensors have to be for collectives.
    """

    def __init__(self, group: Group = None) -> None:
        if not distributed.is_available() or not distributed.is_initialized():
            raise RuntimeError(
                "torch.distributed has no process group; expected torch.distributed.init_process_group() first, in a "
                "program started by torchrun"
            )
        if isinstance(group, DeviceMesh):
            if group.ndim != 1:
                raise ValueError(
                    f"the mesh has axes {group.mesh_dim_names or group.ndim}; expected one axis, as in mesh['sequence']"
                )
            group = group.get_group()
        if group is not None and not isinstance(group, ProcessGroup):
            received = (
                "GroupMember.NON_GROUP_MEMBER: this rank is not in the group"
                if group == distributed.GroupMember.NON_GROUP_MEMBER
                else f"of type {type(group).__name__}"
            )
            raise TypeError(f"group is {received}; expected a process group with this rank, a mesh or None")
        self.group: ProcessGroup = distributed.group.WORLD if group is None else group  # type: ignore[assignment]
        self.rank, self.size = distributed.get_rank(self.group), distributed.get_world_size(self.group)
        backend = distributed.get_backend(self.group)
        self.device = torch.device("cuda" if "nccl" in backend else "cpu")

    def __deepcopy__(self, memo: object) -> Ranks:
        return self  # copies of a layer meet in the same group

    def gather(self, own: Tensor, what: str) -> Tensor:
        """Return the tensors of all ranks, which have one shape: ``(...) -> (size, ...)``."""
        found = [torch.empty_like(own) for _ in range(self.size)]
        with self._meeting(what, own):
            distributed.all_gather(found, own.contiguous(), group=self.group)
        return torch.stack(found)

    def add_(self, own: Tensor, what: str) -> Tensor:
        """Add the tensors of all ranks, in place."""
        with self._meeting(what, own):
            distributed.all_reduce(own, distributed.ReduceOp.SUM, group=self.group)
        return own

    def maximum_(self, own: Tensor, what: str) -> Tensor:
        """Take the maximum over all ranks, in place."""
        with self._meeting(what, own):
            distributed.all_reduce(own, distributed.ReduceOp.MAX, group=self.group)
        return own

    def broadcast_(self, own: Tensor, what: str) -> Tensor:
        """Take the tensor of the first rank, in place."""
        with self._meeting(what, own):
            distributed.broadcast(own, group=self.group, group_src=0)
        return own

    def shift(self, own: Tensor, distance: int, what: str) -> Tensor | None:
        """Send a tensor this many ranks ahead, and return the one that arrives; ``None`` if none does."""
        target, source, received = self.rank + distance, self.rank - distance, torch.empty_like(own)
        sends, arrives = 0 <= target < self.size, 0 <= source < self.size
        operations = []
        if sends:
            operations.append(
                distributed.P2POp(distributed.isend, own.contiguous(), group=self.group, group_peer=target)
            )
        if arrives:
            operations.append(
                distributed.P2POp(distributed.irecv, received, group=self.group, group_peer=source)
            )
        with self._meeting(what, own if sends else own[:0]):
            for work in distributed.batch_isend_irecv(operations) if operations else ():
                work.wait()
        return received if arrives else None

    @contextmanager
    def _meeting(self, what: str, own: Tensor) -> Iterator[None]:
        """Count bytes, and let errors say who is missing."""
        for count in _OPEN:
            count.bytes += own.numel() * own.element_size()
            count.collectives += 1
        try:
            yield
        except RuntimeError as error:
            raise RankError(self._in_vain(what, error)) from error

    def _in_vain(self, what: str, error: Exception) -> str:
        """Say which ranks did not come, given that ranks that did come say so now."""
        waited = f"rank {self.rank} waited in vain for {what}"
        reason = str(error).splitlines()[0]
        try:
            missing = self._missing()
        except RuntimeError:
            return f"{waited}, and the store of the group no longer answers, so its host has ended: {reason}"
        if not missing:
            return f"{waited}, though every rank came: {reason}"
        names = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))}"
        return f"{waited}: {names} did not come; look for an error there. ({reason})"

    def _missing(self) -> list[int]:
        store = torch.distributed.distributed_c10d._get_default_store()
        keys = {rank: f"hrf/{self.group.group_name}/{rank} waits" for rank in range(self.size)}
        store.set(keys[self.rank], "1")
        end, missing = time.monotonic() + _GRACE, list(keys)
        while missing and time.monotonic() < end:
            missing = [rank for rank in missing if not store.check([keys[rank]])]
            time.sleep(0.05)
        return missing
