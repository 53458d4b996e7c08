"""Peer groups: which collectives of the ranks of a trace without times are one.

The calls of a group are numbered on every rank; those of one number are one
rendezvous. Where fewer ranks were recorded than a group has, the others are
taken to do what the recorded ones do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collectives.collective import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import TraceError
from perfmodel.graph.builder import JobBuilder

_MOST_RANKS = 2**16


@dataclass(frozen=True, slots=True)
class PeerCall:
    """A rank's part in a collective, as it describes it itself.

    *group_size* is 0 where it is not said; *sent_bytes* is for an uneven all-to-all.
    """

    group: str
    group_size: int
    kind: CollectiveKind
    size_bytes: int
    dtype: DType
    stride: int = 1
    sent_bytes: tuple[int, ...] = ()
    key: int = 0


@dataclass(frozen=True, slots=True)
class PeerGroup:
    """A group: its recorded ranks, its size in the job, and what it does together.

    *stated* is the size that its calls state, 0 where they do not.
    """

    name: str
    recorded: tuple[int, ...]
    size: int
    stride: int
    collectives: tuple[Collective, ...]
    stated: int = 0


@dataclass(frozen=True, slots=True)
class PeerGroups:
    """All groups of a job that has *rank_count* ranks, *recorded_count* of them recorded."""

    groups: tuple[PeerGroup, ...]
    rank_count: int
    recorded_count: int
    faults: tuple[str, ...] = ()

    def slot_of(self, name: str) -> int:
        """The communicator of the group *name*."""
        return next(slot for slot, group in enumerate(self.groups) if group.name == name)

    def collective_of(self, name: str, number: int) -> Collective | None:
        """What group *name* does as its *number*; None where it is no group to speak of."""
        found = next((group for group in self.groups if group.name == name), None)
        return None if found is None else found.collectives[number]

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What was taken for granted about ranks that were not recorded."""
        if self.rank_count == self.recorded_count:
            return ()
        return (
            (
                f"{self.recorded_count} of {self.rank_count} ranks were recorded; the others are "
                "taken to do the same, in groups of neighbouring ranks"
            ),
        )

    def add_groups(self, job: JobBuilder) -> None:
        """Add every group to *job*, whose ranks have been added."""
        is_whole = self.rank_count == self.recorded_count
        for slot, group in enumerate(self.groups):
            if is_whole:
                job.add_group(group.name, group.recorded, slot=slot)
                continue
            for number, ranks in enumerate(_parts(self.rank_count, group.size, group.stride)):
                job.add_group(f"{group.name} {number}", ranks, slot=slot)


def _parts(rank_count: int, size: int, stride: int) -> list[list[int]]:
    """Ranks in groups of *size*, *stride* apart; what does not divide is one group each."""
    if rank_count % (size * stride):
        stride = 1
    if rank_count % size:
        return [list(range(rank_count))]
    parts: dict[tuple[int, int], list[int]] = {}
    for rank in range(rank_count):
        parts.setdefault((rank // (size * stride), rank % stride), []).append(rank)
    return list(parts.values())


def group_peers(name: str, calls: Sequence[Sequence[PeerCall]]) -> PeerGroups:
    """The groups behind the *calls* of every recorded rank of job *name*."""
    by_group: dict[str, dict[int, list[PeerCall]]] = {}
    for rank, of_rank in enumerate(calls):
        for call in of_rank:
            by_group.setdefault(call.group, {}).setdefault(rank, []).append(call)
    largest = max((call.group_size for of_rank in calls for call in of_rank), default=0)
    if largest > _MOST_RANKS:
        raise TraceError(
            f"job {name!r}: a group must have at most {_MOST_RANKS} ranks, one says {largest}."
        )
    rank_count = max(largest, len(calls))
    groups = [_group(group, members, len(calls), rank_count) for group, members in by_group.items()]
    faults = [
        f"the {len(group.collectives)} collectives of group {group.name!r} have no partner in the "
        "traces: they keep their time or are left out"
        for group in groups
        if group.size < 2 and not group.stated
    ]
    if rank_count > len(calls):
        lost = rank_count - len(calls)
        faults.append(f"{lost} of {rank_count} ranks are not recorded; they are taken to do alike")
    kept = tuple(group for group in groups if group.size > 1)
    return PeerGroups(kept, rank_count, len(calls), tuple(faults))


def _group(
    name: str, members: dict[int, list[PeerCall]], recorded: int, rank_count: int
) -> PeerGroup:
    counts = {rank: len(of_rank) for rank, of_rank in members.items()}
    if len(set(counts.values())) > 1:
        words = ", ".join(f"rank {rank} makes {count}" for rank, count in sorted(counts.items()))
        raise TraceError(
            f"group {name!r}: all ranks must make the same collectives, but {words}. The traces "
            "are not of the same step, or one is incomplete."
        )
    first = next(iter(members.values()))
    stated = max((call.group_size for call in first), default=0)
    if rank_count == recorded:
        if stated > len(members):
            raise TraceError(
                f"group {name!r}: says that it has {stated} ranks, but collectives of only "
                f"{len(members)} are in the traces. One of them is incomplete."
            )
        size = len(members)
    else:
        size = min(stated or rank_count, rank_count)
    together = [
        _together(name, number, [of_rank[number] for _, of_rank in sorted(members.items())])
        for number in range(len(first))
    ]
    return PeerGroup(name, tuple(sorted(members)), size, first[0].stride, tuple(together), stated)


def _together(name: str, number: int, parts: Sequence[PeerCall]) -> Collective:
    kinds = {part.kind for part in parts}
    if len(kinds) > 1:
        words = ", ".join(sorted(kind.value for kind in kinds))
        raise TraceError(
            f"group {name!r}: all ranks must make the same collectives, but #{number} is {words}."
        )
    kind, size_bytes = parts[0].kind, max(part.size_bytes for part in parts)
    sent = tuple(part.sent_bytes for part in parts)
    is_matrix = all(len(row) == len(parts) for row in sent)
    if kind is CollectiveKind.ALL_TO_ALL and is_matrix and _is_uneven(sent):
        return Collective(kind, size_bytes, parts[0].dtype, byte_matrix=sent)
    sizes = {part.size_bytes for part in parts}
    if len(sizes) > 1 and kind in _EVEN:
        raise TraceError(
            f"group {name!r}: all ranks must give {kind.value} #{number} the same size, they give "
            f"{min(sizes)} to {max(sizes)} bytes. The traces are not of the same step."
        )
    return Collective(kind, size_bytes, parts[0].dtype)


def _is_uneven(sent: Sequence[Sequence[int]]) -> bool:
    return len({size_bytes for row in sent for size_bytes in row}) > 1


_EVEN = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER, CollectiveKind.BROADCAST)
