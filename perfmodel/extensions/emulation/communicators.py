"""Communicators: which ranks take part in which collective, and the job of all ranks.

A rank that was not run is in the groups that correspond to those of its model, the rank it
equals: groups made by the same line of the script with the same size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collectives.collective import CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import EmulationError
from perfmodel.extensions.emulation.programs import CollectivePart, build_program
from perfmodel.extensions.emulation.rank_record import CallType, RankRecord
from perfmodel.extensions.emulation.windows import Windows
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.job import JobFacts, JobGraph
from perfmodel.graph.ops import Communication
from perfmodel.graph.program import Role
from perfmodel.graph.rendezvous import PeerCall, find_divergence, join_parts, name_ranks

KINDS = {
    "all_reduce": CollectiveKind.ALL_REDUCE,
    "all_gather": CollectiveKind.ALL_GATHER,
    "reduce_scatter": CollectiveKind.REDUCE_SCATTER,
    "all_to_all": CollectiveKind.ALL_TO_ALL,
    "broadcast": CollectiveKind.BROADCAST,
    "reduce": CollectiveKind.REDUCE,
    "barrier": CollectiveKind.BARRIER,
    "gather": CollectiveKind.REDUCE,
    "scatter": CollectiveKind.BROADCAST,
    "send": CollectiveKind.SEND_RECV,
    "recv": CollectiveKind.SEND_RECV,
}
"""How each call is priced: gather as a reduction of all it moves, scatter as a broadcast."""

Call = Mapping[str, Any]


def build_job(
    records: Mapping[int, RankRecord], *, world_size: int, latency_ns: int, facts: JobFacts
) -> JobGraph:
    """The job of *world_size* ranks; those that were not run do what the last one does.

    Rank 0 is never a model: it may do more than the others, such as log.
    """
    run = {rank: Windows(record) for rank, record in sorted(records.items())}
    is_whole, last = len(run) == world_size, max(run)
    model_of = [rank if is_whole or rank == 0 else last for rank in range(world_size)]
    matching = Matching(run, model_of)
    builder = JobBuilder()
    programs: dict[tuple[int, tuple[Role, ...]], int] = {}
    for rank, model in enumerate(model_of):
        parts = matching.parts_of(rank)
        # Ranks with the same model differ only in being the root of a broadcast or not.
        key = (model, tuple(part.role for part in parts.values()))
        if key not in programs:
            program = build_program(run[model], builder.tables, latency_ns, parts)
            programs[key] = builder.add_program(program)
        builder.add_rank(programs[key])
    for group, slots in matching.slots.items():
        builder.add_group(group.name, group.ranks, slot=[slots[rank] for rank in group.ranks])
    return builder.build(facts)


@dataclass(frozen=True, slots=True)
class GroupKey:
    """A communicator: its ranks in order, and which of several with the same ranks."""

    ranks: tuple[int, ...]
    word: str

    @property
    def name(self) -> str:
        """The name of the group in the job."""
        if self.word.startswith("to "):
            return f"rank {self.ranks[0]} {self.word}"
        return f"{self.word} of {len(self.ranks)} ranks from rank {self.ranks[0]}"


@dataclass(frozen=True, slots=True)
class _Use:
    """A communicator as one rank uses it: the rank's name for it, and its calls in order."""

    key: GroupKey
    group: str | None
    numbers: list[int] = field(default_factory=list)


class Matching:
    """All collectives of a job.

    *run* are the windows of the ranks that were run; *model_of* is the one that each rank equals.
    """

    def __init__(self, run: Mapping[int, Windows], model_of: Sequence[int]) -> None:
        self._run = run
        self._model_of = model_of
        self._uses = {rank: _find_uses(run[rank]) for rank in dict.fromkeys(model_of)}
        self.slots: dict[GroupKey, dict[int, int]] = {}
        self._works: dict[tuple[int, int], Communication] = {}
        for rank, model in enumerate(model_of):
            for slot, use in enumerate(self._uses[model]):
                key = self._key_of(rank, model, use)
                self.slots.setdefault(key, {})[rank] = slot
        for key, members in self.slots.items():
            self._match(key, members)

    def parts_of(self, rank: int) -> dict[int, CollectivePart]:
        """The part of *rank* in the collectives of the rank it equals, by their number."""
        model = self._model_of[rank]
        calls = self._run[model].record.collectives
        parts = {}
        for slot, use in enumerate(self._uses[model]):
            place = self._key_of(rank, model, use).ranks.index(rank)
            for number in use.numbers:
                work = self._works[model, number]
                role = Role.BOTH
                # The root of a broadcast does not wait for those that receive.
                if calls[number]["call"] in ("broadcast", "scatter"):
                    role = Role.SIGNALS if place == calls[number]["root"] else Role.WAITS
                parts[number] = CollectivePart(work, slot, role)
        return parts

    def _key_of(self, rank: int, model: int, use: _Use) -> GroupKey:
        if rank == model or use.group is None:
            return use.key
        groups = {group.name: group for group in self._run[model].record.groups}
        own = groups[use.group or ""]
        if rank in own.ranks:
            return use.key
        for group in groups.values():
            if group.family == own.family and rank in group.ranks:
                return GroupKey(group.ranks, use.key.word)
        raise EmulationError(
            f"rank {rank} was not run and was assumed to equal rank {model}, which communicates "
            f"with {name_ranks(own.ranks)} ({own.family}); no such group has rank {rank}. Run "
            "every rank with --all-ranks."
        )

    def _match(self, key: GroupKey, members: Mapping[int, int]) -> None:
        rows = {
            rank: self._calls(rank, members[rank]) if rank in members else [] for rank in key.ranks
        }
        divergence = find_divergence(rows.items(), _agreed, _text)
        if divergence:
            raise EmulationError(divergence.sentence(key.name))
        for place, calls in enumerate(zip(*rows.values(), strict=True)):
            work = Communication(join_parts([_part(key, call) for call in calls]))
            for rank, slot in members.items():
                model = self._model_of[rank]
                number = self._uses[model][slot].numbers[place]
                self._works.setdefault((model, number), work)

    def _calls(self, rank: int, slot: int) -> list[Call]:
        model = self._model_of[rank]
        record = self._run[model].record
        return [record.collectives[number] for number in self._uses[model][slot].numbers]


def _find_uses(windows: Windows) -> list[_Use]:
    """Communicators of the chosen iteration, in the order of their first call."""
    record = windows.record
    ranks_of = {group.name: group.ranks for group in record.groups}
    same: dict[tuple[int, ...], list[str]] = {}
    for group in record.groups:
        same.setdefault(group.ranks, []).append(group.name)
    uses: dict[GroupKey, _Use] = {}
    for kind, number, *_ in windows.all[windows.chosen]:
        if kind != CallType.COLLECTIVE:
            continue
        call = record.collectives[number]
        if call["peer"] is not None:
            pair = (record.rank, int(call["peer"]))
            sender, receiver = pair if call["call"] == "send" else pair[::-1]
            key = GroupKey((sender, receiver), f"to rank {receiver}")
            use = _Use(key, None)
        else:
            ranks = ranks_of[call["group"]]
            ordinal = same[ranks].index(call["group"])
            key = GroupKey(ranks, f"group {ordinal}" if ordinal else "group")
            use = _Use(key, call["group"])
        uses.setdefault(key, use).numbers.append(number)
    return list(uses.values())


def _agreed(call: Call) -> tuple[object, ...]:
    """What members of a group must agree on; pieces of an all-to-all may differ."""
    kind = KINDS[call["call"]]
    size = 0 if kind is CollectiveKind.ALL_TO_ALL else call["bytes"]
    return kind, size, call["dtype"], call["root"]


def _part(key: GroupKey, call: Call) -> PeerCall:
    kind, size_bytes, splits = KINDS[call["call"]], call["bytes"], tuple(call["splits"] or ())
    if call["call"] in ("gather", "scatter"):
        size_bytes *= len(key.ranks)
    if kind is CollectiveKind.ALL_TO_ALL:
        size_bytes = sum(splits)
    return PeerCall(
        key.name,
        len(key.ranks),
        kind,
        size_bytes,
        DType(call["dtype"]),
        sent_bytes=splits,
        root=int(call["root"]),
    )


def _text(call: Call) -> str:
    return f"{call['call']} of {call['bytes']} bytes ({call['dtype']}) at {call['line']}"
