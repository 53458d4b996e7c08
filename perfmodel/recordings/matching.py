"""Matching: which collective calls of different ranks are one rendezvous.

Calls of a group are matched by their number. In a recording they are counted from the end of the
window, because at its beginning some ranks have recorded more than others; leading calls without
a partner stay plain tasks. Traces without times hold whole steps and must agree completely. If
fewer ranks were traced than a group has, the others are assumed to do the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from collectives.collective import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import TraceError
from perfmodel.base.units import format_duration
from perfmodel.graph.builder import JobBuilder
from perfmodel.recordings.collective_calls import CollectiveCall
from perfmodel.recordings.rank_view import Int64s, RankView

# No rank can leave a collective before the last has arrived, but clocks are not exact.
_IMPOSSIBLE_NS = 200_000
_MAX_IMPOSSIBLE_RATIO = 0.1
# Clocks of ranks on one host agree better than this; a larger shift is another host.
_SAME_HOST_NS = 200_000
_END_TOLERANCE_NS = 100_000
_SHORTEST_TRANSFER_NS = 1_000
_ALONE = CollectiveKind.BROADCAST
_EVEN = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER, CollectiveKind.BROADCAST)
_MOST_RANKS = 2**16


@dataclass(frozen=True, slots=True)
class PeerCall:
    """A rank's part in a collective of a trace without times.

    *group_size* is 0 if unknown; *sent_bytes* describes an uneven all-to-all.
    """

    group: str
    group_size: int
    kind: CollectiveKind
    size_bytes: int
    dtype: DType
    stride: int = 1
    sent_bytes: tuple[int, ...] = ()
    key: int = 0


Call = TypeVar("Call", CollectiveCall, PeerCall)


def _by_group(calls: Sequence[Sequence[Call]]) -> dict[str, dict[int, list[Call]]]:
    """The *calls* of every rank, by group and rank."""
    found: dict[str, dict[int, list[Call]]] = {}
    for rank, of_rank in enumerate(calls):
        for call in of_rank:
            found.setdefault(call.group, {}).setdefault(rank, []).append(call)
    return found


@dataclass(frozen=True, slots=True)
class MatchedGroup:
    """The collectives that the recorded members of a group made together.

    `calls[m][q]` is the part of member number m in rendezvous number q.
    """

    name: str
    members: tuple[int, ...]
    calls: tuple[tuple[CollectiveCall, ...], ...]

    @property
    def count(self) -> int:
        """Number of rendezvous."""
        return len(self.calls[0])


def match_collectives(calls: Sequence[Sequence[CollectiveCall]]) -> tuple[MatchedGroup, ...]:
    """Match the *calls* of each recorded rank, given in the order of the ranks' numbers here."""
    groups = [_match(name, members) for name, members in sorted(_by_group(calls).items())]
    return tuple(group for group in groups if group is not None)


def _match(name: str, members: dict[int, list[CollectiveCall]]) -> MatchedGroup | None:
    if len(members) < 2:
        return None
    shortest = min(len(of_member) for of_member in members.values())
    count = 0
    while count < shortest:
        if len({of_member[-1 - count].signature for of_member in members.values()}) > 1:
            # Only at the edge of the window may collectives differ.
            if count < shortest / 2:
                words = ", ".join(
                    f"rank number {rank} made {of_member[-1 - count].signature}"
                    for rank, of_member in sorted(members.items())
                )
                raise TraceError(
                    f"group {name!r}: all ranks must make the same collectives; counted from the "
                    f"end, #{count} differs: {words}. The traces are not of the same steps, or "
                    "one is incomplete."
                )
            break
        count += 1
    if not count:
        return None
    ranks = tuple(sorted(members))
    return MatchedGroup(name, ranks, tuple(tuple(members[rank][-count:]) for rank in ranks))


def rank_offsets_ns(views: Sequence[RankView], groups: Sequence[MatchedGroup]) -> list[int]:
    """How far to move the clocks of each rank so that collectives end together."""
    offsets = [0] * len(views)
    is_set = [rank == 0 for rank in range(len(views))]
    for group in sorted(groups, key=lambda group: -len(group.members)):
        base = next((m for m, rank in enumerate(group.members) if is_set[rank]), 0)
        is_set[group.members[base]] = True
        for member, rank in enumerate(group.members):
            if not is_set[rank]:
                ahead_ns = _ends(views, group, member) - _ends(views, group, base)
                if len(ahead_ns):
                    shift_ns = offsets[group.members[base]] - int(np.median(ahead_ns))
                    offsets[rank] = shift_ns if abs(shift_ns) > _SAME_HOST_NS else 0
                    is_set[rank] = True
    return offsets


def _ends(views: Sequence[RankView], group: MatchedGroup, member: int) -> Int64s:
    """Ends of collectives that all members leave together, which excludes broadcasts."""
    tasks = [call.task for call in group.calls[member] if call.kind is not _ALONE]
    ends: Int64s = views[group.members[member]].device.end_ns[np.array(tasks, dtype=np.int64)]
    return ends


def check_overlap(views: Sequence[RankView], group: MatchedGroup) -> str:
    """Raise if members cannot have been in the same collectives; a fault if that is rare."""
    impossible = []
    for number in range(group.count):
        if group.calls[0][number].kind is not _ALONE:
            starts, ends = _spans(views, group, number)
            if min(ends) < max(starts) - _IMPOSSIBLE_NS:
                impossible.append(number)
    if not impossible:
        return ""
    starts, ends = _spans(views, group, impossible[-1])
    early, late = group.members[np.argmin(ends)], group.members[np.argmax(starts)]
    sentence = (
        f"group {group.name!r}: members of a collective must be in it at the same time, but "
        f"rank {views[early].trace.rank} left #{impossible[-1]} "
        f"{format_duration(max(starts) - min(ends))} before rank {views[late].trace.rank} arrived "
        f"({len(impossible)} of {group.count} collectives). "
        "A collective is missing in one of the traces, or their clocks jump."
    )
    if len(impossible) > _MAX_IMPOSSIBLE_RATIO * group.count:
        raise TraceError(sentence)
    return sentence


def _spans(
    views: Sequence[RankView], group: MatchedGroup, number: int
) -> tuple[list[int], list[int]]:
    """Starts and ends of the members' kernels."""
    tasks = [of_member[number].task for of_member in group.calls]
    devices = [views[rank].device for rank in group.members]
    starts = [int(device.start_ns[task]) for device, task in zip(devices, tasks, strict=True)]
    return starts, [int(device.end_ns[task]) for device, task in zip(devices, tasks, strict=True)]


def transfer_ns(views: Sequence[RankView], group: MatchedGroup, number: int) -> list[int]:
    """How long the transfer took for each member: the time after the last had arrived.

    The last to arrive does not wait, so its kernel is all transfer. Ends that differ by no more
    than the clocks may are taken as one.
    """
    starts, ends = _spans(views, group, number)
    root = root_of(group, number)
    waiting = [member for member in range(len(starts)) if member != root]
    last = max(waiting, key=lambda member: starts[member])
    lengths = [ends[last] - starts[last]] * len(starts)
    for member in waiting:
        differs = ends[member] - ends[last]
        if abs(differs) > _END_TOLERANCE_NS:
            lengths[member] = max(lengths[member] + differs, _SHORTEST_TRANSFER_NS)
    if root is not None:
        lengths[root] = ends[root] - starts[root]
    return lengths


def root_of(group: MatchedGroup, number: int) -> int | None:
    """The member that sends a broadcast and does not wait: the first of the group."""
    return 0 if group.calls[0][number].kind is _ALONE else None


@dataclass(frozen=True, slots=True)
class PeerGroup:
    """A group: its traced ranks, its size in the job, and its collectives.

    *stated* is the size that its calls state, 0 if they do not.
    """

    recorded: tuple[int, ...]
    size: int
    stride: int
    collectives: tuple[Collective, ...]
    stated: int = 0


@dataclass(frozen=True, slots=True)
class PeerGroups:
    """All groups of a job by name; the job has *rank_count* ranks, *recorded_count* traced."""

    groups: Mapping[str, PeerGroup]
    rank_count: int
    recorded_count: int
    faults: tuple[str, ...] = ()

    def slot_of(self, name: str) -> int:
        """The communicator of the group *name*."""
        return list(self.groups).index(name)

    def iter_collectives(self) -> dict[str, Iterator[Collective]]:
        """For each group, its collectives in the order in which every member calls them."""
        return {name: iter(group.collectives) for name, group in self.groups.items()}

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumption about ranks without a trace."""
        if self.rank_count == self.recorded_count:
            return ()
        sentence = (
            f"{self.recorded_count} of {self.rank_count} ranks were recorded; the others are "
            "assumed to do the same, in groups of neighbouring ranks"
        )
        return (sentence,)

    def add_ranks(self, job: JobBuilder, programs: Sequence[int]) -> None:
        """Add every rank and group to *job*; ranks without a trace repeat *programs*."""
        for rank in range(self.rank_count):
            job.add_rank(programs[rank % len(programs)])
        for slot, (name, group) in enumerate(self.groups.items()):
            if self.rank_count == self.recorded_count:
                job.add_group(name, group.recorded, slot=slot)
                continue
            parts: dict[tuple[int, int], list[int]] = {}
            size = group.size if self.rank_count % group.size == 0 else self.rank_count
            stride = group.stride if self.rank_count % (size * group.stride) == 0 else 1
            for rank in range(self.rank_count):
                parts.setdefault((rank // (size * stride), rank % stride), []).append(rank)
            for number, ranks in enumerate(parts.values()):
                job.add_group(f"{name} {number}", ranks, slot=slot)


def group_peers(name: str, calls: Sequence[Sequence[PeerCall]]) -> PeerGroups:
    """The groups of the *calls* of every traced rank of job *name*."""
    largest = max((call.group_size for of_rank in calls for call in of_rank), default=0)
    if largest > _MOST_RANKS:
        raise TraceError(
            f"job {name!r}: a group must have at most {_MOST_RANKS} ranks, one says {largest}."
        )
    rank_count = max(largest, len(calls))
    groups = {
        group: _peer_group(group, members, len(calls), rank_count)
        for group, members in _by_group(calls).items()
    }
    faults = [
        f"the {len(group.collectives)} collectives of group {word!r} have no partner in the "
        "traces: they keep their time or are left out"
        for word, group in groups.items()
        if group.size < 2 and not group.stated
    ]
    if rank_count > len(calls):
        lost = rank_count - len(calls)
        faults.append(
            f"{lost} of {rank_count} ranks are not recorded; they are assumed to do the same"
        )
    kept = {word: group for word, group in groups.items() if group.size > 1}
    return PeerGroups(kept, rank_count, len(calls), tuple(faults))


def _peer_group(
    name: str, members: dict[int, list[PeerCall]], recorded: int, rank_count: int
) -> PeerGroup:
    counts = {rank: len(of_rank) for rank, of_rank in sorted(members.items())}
    if len(set(counts.values())) > 1:
        words = ", ".join(f"rank {rank} makes {count}" for rank, count in counts.items())
        raise TraceError(
            f"group {name!r}: all ranks must make the same collectives, but {words}. The traces "
            "are not of the same step, or one is incomplete."
        )
    first = next(iter(members.values()))
    stated = max((call.group_size for call in first), default=0)
    size = min(stated or rank_count, rank_count)
    if rank_count == recorded:
        size = len(members)
        if stated > size:
            raise TraceError(
                f"group {name!r}: states {stated} ranks, but collectives of only "
                f"{size} are in the traces. One of them is incomplete."
            )
    parts = zip(*(members[rank] for rank in counts), strict=True)
    collectives = tuple(_collective_of(name, number, of) for number, of in enumerate(parts))
    return PeerGroup(tuple(counts), size, first[0].stride, collectives, stated)


def _collective_of(name: str, number: int, parts: Sequence[PeerCall]) -> Collective:
    """The collective number *number* of group *name*, from the *parts* of its members."""
    kinds = {part.kind for part in parts}
    if len(kinds) > 1:
        words = ", ".join(sorted(kind.value for kind in kinds))
        raise TraceError(
            f"group {name!r}: all ranks must make the same collectives, but #{number} is {words}."
        )
    kind, sizes = parts[0].kind, {part.size_bytes for part in parts}
    sent = tuple(part.sent_bytes for part in parts)
    is_matrix = all(len(row) == len(parts) for row in sent)
    is_uneven = len({size_bytes for row in sent for size_bytes in row}) > 1
    if kind is CollectiveKind.ALL_TO_ALL and is_matrix and is_uneven:
        return Collective(kind, max(sizes), parts[0].dtype, byte_matrix=sent)
    if len(sizes) > 1 and kind in _EVEN:
        raise TraceError(
            f"group {name!r}: all ranks must give {kind.value} #{number} the same size, they give "
            f"{min(sizes)} to {max(sizes)} bytes. The traces are not of the same step."
        )
    return Collective(kind, max(sizes), parts[0].dtype)
