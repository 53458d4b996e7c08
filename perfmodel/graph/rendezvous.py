"""Rendezvous: which calls of several ranks are one collective, and the first that has no match.

Members of a group must make the same collectives in the same order, so calls are matched by their
number. Where they differ, what most members do is right: the error names the rank that does
something else, the number of the call, and what the others do there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol, TypeVar

from collectives.collective import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import TraceError
from perfmodel.graph.builder import JobBuilder

_EVEN = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER, CollectiveKind.BROADCAST)
_MOST_RANKS = 2**16


class _InGroup(Protocol):
    @property
    def group(self) -> str: ...


Call = TypeVar("Call")
GroupCall = TypeVar("GroupCall", bound=_InGroup)


def calls_by_group(calls: Iterable[Iterable[GroupCall]]) -> dict[str, dict[int, list[GroupCall]]]:
    """The *calls* of every rank, by group and rank."""
    found: dict[str, dict[int, list[GroupCall]]] = {}
    for rank, of_rank in enumerate(calls):
        for call in of_rank:
            found.setdefault(call.group, {}).setdefault(rank, []).append(call)
    return found


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first call that differs between members of a group: its number, and who differs."""

    number: int
    text: str

    def sentence(self, group: str) -> str:
        """The divergence in words."""
        return (
            f"group {group!r}: members must make the same collectives in the same order; the first "
            f"that differs is #{self.number}: {self.text}."
        )


def find_divergence(
    members: Iterable[tuple[int, Sequence[Call]]],
    agreed: Callable[[Call], Hashable],
    describe: Callable[[Call], str],
    *,
    is_cut: bool = False,
) -> Divergence | None:
    """The first difference between the calls of *members*, each a rank and its calls.

    None if they are equal. *agreed* is what all members must agree on. If the sequences are
    *is_cut*, as those of recordings that begin at different moments, one that ends differs from
    no other.
    """
    ranks, calls = zip(*members, strict=True)
    rows = [tuple(map(agreed, of_member)) for of_member in calls]
    number = _agreement(*rows)
    if number == (min if is_cut else max)(map(len, rows)):
        return None
    there = [row[number : number + 1] for row in rows]
    votes = Counter(there)
    # Without a majority, the member with the most calls is right, then the first.
    right = max(range(len(rows)), key=lambda member: (votes[there[member]], len(rows[member])))
    odd = [member for member, call in enumerate(there) if call != there[right]]
    others = [member for member, call in enumerate(there) if call == there[right]]
    mine, theirs = rows[odd[0]][number:], rows[right][number:]
    made, expected = (
        describe(calls[member][number]) if there[member] else "no call"
        for member in (odd[0], right)
    )
    odd_ranks, other_ranks = ([ranks[member] for member in of] for of in (odd, others))
    # Whichever explains most of the calls that follow.
    lacks, adds = _agreement(mine, theirs[1:]), _agreement(mine[1:], theirs)
    differs = _agreement(mine[1:], theirs[1:])
    if not mine or lacks > max(adds, differs):
        return missing_call(
            number, lacking=odd_ranks, makers=other_ranks, call=expected, instead=made
        )
    if not theirs or adds > max(lacks, differs):
        return missing_call(
            number, lacking=other_ranks, makers=odd_ranks, call=made, instead=expected
        )
    text = f"{made} on {name_ranks(odd_ranks)}, {expected} on {name_ranks(other_ranks)}"
    return Divergence(number, text)


def missing_call(
    number: int, *, lacking: Sequence[int], makers: Sequence[int], call: str, instead: str
) -> Divergence:
    """The divergence of ranks *lacking* a *call* of the *makers*, in whose place is *instead*."""
    verb = "lacks" if len(lacking) == 1 else "lack"
    text = (
        f"{name_ranks(lacking)} {verb} {call}, made by {name_ranks(makers)}; "
        f"in its place: {instead}"
    )
    return Divergence(number, text)


def _agreement(*rows: Sequence[Hashable]) -> int:
    """How many calls at the beginning of *rows* are equal."""
    alike = takewhile(lambda calls: calls.count(calls[0]) == len(rows), zip(*rows, strict=False))
    return sum(1 for _ in alike)


def describe_collective(collective: Collective) -> str:
    """*collective* as errors name it."""
    return f"{collective.kind.value} of {collective.size_bytes} bytes ({collective.dtype.value})"


def name_ranks(ranks: Sequence[int]) -> str:
    """*ranks* as errors name them: `rank 3`, `ranks 0-7`, or the first six."""
    if not ranks:
        return "nobody"
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]}-{ranks[-1]}"
    shown = ", ".join(str(rank) for rank in ranks[:6])
    return f"ranks {shown}" + (f" and {len(ranks) - 6} more" if len(ranks) > 6 else "")


@dataclass(frozen=True, slots=True)
class PeerCall:
    """A rank's part in a collective.

    *group_size* is 0 if unknown; *sent_bytes* is what an all-to-all sends to each member, empty if
    that is unknown.
    """

    group: str
    group_size: int
    kind: CollectiveKind
    size_bytes: int
    dtype: DType
    stride: int = 1
    sent_bytes: tuple[int, ...] = ()
    key: int = 0
    root: int = 0

    @property
    def text(self) -> str:
        """The call as errors name it."""
        return describe_collective(Collective(self.kind, self.size_bytes, self.dtype))


def join_parts(parts: Sequence[PeerCall]) -> Collective:
    """The collective in which the members of a group have these *parts*."""
    first, sent = parts[0], tuple(part.sent_bytes for part in parts)
    matrix = None
    if first.kind is CollectiveKind.ALL_TO_ALL and all(len(row) == len(parts) for row in sent):
        matrix = sent if len({size_bytes for row in sent for size_bytes in row}) > 1 else None
    size_bytes = max(part.size_bytes for part in parts)
    return Collective(first.kind, size_bytes, first.dtype, byte_matrix=matrix, root=first.root)


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
        for group, members in calls_by_group(calls).items()
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
    divergence = find_divergence(
        members.items(),
        lambda call: (call.kind, call.size_bytes if call.kind in _EVEN else 0),
        lambda call: call.text,
    )
    if divergence:
        raise TraceError(
            f"{divergence.sentence(name)} The traces are not of the same step, or one is "
            "incomplete."
        )
    first = next(iter(members.values()))
    stated = max(call.group_size for call in first)
    size = min(stated or rank_count, rank_count)
    if rank_count == recorded:
        size = len(members)
        if stated > size:
            raise TraceError(
                f"group {name!r}: states {stated} ranks, but collectives of only "
                f"{size} are in the traces. One of them is incomplete."
            )
    collectives = tuple(map(join_parts, zip(*members.values(), strict=True)))
    return PeerGroup(tuple(members), size, first[0].stride, collectives, stated)
