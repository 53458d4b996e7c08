"""Import report: counts, faults and assumptions of a recording.

No fault stops an import, because many recordings have a few; each is counted and reported, and
shows in the self-replay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from perfmodel.base.units import NS_PER_S, format_duration
from perfmodel.extensions.recordings.host_chain import StepKind
from perfmodel.extensions.recordings.rank_clocks import MatchedGroup
from perfmodel.extensions.recordings.rank_program import RankFindings
from perfmodel.extensions.recordings.rank_view import (
    EARLY_NS,
    MOST_NOISE_RATIO,
    OVERLAP_NS,
    RankView,
)
from perfmodel.extensions.recordings.recorded_job import RankReport
from perfmodel.graph.program import Int64s
from traces.job_trace import JobTrace
from traces.trace import Category

_SHORT_NS, _LONG_NS = 200, 20 * NS_PER_S
"""Half of all kernels of a job are not shorter than an empty one, and not longer than this."""
_LEAST_RANK_RATIO = 0.6
_MOST_MISSING = 0.05
_MOST_LONE_RATIO = 0.25
_PAUSE_NS = 100_000_000
_MOST_IDLE_RATIO = 0.1
# Stamps in whole microseconds make short calls, but no kernels, last nothing.
_MOST_EMPTY_RATIO = {"host operators": 0.9, "runtime calls": 0.9, "device tasks": 0.1}
_FEWEST_EMPTY = 8
_NEVER_NS = -(2**62)


def report_rank(of_rank: RankFindings, offset_ns: int) -> RankReport:
    """The report on the trace of one rank, whose clock is off by *offset_ns*."""
    view, trace = of_rank.view, of_rank.view.trace
    before = int(view.is_before_window().sum())
    lost = _lost_launches(view)
    faults = [*trace.report.faults, *_find_clock_faults(view)]
    if view.repeated_correlations:
        faults.append(
            f"{view.repeated_correlations} calls repeat the correlation of an earlier call; "
            "the earlier one was used"
        )
    if lost > MOST_NOISE_RATIO * len(view.device):
        faults.append(
            f"{lost} device tasks have no launching call; only stream order constrains them"
        )
    if (missing := _missing_ratio(view)) > _MOST_MISSING:
        faults.append(f"{missing:.0%} of its launches have no device work: kernels are missing")
    return RankReport(
        rank=trace.rank,
        objects=trace.report.objects,
        rows_kept=trace.report.kept,
        device_tasks=len(view.device),
        launches_linked=view.linked_count,
        launched_before=before,
        launch_lost=lost,
        collectives=len(of_rank.collectives),
        collectives_matched=len(of_rank.members),
        stream_edges=len(of_rank.edges),
        hidden_waits=of_rank.chain.hidden_waits,
        skew_ns=view.skew_ns,
        offset_ns=offset_ns,
        mended=view.mended,
        mended_ns=view.mended_ns,
        faults=tuple(faults),
    )


def _missing_ratio(view: RankView) -> float:
    """The share of launches without device work, before the last that has some."""
    has_task = view.tasks_by_call().has_any()
    names = np.array(["Launch" in name for name in view.trace.names], dtype=bool)
    launches = names[view.trace.columns.name[view.calls.row]]
    done = has_task[launches]
    return 1 - float(done[: np.flatnonzero(done).max(initial=0) + 1].mean()) if done.any() else 0.0


def _lost_launches(view: RankView) -> int:
    """How many device tasks inside the window have no launching call."""
    return len(view.device) - view.linked_count - int(view.is_before_window().sum())


def describe_missing(traces: JobTrace) -> str:
    """Which ranks of the job were not recorded; empty if all were."""
    if not traces.missing_count:
        return ""
    named = ", ".join(map(str, traces.missing_ranks[:8]))
    more = ", ..." if traces.missing_count > 8 else ""
    return f"{traces.missing_count} of {traces.world_size} ranks are not recorded ({named}{more})"


def find_job_faults(
    findings: Sequence[RankFindings], groups: Sequence[MatchedGroup]
) -> tuple[str, ...]:
    """Faults that only a comparison of ranks shows: missing kernels or missing partners."""
    lost = {group.name: group.lost for group in groups if group.lost}
    sentences = list(lost.values())
    counts = {}
    for of_rank in findings:
        view, rank = of_rank.view, of_rank.view.trace.rank
        if (view.trace.columns.category[view.device.row] == Category.KERNEL).any():
            counts[rank] = len(view.device)
        else:
            sentences.append(f"rank {rank} runs no kernel at all")
        own = [
            call
            for call in of_rank.collectives
            if call.group not in lost and (call.ranks is None or len(call.ranks) > 1)
        ]
        lone = sum(call.task not in of_rank.members for call in own)
        # The edge of the window cuts off a few partners.
        is_many = lone > max(_MOST_LONE_RATIO * len(own), 2) or (own and lone == len(own))
        if is_many and len(findings) > 1:
            sentences.append(
                f"{lone} of {len(own)} collectives of rank {rank} have no partner on another "
                "recorded rank: the traces are of different steps or of different jobs"
            )
    sentences += uneven_faults(counts)
    gpus = {name for of_rank in findings for name in of_rank.view.trace.device_names}
    if len(gpus) > 1:
        sentences.append(f"GPUs differ ({', '.join(sorted(gpus))}): all wait for the slowest")
    kernels = [of_rank.view.device for of_rank in findings if len(of_rank.view.device)]
    lengths_ns = [of.end_ns - of.start_ns for of in kernels]
    middle_ns = float(np.median(np.concatenate(lengths_ns))) if kernels else _SHORT_NS
    if not _SHORT_NS <= middle_ns <= _LONG_NS:
        sentences.append(
            f"half of the device work takes {format_duration(middle_ns)} or less, which no GPU "
            "does: times of the trace must be in microseconds"
        )
    sentences += _find_pause([of_rank.view for of_rank in findings])
    return tuple(sentences)


def uneven_faults(counts: Mapping[int, int]) -> list[str]:
    """Ranks with many fewer device tasks, by rank, than others: parts of their traces are lost."""
    typical = float(np.median([*counts.values()] or [0]))
    return [
        f"rank {rank} has {count} device tasks, other ranks {typical:.0f}: its trace is incomplete"
        for rank, count in counts.items()
        if count < _LEAST_RANK_RATIO * typical
    ]


def list_assumptions(findings: Sequence[RankFindings]) -> tuple[str, ...]:
    """The assumptions about the recording, one sentence each."""
    sentences = [
        "kernels of several waves hold back other streams until their last wave",
        "an allocation waits for work that ended while it was called",
    ]
    steps = [of_rank.chain.steps for of_rank in findings]
    if sum(len(of.places_of(StepKind.ALLOCATION)) > 0 for of in steps) > 1:
        sentences.append("concurrent allocations on several GPUs of a host share its driver")
    total_ns = own_ns = 0
    for of in steps:
        places = of.places_of(StepKind.WAIT, StepKind.ALLOCATION)
        lengths_ns = (of.end_ns - of.start_ns)[places]
        total_ns += int(lengths_ns.sum())
        own_ns += int(of.duration_ns[places][lengths_ns > 0].sum())
    if total_ns:
        sentences.append(
            f"blocking calls took {format_duration(total_ns)} on all ranks: "
            f"{format_duration(total_ns - own_ns)} was waiting, attributed to the awaited work, "
            f"and {format_duration(own_ns)} is their own time"
        )
    views = [of_rank.view for of_rank in findings]
    mended = sum(view.mended for view in views)
    if mended:
        moved_ns = round(math.sqrt(sum(view.mended_ns**2 for view in views) / mended))
        sentences.append(
            f"{mended} of {sum(len(view.device) for view in views)} device tasks began before "
            "their launch or inside the task ahead of them: taken for clock noise, they were moved "
            f"by about {format_duration(moved_ns)}, and the interval is wider for it"
        )
    lost = sum(map(_lost_launches, views))
    if lost:
        sentences.append(f"{lost} device tasks have no launching call: they follow their stream")
    arrivals = sum(len(of_rank.arrivals) for of_rank in findings)
    if arrivals:
        sentences.append(
            f"other ranks were not recorded: they arrived later at {arrivals} collectives, and are "
            "assumed to arrive as much later in a changed job, because they run the same program"
        )
    return tuple(sentences)


def _find_clock_faults(view: RankView) -> tuple[str, ...]:
    """Contradictions in the stamps of *view*, one sentence each."""
    device, calls = view.device, view.calls
    sentences = []
    linked = device.call >= 0
    delay_ns = device.start_ns[linked] - calls.start_ns[device.call[linked]]
    early = int((delay_ns < -EARLY_NS).sum())
    if early:
        sentences.append(f"{early} device tasks start before the call that launches them")
    overlapping = int((device.start_ns < device.reached_ns() - OVERLAP_NS).sum())
    if overlapping:
        sentences.append(f"{overlapping} device tasks overlap the previous one on their stream")
    stuck_ns = _longest_stuck_ns(view)
    if stuck_ns > _PAUSE_NS:
        sentences.append(
            f"the device is idle for {format_duration(stuck_ns)} although work was launched: "
            "a clock of the host or the device jumped"
        )
    columns = view.trace.columns
    lengths_ns = {
        "host operators": columns.duration_ns[columns.rows_in(Category.HOST_OPERATOR)],
        "runtime calls": calls.end_ns - calls.start_ns,
        "device tasks": device.end_ns - device.start_ns,
    }
    for what, of_kind in lengths_ns.items():
        empty = int((of_kind <= 0).sum())
        if empty >= _FEWEST_EMPTY and empty > _MOST_EMPTY_RATIO[what] * len(of_kind):
            sentences.append(f"{empty} of {len(of_kind)} {what} last 0 ns: durations are missing")
    return tuple(sentences)


def _pauses(views: Sequence[RankView]) -> tuple[Int64s, Int64s, int]:
    """When nothing of *views* was active, from and to, and how long the window is."""
    parts = [part for view in views for part in (view.calls, view.device)]
    start_ns = np.concatenate([part.start_ns for part in parts])
    end_ns = np.concatenate([part.end_ns for part in parts])
    order = np.argsort(start_ns, kind="stable")
    start_ns, reached_ns = start_ns[order], np.maximum.accumulate(end_ns[order])
    idle = np.flatnonzero(start_ns[1:] > reached_ns[:-1])
    return reached_ns[idle], start_ns[idle + 1], int(reached_ns[-1] - start_ns[0])


def _find_pause(views: Sequence[RankView]) -> list[str]:
    """A sentence if all ranks pause for much of the window.

    Pauses that come again count only where no rank has a host operator or range in them: a slow
    loader makes pauses in every step.
    """
    from_ns, to_ns, window_ns = _pauses(views)
    is_long = to_ns - from_ns > _PAUSE_NS
    from_ns, length_ns = from_ns[is_long], (to_ns - from_ns)[is_long]
    counted_ns = 0
    for start_ns, pause_ns in zip(from_ns.tolist(), length_ns.tolist(), strict=True):
        is_repeated = int((2 * length_ns >= pause_ns).sum()) > 1
        if not (is_repeated and _is_in_range(views, start_ns + pause_ns // 2)):
            counted_ns += pause_ns
    said = (
        f"no rank is active for {format_duration(counted_ns)} of {format_duration(window_ns)}: "
        "the job paused, or clocks jumped"
    )
    return [said] if counted_ns > _MOST_IDLE_RATIO * window_ns else []


def _is_in_range(views: Sequence[RankView], moment_ns: int) -> bool:
    """Whether a host operator or a range of some rank is under way."""
    for view in views:
        columns, own_ns = view.trace.columns, moment_ns - view.host_offset_ns
        rows = columns.rows_in(Category.HOST_OPERATOR, Category.HOST_ANNOTATION, Category.MODULE)
        if ((columns.start_ns[rows] <= own_ns) & (columns.end_ns[rows] > own_ns)).any():
            return True
    return False


def _longest_stuck_ns(view: RankView) -> int:
    """The longest time that an idle device left a launched task waiting."""
    device = view.device
    reached_ns = np.maximum.accumulate(device.end_ns)
    idle_from_ns = np.concatenate([[_NEVER_NS], reached_ns[:-1]])
    linked = device.call >= 0
    launched_ns = view.calls.end_ns[device.call[linked]]
    waits_ns = device.start_ns[linked] - np.maximum(idle_from_ns[linked], launched_ns)
    return int(waits_ns.max(initial=0))
