"""Import report: what a recording says about itself, and what contradicts itself in it.

No fault stops an import, because a few are in many recordings; each is counted
and reported, and shows in the self-replay.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.base.units import format_duration
from perfmodel.recordings.host_chain import StepKind
from perfmodel.recordings.rank_program import RankFindings
from perfmodel.recordings.rank_view import Int64s, RankView
from perfmodel.recordings.recorded_job import RankReport
from traces.job_trace import JobTrace
from traces.trace import Category

_LEAST_RANK_RATIO = 0.3
_MOST_LONE_RATIO = 0.25
_TOLERANCE_NS = 1_000_000
_OVERLAP_NS = 10_000
_PAUSE_RATIO = 0.5
_PAUSE_NS = 100_000_000


def report_rank(of_rank: RankFindings, offset_ns: int) -> RankReport:
    """What was found in the trace of one rank, whose clock is off by *offset_ns*."""
    view, trace = of_rank.view, of_rank.view.trace
    before = int(view.is_before_window().sum())
    lost = len(view.device) - view.linked_count - before
    faults = [*trace.report.faults, *_find_clock_faults(view)]
    if view.repeated_correlations:
        faults.append(
            f"{view.repeated_correlations} calls repeat the correlation of an earlier call; "
            "the earlier one was taken"
        )
    if lost:
        faults.append(f"{lost} device tasks have no launching call; only stream order holds them")
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
        faults=tuple(faults),
    )


def describe_missing(traces: JobTrace) -> str:
    """Which ranks of the job were not recorded; nothing where all were."""
    if not traces.missing_count:
        return ""
    named = ", ".join(map(str, traces.missing_ranks[:8]))
    more = ", ..." if traces.missing_count > 8 else ""
    return f"{traces.missing_count} of {traces.world_size} ranks are not recorded ({named}{more})"


def find_job_faults(findings: Sequence[RankFindings]) -> tuple[str, ...]:
    """What no rank shows alone: kernels or partners that others have and it has not."""
    sentences = []
    counts = [len(of_rank.view.device) for of_rank in findings]
    for of_rank, count in zip(findings, counts, strict=True):
        rank, device = of_rank.view.trace.rank, of_rank.view.device
        category = of_rank.view.trace.columns.category[device.row]
        if not (category == Category.KERNEL).any():
            sentences.append(f"rank {rank} runs no kernel at all")
        elif count < _LEAST_RANK_RATIO * float(np.median(counts)):
            sentences.append(
                f"rank {rank} has {count} device tasks where others have "
                f"{round(float(np.median(counts)))}: its trace is not whole"
            )
        sentences.extend(_unmatched(of_rank) if len(findings) > 1 else ())
    return tuple(sentences)


def _unmatched(of_rank: RankFindings) -> list[str]:
    """Collectives without a partner beyond the few that the edge of the window cuts off."""
    own = [call for call in of_rank.collectives if call.ranks is None or len(call.ranks) > 1]
    lone = sum(1 for call in own if call.task not in of_rank.members)
    if lone <= max(_MOST_LONE_RATIO * len(own), 2) and (lone < len(own) or not own):
        return []
    rank = of_rank.view.trace.rank
    sentence = (
        f"{lone} of {len(own)} collectives of rank {rank} have no partner on another recorded "
        "rank: the traces are of different steps or of different jobs"
    )
    return [sentence]


def list_assumptions(findings: Sequence[RankFindings]) -> tuple[str, ...]:
    """What is taken for granted of the recording, in sentences."""
    sentences = [
        "kernels of several waves hold back other streams until their last wave",
        "an allocation waits for the device only where all launched work had ended by its return",
    ]
    if sum(any(s.kind is StepKind.ALLOCATION for s in one.chain.steps) for one in findings) > 1:
        sentences.append("allocations at the same time on several GPUs of a host share its driver")
    sentences.extend(_about_waits(findings))
    arrivals = sum(len(of_rank.arrivals) for of_rank in findings)
    if arrivals:
        sentences.append(
            f"other ranks were not recorded: they came later to {arrivals} collectives, and come "
            "as much later whatever is changed, because they run the same program"
        )
    return tuple(sentences)


def _about_waits(findings: Sequence[RankFindings]) -> list[str]:
    """What blocking calls took, and where that time is booked."""
    waits = [
        step
        for of_rank in findings
        for step in of_rank.chain.steps
        if step.kind in (StepKind.WAIT, StepKind.ALLOCATION) and step.end_ns > step.start_ns
    ]
    total_ns = sum(step.end_ns - step.start_ns for step in waits)
    own_ns = sum(step.duration_ns for step in waits)
    sentences = []
    if total_ns:
        sentences.append(
            f"blocking calls took {format_duration(total_ns)} on all ranks; "
            f"{format_duration(total_ns - own_ns)} of it was waiting and is booked on what they "
            f"waited for, {format_duration(own_ns)} is their own"
        )
    cut_ns = max(of_rank.chain.cut_ns for of_rank in findings)
    if cut_ns:
        sentences.append(
            f"the last synchronisation is the profiler's: up to {format_duration(cut_ns)} of it, "
            "after the last recorded device work, is left out"
        )
    return sentences


def _find_clock_faults(view: RankView) -> tuple[str, ...]:
    """What contradicts itself in the stamps of *view*, in sentences."""
    sentences = []
    early = _started_before_launch(view)
    if early:
        sentences.append(f"{early} device tasks start before the call that launches them")
    overlapping = _overlapping_on_stream(view)
    if overlapping:
        sentences.append(f"{overlapping} device tasks overlap the one before on their stream")
    pause_ns = _longest_pause_ns(view)
    if pause_ns:
        sentences.append(
            f"nothing happens for {format_duration(pause_ns)}, more than half of the window: "
            "a pause, or a clock that jumped"
        )
    return tuple(sentences)


def _started_before_launch(view: RankView) -> int:
    linked = view.device.call >= 0
    calls = view.device.call[linked]
    delay_ns = view.device.start_ns[linked] - view.calls.start_ns[calls]
    return int((delay_ns < -_TOLERANCE_NS).sum())


def _overlapping_on_stream(view: RankView) -> int:
    count = 0
    for stream in np.unique(view.device.stream).tolist():
        chosen = view.device.stream == stream
        start_ns, end_ns = view.device.start_ns[chosen], view.device.end_ns[chosen]
        count += int((start_ns[1:] < np.maximum.accumulate(end_ns)[:-1] - _OVERLAP_NS).sum())
    return count


def _longest_pause_ns(view: RankView) -> int:
    """The longest time without a call or device task, if it is most of the window."""
    start_ns: Int64s = np.concatenate([view.calls.start_ns, view.device.start_ns])
    end_ns: Int64s = np.concatenate([view.calls.end_ns, view.device.end_ns])
    order = np.argsort(start_ns, kind="stable")
    reached_ns = np.maximum.accumulate(end_ns[order])
    pauses = start_ns[order][1:] - reached_ns[:-1]
    longest = int(pauses.max(initial=0))
    window_ns = int(reached_ns[-1] - start_ns[order][0])
    is_long = longest > _PAUSE_NS and longest > _PAUSE_RATIO * window_ns
    return longest if is_long else 0
