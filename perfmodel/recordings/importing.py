"""Importing: the recordings of all ranks become one job graph.

Ranks are looked at one by one, then their collectives are matched, their
clocks aligned on them, and what each rank spent waiting is told from transfer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.base.documents import FaultList
from perfmodel.base.errors import TraceError
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.job import JobFacts
from perfmodel.graph.program import Role
from perfmodel.recordings.arrivals import find_arrivals, with_waits, without_waits
from perfmodel.recordings.collective_calls import find_collective_calls
from perfmodel.recordings.executed_shapes import link_rows
from perfmodel.recordings.host_chain import StepKind, build_host_chain
from perfmodel.recordings.import_report import (
    describe_missing,
    find_job_faults,
    list_assumptions,
    report_rank,
)
from perfmodel.recordings.kernel_estimates import estimate_collective, estimating_device
from perfmodel.recordings.matching import (
    MatchedGroup,
    check_overlap,
    match_collectives,
    rank_offsets_ns,
    root_of,
    transfer_ns,
)
from perfmodel.recordings.rank_program import (
    Member,
    RankFindings,
    RankProgram,
    build_rank_program,
    places,
)
from perfmodel.recordings.rank_view import Int64s, RankView, view_rank
from perfmodel.recordings.recorded_job import ImportReport, RecordedJob
from perfmodel.recordings.self_replay import replay_as_recorded, step_moments_ns
from perfmodel.recordings.steps import (
    count_profiler_steps,
    last_tasks_of_profiler_steps,
    step_ends,
)
from perfmodel.recordings.stream_edges import find_stream_edges
from perfmodel.recordings.throttle import alone_ns, host_of
from traces.job_trace import JobTrace

MIN_LINKED_RATIO = 0.5


def import_job(traces: JobTrace) -> RecordedJob:
    """The job graph of *traces*; refuses recordings that cannot be one job."""
    views = [view_rank(trace) for trace in traces.ranks]
    _check_views(traces.name, views)
    executed = {trace.rank: trace for trace in traces.executed}
    linked = [link_rows(view, executed.get(view.trace.rank)) for view in views]
    calls = [find_collective_calls(view, rows) for view, rows in zip(views, linked, strict=True)]
    groups = match_collectives(calls)
    offsets_ns = _offsets_ns(views, groups)
    views = [view.shifted(offset) for view, offset in zip(views, offsets_ns, strict=True)]
    impossible = [check_overlap(views, group) for group in groups]
    findings = [
        RankFindings(view, build_host_chain(view), find_stream_edges(view), of_rank, executed=rows)
        for view, of_rank, rows in zip(views, calls, linked, strict=True)
    ]
    findings = _with_turns(findings, _gpus_per_host(traces))
    _add_members(findings, views, groups)
    groups = tuple(_estimated_sizes(views, group) for group in groups)
    _add_arrivals(findings)
    faults = (*find_job_faults(findings), *(fault for fault in impossible if fault))
    built = _build(_facts(traces, findings), findings, groups, offsets_ns, faults)
    if any(of_rank.arrivals for of_rank in findings):
        held = replay_as_recorded(built.job)
        findings = with_waits(findings, built.programs, held)
        built = _build(_facts(traces, findings), findings, groups, offsets_ns, faults)
        built = _with_lateness(built, findings)
    return replace(built.job, report=replace(built.job.report, missing=describe_missing(traces)))


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
    """Clocks of other hosts aligned, and the first moment of all moved to zero."""
    offsets = rank_offsets_ns(views, groups)
    first = min(
        min(
            int(view.device.start_ns.min()),
            int(view.calls.start_ns.min()) if len(view.calls) else 2**62,
        )
        + offset
        for view, offset in zip(views, offsets, strict=True)
    )
    return [offset - first for offset in offsets]


def _add_members(
    findings: Sequence[RankFindings], views: Sequence[RankView], groups: Sequence[MatchedGroup]
) -> None:
    for slot, group in enumerate(groups):
        for number in range(group.count):
            root = root_of(group, number)
            lengths = transfer_ns(views, group, number)
            for member, rank in enumerate(group.members):
                role = Role.SIGNALS if member == root else Role.BOTH
                task = group.calls[member][number].task
                findings[rank].members[task] = Member(slot, lengths[member], role)


def _add_arrivals(findings: Sequence[RankFindings]) -> None:
    """Collectives of groups of which only this rank was recorded."""
    for of_rank in findings:
        lone = [call for call in of_rank.collectives if call.task not in of_rank.members]
        groups_with_members = {
            call.group for call in of_rank.collectives if call.task in of_rank.members
        }
        alone = [call for call in lone if call.group not in groups_with_members]
        of_rank.arrivals.update(find_arrivals(of_rank.view, alone))


def _with_turns(findings: Sequence[RankFindings], gpus_per_host: int) -> list[RankFindings]:
    """The same with allocations as long as they are alone, see `turns`."""
    steps = [list(of_rank.chain.steps) for of_rank in findings]
    places: dict[int, list[tuple[int, int]]] = {}
    for rank, of_rank in enumerate(steps):
        for number, step in enumerate(of_rank):
            if step.kind is StepKind.ALLOCATION:
                places.setdefault(host_of(rank, gpus_per_host), []).append((rank, number))
    for of_host in places.values():
        ends = np.array([steps[rank][number].end_ns for rank, number in of_host])
        floors = np.array([steps[rank][number].duration_ns for rank, number in of_host])
        own_ns = alone_ns(ends - floors, ends).tolist()
        for (rank, number), length_ns in zip(of_host, own_ns, strict=True):
            steps[rank][number] = replace(steps[rank][number], duration_ns=length_ns)
    return [
        replace(of_rank, chain=replace(of_rank.chain, steps=tuple(changed)))
        for of_rank, changed in zip(findings, steps, strict=True)
    ]


def _gpus_per_host(traces: JobTrace) -> int:
    """How many GPUs the processes see; 0 where none is named."""
    count = len(traces.ranks[0].device_names)
    # A process that was shown one GPU says nothing about its host.
    return count if count != 1 else max(traces.world_size, len(traces.ranks))


def _facts(traces: JobTrace, findings: Sequence[RankFindings]) -> JobFacts:
    """What the recording says about itself, and about the machine that it was made on."""
    return JobFacts(
        traces.name,
        source="recorded traces",
        assumptions=list_assumptions(findings),
        device=next(iter(traces.ranks[0].device_names), ""),
        gpus_per_host=_gpus_per_host(traces),
    )


def _with_lateness(built: _Built, findings: Sequence[RankFindings]) -> _Built:
    """The same job, which knows how much longer its steps are because of ranks not recorded."""
    job = built.job
    if len(job.step_ends) < 2:
        return built
    prompt = replace(job, graph=without_waits(job.graph, built.programs, findings))
    moments = [step_moments_ns(job, replay_as_recorded(one).end_ns) for one in (job, prompt)]
    periods_ns = [round(float(np.median(np.diff(of_job)))) for of_job in moments]
    late_ns = max(periods_ns[0] - periods_ns[1], 0)
    facts = replace(job.graph.facts, others_late_ns=late_ns)
    return replace(built, job=replace(job, graph=replace(job.graph, facts=facts)))


@dataclass(frozen=True, slots=True, eq=False)
class _Built:
    """A job, and the programs of its ranks as they were written."""

    job: RecordedJob
    programs: tuple[RankProgram, ...]


def _build(
    facts: JobFacts,
    findings: Sequence[RankFindings],
    groups: Sequence[MatchedGroup],
    offsets_ns: Sequence[int],
    faults: tuple[str, ...],
) -> _Built:
    job = JobBuilder()
    programs = []
    for rank, of_rank in enumerate(findings):
        described = _with_shared_sizes(of_rank, rank, groups)
        programs.append(build_rank_program(described, job.new_program()))
        job.add_rank(job.add_program(programs[-1].program))
    for slot, group in enumerate(groups):
        job.add_group(group.name, group.members, slot=slot)
    ends = _step_ends(findings, groups, programs)
    report = ImportReport(
        ranks=tuple(
            report_rank(of_rank, offset)
            for of_rank, offset in zip(findings, offsets_ns, strict=True)
        ),
        rendezvous=sum(group.count for group in groups),
        steps=max(len(ends), 1),
        recorded_starts=_sum_counts([program.recorded_starts for program in programs]),
        faults=faults,
    )
    recorded = RecordedJob(
        graph=job.build(facts),
        recorded_start_ns=np.concatenate([program.start_ns for program in programs]),
        recorded_end_ns=np.concatenate([program.end_ns for program in programs]),
        hold_ratio=np.concatenate([program.hold_ratio for program in programs]),
        can_be_held=np.concatenate([program.can_be_held for program in programs]),
        step_ends=ends,
        report=report,
    )
    return _Built(recorded, tuple(programs))


def _with_shared_sizes(
    of_rank: RankFindings, rank: int, groups: Sequence[MatchedGroup]
) -> RankFindings:
    """Members of a rendezvous describe it alike: as its first member does."""
    shared = {
        call.task: group.calls[0][number]
        for group in groups
        if rank in group.members
        for number, call in enumerate(group.calls[group.members.index(rank)])
    }
    calls = tuple(
        replace(
            call,
            kind=shared[call.task].kind,
            collective=shared[call.task].collective,
            is_estimated=shared[call.task].is_estimated,
        )
        if call.task in shared
        else call
        for call in of_rank.collectives
    )
    return replace(of_rank, collectives=calls)


def _estimated_sizes(views: Sequence[RankView], group: MatchedGroup) -> MatchedGroup:
    """The same group where collectives of unknown size have the one that fits their time."""
    device = estimating_device(views[group.members[0]].trace.device_names)
    first = [
        replace(
            call,
            collective=estimate_collective(
                call.kind, max(transfer_ns(views, group, number)), len(group.members), device
            ),
            is_estimated=True,
        )
        if call.collective is None and call.kind is not None
        else call
        for number, call in enumerate(group.calls[0])
    ]
    return replace(group, calls=(tuple(first), *group.calls[1:]))


def _step_ends(
    findings: Sequence[RankFindings],
    groups: Sequence[MatchedGroup],
    programs: Sequence[RankProgram],
) -> tuple[Int64s, ...]:
    """Rows of the tasks that end each step."""
    offsets = np.concatenate([[0], np.cumsum([len(program.start_ns) for program in programs])])
    first = findings[0]
    profiler_steps = count_profiler_steps(first.view)
    main = max(groups, key=lambda group: (len(group.members), group.count), default=None)
    if main is not None:
        ends = step_ends(main.calls[0], profiler_steps)
        if ends:
            return tuple(
                np.array(
                    [
                        offsets[rank] + places(programs[rank], [main.calls[m][end].task])[0]
                        for m, rank in enumerate(main.members)
                    ],
                    dtype=np.int64,
                )
                for end in ends
            )
        return ()
    ends = step_ends(first.collectives, profiler_steps)
    tasks = [first.collectives[end].task for end in ends]
    tasks = tasks or last_tasks_of_profiler_steps(first.view)
    return tuple(places(programs[0], [task]) for task in tasks) if len(tasks) > 1 else ()


def _sum_counts(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    words = list(dict.fromkeys(word for of_rank in counts for word in of_rank))
    return {word: sum(of_rank.get(word, 0) for of_rank in counts) for word in words}
