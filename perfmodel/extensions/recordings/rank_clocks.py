"""Rank clocks: recorded collectives of all ranks, their common clock, and waiting in them.

Calls of a group are counted from the end of the window, because at its beginning some ranks have
recorded more than others; leading calls without a partner stay plain tasks. Members leave a
collective together: that aligns the clocks of hosts, and separates waiting from transfer time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from collectives.collective import CollectiveKind
from perfmodel.base.errors import TraceError
from perfmodel.base.units import format_duration
from perfmodel.extensions.recordings.collective_calls import CollectiveKernel
from perfmodel.extensions.recordings.rank_view import RankView
from perfmodel.graph.program import Int64s
from perfmodel.graph.rendezvous import (
    Divergence,
    calls_by_group,
    describe_collective,
    find_divergence,
    missing_call,
)

# No rank can leave a collective before the last has arrived, but clocks are not exact.
_IMPOSSIBLE_NS = 200_000
_MAX_IMPOSSIBLE_RATIO = 0.1
# Clocks of ranks on one host agree better than this; a larger shift is another host.
_SAME_HOST_NS = 200_000
_END_TOLERANCE_NS = 100_000
# Ends that are nearer to each other on average need no lost call to explain them.
_TOGETHER_NS = 20_000
_SHORTEST_TRANSFER_NS = 1_000
_ALONE = CollectiveKind.BROADCAST


@dataclass(frozen=True, slots=True)
class MatchedGroup:
    """The collectives that the recorded members of a group made together.

    `calls[m][q]` is the part of member number m in rendezvous number q. *lost* names a call that
    a member lacks, for which earlier ones have no partner or a wrong one; empty if there is none.
    """

    name: str
    members: tuple[int, ...]
    calls: tuple[tuple[CollectiveKernel, ...], ...]
    lost: str = ""

    @property
    def count(self) -> int:
        """Number of rendezvous."""
        return len(self.calls[0])


def match_collectives(
    views: Sequence[RankView], calls: Sequence[Sequence[CollectiveKernel]]
) -> tuple[MatchedGroup, ...]:
    """Match the *calls* of the recorded ranks of *views*; members are numbers in *views*."""
    groups = [_match(name, views, found) for name, found in sorted(calls_by_group(calls).items())]
    return tuple(group for group in groups if group is not None)


def _match(
    name: str, views: Sequence[RankView], members: dict[int, list[CollectiveKernel]]
) -> MatchedGroup | None:
    if len(members) < 2:
        return None
    counts = _ended_in_all(
        [_ends_ns(views[member], calls) for member, calls in members.items()],
        min(int(views[member].device.end_ns.max()) for member in members),
    )
    members = {
        member: calls[:count]
        for (member, calls), count in zip(members.items(), counts, strict=True)
    }
    made = {views[member].trace.rank: calls for member, calls in members.items()}
    from_end = [(rank, calls[::-1]) for rank, calls in made.items()]
    divergence = find_divergence(from_end, lambda call: call.signature, _describe, is_cut=True)
    lengths = [len(calls) for calls in made.values()]
    count, lost = min(lengths), None
    if divergence or count < max(lengths):
        ends_ns = [_ends_ns(views[member], calls) for member, calls in members.items()]
        lost = _find_lost(made, ends_ns)
    if divergence:
        # Only at the edge of the window may collectives differ.
        if divergence.number < count / 2:
            first = lost or replace(divergence, number=lengths[0] - 1 - divergence.number)
            raise TraceError(
                f"{first.sentence(name)} The traces are not of the same steps, or one is "
                "incomplete."
            )
        count = divergence.number
    if not count:
        return None
    calls = tuple(tuple(of_member[-count:]) for of_member in members.values())
    return MatchedGroup(name, tuple(members), calls, lost.sentence(name) if lost else "")


def _ended_in_all(ends_ns: Sequence[Int64s], last_ns: int) -> list[int]:
    """How many calls of each member ended before *last_ns*, when the first window ends.

    All of them, unless the calls of ranks on one host then end together and did not before.
    """
    whole = [len(of_member) for of_member in ends_ns]
    early = [int(np.count_nonzero(of <= last_ns + _SAME_HOST_NS)) for of in ends_ns]
    if early == whole or not min(early):
        return whole

    def ahead_ns(counts: Sequence[int]) -> Int64s:
        shortest = min(counts)
        rows = [of[count - shortest : count] for of, count in zip(ends_ns, counts, strict=True)]
        return np.array([row - rows[0] for row in rows[1:]])

    apart_ns = ahead_ns(whole)
    apart_ns -= np.median(apart_ns, axis=1, keepdims=True).astype(np.int64)
    is_together = 2 * np.abs(ahead_ns(early)).mean() < np.abs(apart_ns).mean()
    return early if is_together else whole


def _describe(call: CollectiveKernel) -> str:
    if call.collective is not None:
        return describe_collective(call.collective)
    return str(call.signature[0] if call.kind is None else call.kind.value)


def _ends_ns(view: RankView, calls: Sequence[CollectiveKernel]) -> Int64s:
    """When each of the *calls* of a rank ended."""
    ends_ns: Int64s = view.device.end_ns[np.array([call.task for call in calls], dtype=np.int64)]
    return ends_ns


def _find_lost(
    made: dict[int, list[CollectiveKernel]], ends_ns: Sequence[Int64s]
) -> Divergence | None:
    """The call of some ranks that others lack; None if there is none.

    *made* has the calls of a group by rank, *ends_ns* when those of each rank ended.
    """
    numbers: dict[object, int] = {}
    from_end = {
        rank: (
            np.array([numbers.setdefault(one.signature, len(numbers)) for one in calls[::-1]]),
            of_rank[::-1],
        )
        for (rank, calls), of_rank in zip(made.items(), ends_ns, strict=True)
    }
    for maker, of_maker in from_end.items():
        lost = {rank: _lost_place(*of_maker, *of_rank) for rank, of_rank in from_end.items()}
        places = Counter(place for place in lost.values() if place is not None)
        if places:
            [(place, _)] = places.most_common(1)
            lacking = [rank for rank in made if lost[rank] == place]
            return missing_call(
                len(made[maker]) - 1 - place,
                lacking=lacking,
                makers=[rank for rank in made if rank not in lacking],
                call=_describe(made[maker][-1 - place]),
                instead=_describe(made[lacking[0]][-place]) if place else "no call",
            )
    return None


def _lost_place(made: Int64s, made_ns: Int64s, own: Int64s, own_ns: Int64s) -> int | None:
    """Which of the calls *made* by one rank is not among the *own* of another; None if all are.

    Both are numbers of signatures, with the ends of the calls, counted from the end of the window.
    Without the lost call more signatures agree, or the calls end together.
    """
    length = min(len(made) - 1, len(own))
    alike = _agreement(made[:length], own)
    known = alike + _agreement(made[alike + 1 :], own[alike:])
    replaced = alike + 1 + _agreement(made[alike + 1 :], own[alike + 1 :])
    # One call more may be chance, unless it is the last.
    is_told = known > alike + (known < length) and known >= replaced

    def spread_ns(place: int) -> float:
        ahead_ns = own_ns[:known] - np.delete(made_ns, place)[:known]
        return float(np.abs(ahead_ns - np.median(ahead_ns)).mean())

    if not known or (not is_told and (known < length or spread_ns(length) < _TOGETHER_NS)):
        return None
    # Of equal calls that follow each other, any may be the lost one.
    first = alike - _agreement(made[1 : alike + 1][::-1], own[:alike][::-1])
    place = min(range(first, alike + 1), key=spread_ns)
    return place if is_told or 2 * spread_ns(place) < spread_ns(length) else None


def _agreement(one: Int64s, other: Int64s) -> int:
    """How many numbers at the beginning are equal."""
    shortest = min(len(one), len(other))
    differs = np.flatnonzero(one[:shortest] != other[:shortest])
    return int(differs[0]) if len(differs) else shortest


def rank_offsets_ns(views: Sequence[RankView], groups: Sequence[MatchedGroup]) -> list[int]:
    """How far to move the clocks of each rank so that collectives end together."""
    offsets = [0] * len(views)
    is_set = [rank == 0 for rank in range(len(views))]
    for group in sorted(groups, key=lambda group: -len(group.members)):
        base = next((m for m, rank in enumerate(group.members) if is_set[rank]), 0)
        is_set[group.members[base]] = True
        for member, rank in enumerate(group.members):
            if not is_set[rank]:
                own_ns, base_ns = (
                    # The root of a broadcast leaves before the others.
                    _ends_ns(
                        views[group.members[one]],
                        [call for call in group.calls[one] if call.kind is not _ALONE],
                    )
                    for one in (member, base)
                )
                ahead_ns = own_ns - base_ns
                if len(ahead_ns):
                    shift_ns = offsets[group.members[base]] - int(np.median(ahead_ns))
                    offsets[rank] = shift_ns if abs(shift_ns) > _SAME_HOST_NS else 0
                    is_set[rank] = True
    return offsets


def check_overlap(views: Sequence[RankView], group: MatchedGroup) -> str:
    """Raise if members cannot have been in the same collectives; a fault if that is rare.

    A lost call is a fault of its own.
    """
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
        f"{group.lost or 'A collective is missing in one of the traces, or their clocks jump.'}"
    )
    if len(impossible) > _MAX_IMPOSSIBLE_RATIO * group.count:
        raise TraceError(sentence)
    return "" if group.lost else sentence


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
