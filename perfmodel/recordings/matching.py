"""Matching: which communication kernels of different ranks are one rendezvous.

Counted from the end of the window, because at its beginning some ranks have
recorded more than others. The leading ones that have no partner stay plain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collectives.collective import CollectiveKind
from perfmodel.base.errors import TraceError
from perfmodel.base.units import format_duration
from perfmodel.recordings.collective_calls import CollectiveCall
from perfmodel.recordings.rank_view import Int64s, RankView

# Nobody can leave a collective before the last has come, but clocks are not exact.
_IMPOSSIBLE_NS = 200_000
_MAX_IMPOSSIBLE_RATIO = 0.1
# Clocks of ranks on one host agree better than this; a larger shift is another host.
_SAME_HOST_NS = 200_000
_END_TOLERANCE_NS = 100_000
_SHORTEST_TRANSFER_NS = 1_000
_ALONE = CollectiveKind.BROADCAST


@dataclass(frozen=True, slots=True)
class MatchedGroup:
    """The collectives that the recorded members of a group made together.

    `calls[m][q]` is the part of the member number m in the rendezvous number q.
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
    by_group: dict[str, dict[int, list[CollectiveCall]]] = {}
    for rank, of_rank in enumerate(calls):
        for call in of_rank:
            by_group.setdefault(call.group, {}).setdefault(rank, []).append(call)
    groups = [_match(name, members) for name, members in sorted(by_group.items())]
    return tuple(group for group in groups if group is not None)


def _match(name: str, members: dict[int, list[CollectiveCall]]) -> MatchedGroup | None:
    if len(members) < 2:
        return None
    shortest = min(len(of_member) for of_member in members.values())
    count = 0
    while count < shortest:
        found = {of_member[-1 - count].signature for of_member in members.values()}
        if len(found) > 1:
            _check_divergence(name, members, count, shortest)
            break
        count += 1
    if not count:
        return None
    ranks = tuple(sorted(members))
    return MatchedGroup(
        name=name,
        members=ranks,
        calls=tuple(tuple(members[rank][len(members[rank]) - count :]) for rank in ranks),
    )


def _check_divergence(
    name: str, members: dict[int, list[CollectiveCall]], count: int, shortest: int
) -> None:
    """Different collectives in the middle of the window are no matter of its edge."""
    if count >= shortest / 2:
        return
    words = ", ".join(
        f"rank number {rank} made {of_member[-1 - count].signature}"
        for rank, of_member in sorted(members.items())
    )
    raise TraceError(
        f"group {name!r}: all ranks must make the same collectives; counted from the end, "
        f"#{count} differs: {words}. The traces are not of the same steps, or one is incomplete."
    )


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
                if not len(ahead_ns):
                    continue
                shift_ns = offsets[group.members[base]] - int(np.median(ahead_ns))
                offsets[rank] = shift_ns if abs(shift_ns) > _SAME_HOST_NS else 0
                is_set[rank] = True
    return offsets


def _ends(views: Sequence[RankView], group: MatchedGroup, member: int) -> Int64s:
    """Ends of collectives that all members leave together, which a broadcast is not."""
    tasks = [call.task for call in group.calls[member] if call.kind is not _ALONE]
    ends: Int64s = views[group.members[member]].device.end_ns[np.array(tasks, dtype=np.int64)]
    return ends


def check_overlap(views: Sequence[RankView], group: MatchedGroup) -> str:
    """Raise where members cannot have been in the same collectives; name it where few are so."""
    impossible = []
    for number in range(group.count):
        if group.calls[0][number].kind is _ALONE:
            continue
        starts, ends = _spans(views, group, number)
        if min(ends) < max(starts) - _IMPOSSIBLE_NS:
            impossible.append((number, int(np.argmin(ends)), int(np.argmax(starts))))
    if not impossible:
        return ""
    number, early, late = impossible[-1]
    starts, ends = _spans(views, group, number)
    sentence = (
        f"group {group.name!r}: members of a collective must be in it at the same time, but "
        f"rank {views[group.members[early]].trace.rank} left #{number} "
        f"{format_duration(max(starts) - min(ends))} before rank "
        f"{views[group.members[late]].trace.rank} came ({len(impossible)} such of {group.count}). "
        "A collective is missing in one of the traces, or their clocks jump."
    )
    if len(impossible) > _MAX_IMPOSSIBLE_RATIO * group.count:
        raise TraceError(sentence)
    return sentence


def _spans(
    views: Sequence[RankView], group: MatchedGroup, number: int
) -> tuple[list[int], list[int]]:
    starts, ends = [], []
    for member, rank in enumerate(group.members):
        task = group.calls[member][number].task
        starts.append(int(views[rank].device.start_ns[task]))
        ends.append(int(views[rank].device.end_ns[task]))
    return starts, ends


def transfer_ns(views: Sequence[RankView], group: MatchedGroup, number: int) -> list[int]:
    """How long the transfer took for each member: what it spent after the last had come.

    The last to come does not wait, so its kernel is all transfer. Ends that
    differ by no more than the clocks may are taken as one.
    """
    starts, ends = _spans(views, group, number)
    members = list(range(len(starts)))
    root = root_of(group, number)
    waiting = [member for member in members if member != root]
    last = max(waiting, key=lambda member: starts[member])
    length = ends[last] - starts[last]
    result = []
    for member in members:
        differs = ends[member] - ends[last]
        if member == root:
            result.append(ends[member] - starts[member])
        elif abs(differs) > _END_TOLERANCE_NS:
            result.append(max(length + differs, _SHORTEST_TRANSFER_NS))
        else:
            result.append(length)
    return result


def root_of(group: MatchedGroup, number: int) -> int | None:
    """The member that sends a broadcast and does not wait: the first of the group."""
    is_broadcast = group.calls[0][number].kind is _ALONE
    return 0 if is_broadcast else None
