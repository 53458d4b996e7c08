"""Importing: the recordings of all ranks become one job graph.

Ranks are analysed one by one, then their collectives are matched, their clocks aligned on them,
and the waiting of each rank is separated from transfer time.

If only one rank of a group was recorded, a kernel that took longer than the shortest of its kind
waited for other ranks. The first replay shows how much later than the recorded rank they arrived;
in a changed job they arrive as much later, because they run the same program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.base.errors import TraceError
from perfmodel.base.faults import FaultList
from perfmodel.engine.settle import Round
from perfmodel.extensions.recordings.collective_calls import CollectiveKernel, find_collective_calls
from perfmodel.extensions.recordings.host_chain import build_host_chain, with_unshared_allocations
from perfmodel.extensions.recordings.import_report import (
    describe_missing,
    find_job_faults,
    list_assumptions,
    report_rank,
)
from perfmodel.extensions.recordings.kernel_estimates import estimate_collective, estimating_device
from perfmodel.extensions.recordings.operator_calls import link_ranks
from perfmodel.extensions.recordings.rank_clocks import (
    MatchedGroup,
    check_overlap,
    match_collectives,
    rank_offsets_ns,
    root_of,
    transfer_ns,
)
from perfmodel.extensions.recordings.rank_program import (
    Arrival,
    Member,
    RankFindings,
    RankWriter,
)
from perfmodel.extensions.recordings.rank_view import RankView, view_rank
from perfmodel.extensions.recordings.recorded_job import (
    ImportReport,
    RecordedJob,
    cycle_period_ns,
    rank_parts,
)
from perfmodel.extensions.recordings.self_replay import replay_as_recorded
from perfmodel.extensions.recordings.steady import arriving, with_numbers
from perfmodel.extensions.recordings.steps import FoundSteps, find_steps
from perfmodel.extensions.recordings.stream_edges import find_stream_edges
from perfmodel.extensions.recordings.stream_holds import ready_ns_of
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.job import JobFacts
from perfmodel.graph.program import Role
from traces.job_trace import JobTrace

MIN_LINKED_RATIO = 0.5
_SIZE = ("kind", "collective", "is_estimated")
"""What the members of a rendezvous take from its first."""


@dataclass(frozen=True, slots=True)
class _Analysed:
    """What is left of the traces once the tasks of all ranks are written."""

    facts: JobFacts
    report: ImportReport
    groups: tuple[MatchedGroup, ...]
    steps: FoundSteps
    writers: tuple[RankWriter, ...]
    arrivals: tuple[dict[int, Arrival], ...]


def import_job(traces: JobTrace) -> RecordedJob:
    """The job graph of *traces*; refuses recordings that cannot be one job.

    The traces are given up as soon as their tasks are written, unless the caller keeps them.
    """
    found = _analyse(traces)
    del traces
    job = _build(found)
    if any(found.arrivals):
        found = replace(found, arrivals=_with_waits(found, replay_as_recorded(job)))
        del job
        job = _with_lateness(_build(found), found.steps.cycle)
    return job


def _analyse(traces: JobTrace) -> _Analysed:
    views = [view_rank(trace) for trace in traces.ranks]
    _check_views(traces.name, views)
    linked = link_ranks(traces, views)
    calls = [find_collective_calls(view, rows) for view, rows in zip(views, linked, strict=True)]
    groups = match_collectives(views, calls)
    offsets_ns = _offsets_ns(views, groups)
    views = [view.shifted(offset) for view, offset in zip(views, offsets_ns, strict=True)]
    impossible = [check_overlap(views, group) for group in groups]
    steps = find_steps(views, groups, calls)
    # A process that sees one GPU says nothing about its host; 0 if no GPU is named.
    gpus_per_host = len(traces.ranks[0].device_names)
    if gpus_per_host == 1:
        gpus_per_host = max(traces.world_size, len(traces.ranks))
    chains = with_unshared_allocations([build_host_chain(view) for view in views], gpus_per_host)
    groups, calls = _with_shared_sizes(views, groups, calls)
    findings = [
        RankFindings(view, chain, find_stream_edges(view), of_rank, executed=rows)
        for view, chain, of_rank, rows in zip(views, chains, calls, linked, strict=True)
    ]
    _add_members(findings, groups)
    for of_rank in findings:
        of_rank.arrivals.update(_find_arrivals(of_rank))
    faults = (*find_job_faults(findings, groups), *(fault for fault in impossible if fault))
    report = ImportReport(
        ranks=tuple(map(report_rank, findings, offsets_ns)),
        rendezvous=sum(group.count for group in groups),
        steps=steps.count,
        recorded_starts={},
        faults=(*faults, *steps.faults),
        missing=describe_missing(traces),
        rule=steps.rule.value,
        cycle=steps.cycle,
        table=steps.table,
    )
    facts = JobFacts(
        traces.name,
        source="recorded traces",
        assumptions=list_assumptions(findings),
        device=next(iter(traces.ranks[0].device_names), ""),
        gpus_per_host=gpus_per_host,
    )
    builder = JobBuilder()
    writers = tuple(RankWriter(of_rank, builder.new_program()) for of_rank in findings)
    arrivals = tuple(of_rank.arrivals for of_rank in findings)
    return _Analysed(facts, report, groups, steps, writers, arrivals)


def _add_members(findings: Sequence[RankFindings], groups: Sequence[MatchedGroup]) -> None:
    """Give every matched collective its part in a rendezvous."""
    views = [of_rank.view for of_rank in findings]
    for slot, group in enumerate(groups):
        for number in range(group.count):
            lengths_ns, root = transfer_ns(views, group, number), root_of(group, number)
            for member, rank in enumerate(group.members):
                role = Role.SIGNALS if member == root else Role.BOTH
                task = group.calls[member][number].task
                findings[rank].members[task] = Member(slot, lengths_ns[member], role)


def _check_views(name: str, views: Sequence[RankView]) -> None:
    faults = FaultList(f"job {name!r}")
    for view in views:
        count, place = len(view.device), f"rank {view.trace.rank}"
        if not count:
            faults.add(place, "holds no device work. Record with CUDA activities.")
        elif view.linked_count < MIN_LINKED_RATIO * count:
            faults.add(
                place,
                f"only {view.linked_count} of {count} device tasks have a launching call with "
                "the same correlation. Record longer, and with CPU activities.",
            )
    faults.check(TraceError)


def _offsets_ns(views: Sequence[RankView], groups: Sequence[MatchedGroup]) -> list[int]:
    """Offsets that align the clocks of other hosts and move the first moment of all to zero."""
    offsets = rank_offsets_ns(views, groups)
    first_ns = min(
        int(np.concatenate([view.device.start_ns, view.calls.start_ns]).min()) + offset
        for view, offset in zip(views, offsets, strict=True)
    )
    return [offset - first_ns for offset in offsets]


def _with_shared_sizes(
    views: Sequence[RankView],
    groups: Sequence[MatchedGroup],
    calls: Sequence[Sequence[CollectiveKernel]],
) -> tuple[tuple[MatchedGroup, ...], list[tuple[CollectiveKernel, ...]]]:
    """*groups* and *calls* in which all members of a rendezvous describe it as the first does.

    A collective of unknown size has the size that fits its time.
    """
    found = [{call.task: call for call in of_rank} for of_rank in calls]
    described = []
    for group in groups:
        device = estimating_device(views[group.members[0]].trace.device_names)
        first = list(group.calls[0])
        for number, call in enumerate(first):
            if call.collective is None and call.kind is not None:
                length_ns = max(transfer_ns(views, group, number))
                guess = estimate_collective(call.kind, length_ns, len(group.members), device)
                first[number] = replace(call, collective=guess, is_estimated=True)
            size = {name: getattr(first[number], name) for name in _SIZE}
            for rank, own in zip(group.members, group.calls, strict=True):
                task = own[number].task
                found[rank][task] = replace(found[rank][task], **size)
        described.append(replace(group, calls=(tuple(first), *group.calls[1:])))
    return tuple(described), [tuple(of_rank.values()) for of_rank in found]


def _find_arrivals(of_rank: RankFindings) -> dict[int, Arrival]:
    """By device task, the arrivals of others at collectives of groups with no other rank here."""
    device = of_rank.view.device
    matched = {call.group for call in of_rank.collectives if call.task in of_rank.members}
    calls = [call for call in of_rank.collectives if call.group not in matched]
    shortest: dict[tuple[object, ...], int] = {}
    for call in calls:
        key, length_ns = (call.group, *call.signature), device.length_ns(call.task)
        shortest[key] = min(shortest.get(key, length_ns), length_ns)
    arrivals = {}
    previous: dict[str, int] = {}
    for call in calls:
        length_ns = shortest[(call.group, *call.signature)]
        came_ns = int(device.end_ns[call.task]) - length_ns
        before = previous.get(call.group)
        since_ns = 0 if before is None else int(device.end_ns[before])
        if came_ns > int(device.start_ns[call.task]):
            arrivals[call.task] = Arrival(before, came_ns - since_ns, length_ns)
        previous[call.group] = call.task
    return arrivals


def _with_waits(found: _Analysed, held: Round) -> tuple[dict[int, Arrival], ...]:
    """The arrivals, with how much later they were in the replay *held*."""
    changed = []
    parts = rank_parts(held.job)
    for arrivals, writer, (_, rows) in zip(found.arrivals, found.writers, parts, strict=True):
        # What a task waits for but for those arrivals.
        own = writer.connected({})
        start_ns, end_ns = held.start_ns[rows], held.end_ns[rows]
        waits_ns = np.maximum(start_ns - ready_ns_of(own.program, start_ns, end_ns), 0)[own.place]
        changed.append(
            {
                task: replace(arrival, wait_ns=int(waits_ns[task]))
                for task, arrival in arrivals.items()
            }
        )
    return tuple(changed)


def _with_lateness(job: RecordedJob, cycle: int) -> RecordedJob:
    """The same job, with how much longer its steps are because other ranks are late."""
    if len(job.step_ends) < 2:
        return job
    prompt = replace(job, graph=arriving(with_numbers(job.graph), job.excess_ns))
    late_ns, prompt_ns = (
        cycle_period_ns(
            np.diff(job.step_moments_ns(replay_as_recorded(one).end_ns)), cycle, chosen=True
        )
        for one in (job, prompt)
    )
    facts = replace(job.graph.facts, others_late_ns=max(late_ns - prompt_ns, 0))
    return replace(job, graph=replace(job.graph, facts=facts))


def _build(found: _Analysed) -> RecordedJob:
    job = JobBuilder(found.writers[0].program.tables)
    programs = []
    for arrivals, writer in zip(found.arrivals, found.writers, strict=True):
        programs.append(writer.connected(arrivals))
        job.add_rank(job.add_program(programs[-1].program))
    for slot, group in enumerate(found.groups):
        job.add_group(group.name, group.members, slot=slot)
    graph = job.build(found.facts)
    firsts = graph.rank_rows()
    starts = {
        word: sum(program.recorded_starts[word] for program in programs)
        for word in programs[0].recorded_starts
    }
    return RecordedJob(
        graph=graph,
        recorded_start_ns=np.concatenate([program.start_ns for program in programs]),
        recorded_end_ns=np.concatenate([program.end_ns for program in programs]),
        can_be_held=np.concatenate([program.can_be_held for program in programs]),
        excess_ns=np.concatenate([program.excess_ns for program in programs]),
        step_ends=tuple(
            np.array([firsts[rank] + programs[rank].place[task] for rank, task in end])
            for end in found.steps.ends
        ),
        report=replace(found.report, recorded_starts=starts),
    )
