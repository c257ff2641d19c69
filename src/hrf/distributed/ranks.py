"""The ranks of a group and the collectives that all of them join, with errors that name ranks and a count of bytes.

Before ranks compute together they agree on a call, its maps among them (`together`, `fingerprint`).
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, NoReturn, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from torch import Generator, Tensor, distributed
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from hrf.checks import generator_of
from hrf.features.base import FeatureMap

__all__ = [
    "Description",
    "Group",
    "RankError",
    "Ranks",
    "Traffic",
    "digest",
    "fingerprint",
    "raw_bytes",
    "redraw_",
    "together",
    "traffic",
]

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
            raise RankError(self._timed_out(what, error)) from error

    def _timed_out(self, what: str, error: Exception) -> str:
        """Say which ranks did not come, given that ranks that did come say so now."""
        waited = f"rank {self.rank} timed out waiting for {what}"
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


# Agreement before ranks compute together: an error on one rank, or a difference, is a sentence on every rank.
#
# Each rank hands in a line of numbers: whether it failed, a hash of everything that has to be the same, whether it
# wants gradients, and its length. Only if something is wrong, texts follow.


Result = TypeVar("Result")

_TEXT = 2048  # bytes of a text


def digest(*parts: bytes) -> int:
    """Hash bytes to a signed number of 64 bits."""
    found = hashlib.blake2b(digest_size=8)
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + part)
    return int.from_bytes(found.digest(), "little", signed=True)


class Description(NamedTuple):
    """What a rank tells the others.

    Attributes:
        claims: what has to be the same on every rank, by name.
        wants_gradients: whether autograd follows along on this rank.
        length: number of tokens on this rank.
    """

    claims: Mapping[str, str] = {}
    wants_gradients: bool = False
    length: int = 0


def together(
    ranks: Ranks, work: Callable[[], Result], describe: Callable[[Result], Description]
) -> tuple[Result, list[Description]]:
    """Run ``work`` on every rank; if one raises, all raise, and if claims differ, too.

    Returns:
        The result of this rank, and the descriptions of all, without claims.
    """
    result, failure, own = None, None, Description()
    try:
        result = work()
        own = describe(result)
    except Exception as error:
        failure = error
    marks = (digest(name.encode(), text.encode()) for name, text in own.claims.items())
    same = digest(*(str(mark).encode() for mark in marks))
    line = [failure is not None, same, own.wants_gradients, own.length]
    lines = ranks.gather(torch.tensor(line, device=ranks.device), "agreement on a call").tolist()
    if failed := [rank for rank, line in enumerate(lines) if line[0]]:
        _raise_failures(ranks, failure, failed)
    if len({line[1] for line in lines}) > 1:
        _raise_difference(ranks, own.claims)
    return cast("Result", result), [Description({}, bool(wants), length) for _, _, wants, length in lines]


def _raise_failures(ranks: Ranks, failure: Exception | None, failed: list[int]) -> NoReturn:
    own = "" if failure is None else f"{type(failure).__name__}: {failure}"
    texts = _gather_texts(ranks, own)
    if failure is not None:
        raise failure
    raise RankError("; ".join(f"rank {rank} raised {texts[rank]}" for rank in failed))


def _raise_difference(ranks: Ranks, claims: Mapping[str, str]) -> NoReturn:
    """Name the claim that differs and the ranks that differ from most ranks, or from the first if there is no most."""
    every = [text.split("\n") for text in _gather_texts(ranks, "\n".join(claims.values()))]
    # Ranks in different functions have different claims.
    for name, texts in zip(claims, zip(*every, strict=False), strict=False):
        if len(set(texts)) == 1:
            continue
        counts = Counter(texts)
        most, count = counts.most_common(1)[0]
        usual = most if count > ranks.size / 2 else texts[0]
        others = [f"rank {rank} has {text}" for rank, text in enumerate(texts) if text != usual]
        raise ValueError(
            f"ranks differ in {name}: {'; '.join(others)}; expected {usual}, as on rank {texts.index(usual)}"
        )
    raise ValueError(
        "ranks differ in the function they call; expected the same calls in the same order on every rank"
    )


def _gather_texts(ranks: Ranks, text: str) -> list[str]:
    encoded = text.encode()[:_TEXT]
    own = torch.zeros(_TEXT, dtype=torch.uint8, device=ranks.device)
    own[: len(encoded)] = torch.tensor(list(encoded), dtype=torch.uint8)
    every = ranks.gather(own, "the texts of errors").cpu().numpy()
    return [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in every]


# Feature maps on many ranks: their fingerprints, which have to be equal, and redraws that keep them so.


Map = TypeVar("Map", bound=FeatureMap)

# Fingerprints of maps whose tensors have not changed since.
_KNOWN: WeakKeyDictionary[FeatureMap, tuple[tuple[object, ...], int]] = WeakKeyDictionary()


def redraw_(
    feature_map: Map, group: Group = None, *, generator: Generator | None = None, seed: int | None = None
) -> Map:
    """Draw every ω anew, in place, the same on every rank: all ranks of the group call this.

    Args:
        feature_map: equal on all ranks, as it is afterwards.
        group: a process group, a `DeviceMesh` with one axis, or ``None`` for the default group.
        generator: on the first rank, the source of the seed that all ranks use; PyTorch's global generator by default.
        seed: seed of a new generator, in place of ``generator``.
    """
    ranks, generator = Ranks(group), generator_of(generator, seed)
    own = torch.randint(2**62, (1,), generator=generator, dtype=torch.long).to(ranks.device)
    return feature_map.redraw_(seed=int(ranks.broadcast_(own, "the seed of a redraw")))


def fingerprint(feature_map: FeatureMap) -> int:
    """Hash the classes, settings and tensors of a map; changes in place are noticed."""
    state = tuple(
        (name, tensor.data_ptr(), tensor._version)
        for name, tensor in feature_map.state_dict(keep_vars=True).items()
    )
    known = _KNOWN.get(feature_map)
    if known is None or known[0] != state:
        known = _KNOWN[feature_map] = state, digest(*_bytes(feature_map))
    return known[1]


def _bytes(feature_map: FeatureMap) -> Iterator[bytes]:
    for name, module in feature_map.named_modules():
        settings = {
            key: value
            for key, value in vars(module).items()
            if isinstance(value, int | float | str) and not key.startswith("_") and key != "training"
        }
        yield f"{name} {type(module).__name__} {settings}".encode()
    for name, tensor in feature_map.state_dict().items():
        yield f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode()
        yield raw_bytes(tensor)


def raw_bytes(tensor: Tensor) -> bytes:
    """Return the content of a tensor."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
