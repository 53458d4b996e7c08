"""Collating: the records of the ranks that were run become one job of all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfmodel.emulation.meetings import Meetings, any_meeting
from perfmodel.emulation.programs import Meeting, ProgramSetting, build_program
from perfmodel.emulation.rank_record import RankRecord
from perfmodel.emulation.windows import Windows
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.job import JobFacts, JobGraph


@dataclass(frozen=True, slots=True)
class Machine:
    """What the records were made for: the device's generation and the stack's launch latency."""

    major_capability: int
    launch_latency_ns: int


def are_alike(records: Sequence[RankRecord]) -> bool:
    """Whether all *records* do the same in their chosen iteration."""
    signatures = set()
    for record in records:
        windows = Windows(record)
        signatures.add(windows.signature(windows.chosen))
    return len(signatures) == 1


def collate(
    records: Mapping[int, RankRecord],
    *,
    world_size: int,
    machine: Machine,
    facts: JobFacts,
) -> JobGraph:
    """The job of *world_size* ranks; those that were not run do what the last one does.

    Rank 0 is taken at its word: it may do more than the others, such as log.
    """
    run = {rank: Windows(record) for rank, record in sorted(records.items())}
    is_whole = len(run) == world_size
    last = max(run)
    model_of = [rank if is_whole or rank == 0 else last for rank in range(world_size)]
    meetings = Meetings(run, model_of)
    builder = JobBuilder()
    programs: dict[tuple[int, tuple[bool, ...]], int] = {}
    for rank, model in enumerate(model_of):
        key = (model, meetings.variant(rank))
        if key not in programs:
            parts = meetings.meetings_of(rank)
            setting = ProgramSetting(
                major_capability=machine.major_capability,
                launch_latency_ns=machine.launch_latency_ns,
                meeting_of=lambda number, parts=parts: _meeting(number, parts),  # type: ignore[misc]  # bound per rank
            )
            program = build_program(run[model], builder.tables, setting)
            programs[key] = builder.add_program(program)
        builder.add_rank(programs[key])
    for group, slots in meetings.slots.items():
        builder.add_group(group.name, group.ranks, slot=[slots[rank] for rank in group.ranks])
    return builder.build(facts)


def _meeting(number: int, parts: Mapping[int, Meeting]) -> Meeting:
    known = parts.get(number)
    return any_meeting(number) if known is None else known
