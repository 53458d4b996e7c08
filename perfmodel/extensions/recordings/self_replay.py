"""Self-replay: a recorded job replayed with its own durations and compared with the recording.

Reproducing a recording proves little if starts were copied; here none was. The score is shown
with every later answer from the job.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from perfmodel.engine.history import History
from perfmodel.engine.reasons import critical_path
from perfmodel.engine.settle import Round
from perfmodel.extensions.recordings.hold_back import HoldRule, ready_ns_of, replay_held
from perfmodel.extensions.recordings.recorded_job import (
    Compared,
    Coverage,
    RecordedJob,
    SelfReplay,
    rank_parts,
)
from perfmodel.extensions.recordings.unprofiled import with_estimate
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import PLAIN, Anchor

_MOST_CALLS = 8
_WINDOW = 0
"""The first task of every rank: the beginning of the recording."""


def self_replay(job: RecordedJob) -> SelfReplay:
    """Replay *job* with its own durations and compare."""
    return compare(job, replay_as_recorded(job))


def replay_as_recorded(job: RecordedJob) -> Round:
    """*job* with its own durations."""
    return replay_held(job.graph, job.durations(), HoldRule(job.hold_ratio, job.can_be_held))


def with_score(job: RecordedJob) -> RecordedJob:
    """*job* with the score of its self-replay, and its time without the profiler."""
    return with_estimate(replace(job, score=self_replay(job)))


def compare(job: RecordedJob, held: Round) -> SelfReplay:
    """Compare the replay *held* with the recording of *job*."""
    lengths = (np.diff(job.step_moments_ns(ends)) for ends in (job.recorded_end_ns, held.end_ns))
    durations, parts = job.durations(), rank_parts(held.job)
    ranks: list[Compared] = []
    streams: list[Compared] = []
    unexplained_ns = 0
    for rank, of_rank in enumerate(job.report.ranks):
        name, (program, part) = f"rank {of_rank.rank}", parts[rank]
        start_ns, end_ns = job.recorded_start_ns[part], job.recorded_end_ns[part]
        # The first task is the beginning of the window.
        first_ns = int(start_ns[1:].min())
        ends = (end_ns[1:], held.end_ns[part][1:])
        ranks.append(Compared(name, *(int(of.max()) - first_ns for of in ends)))
        # Busy time of each stream: recorded, and without waiting inside collectives.
        lanes, kept_ns = program.task_lanes(), durations.of_rank(job.graph, rank)[:, 0]
        for number, lane in enumerate(program.lanes):
            if lane.kind.is_device:
                busy = (int(of[lanes == number].sum()) for of in (end_ns - start_ns, kept_ns))
                streams.append(Compared(f"{name} {lane.name}", *busy))
        # Device tasks that started later than everything they waited for.
        late_ns = np.maximum(start_ns - ready_ns_of(program, start_ns, end_ns), 0)
        unexplained_ns += int(late_ns[program.is_on_device()].sum())
    path = _walk_path(job, held)
    return SelfReplay(
        periods=tuple(
            Compared(f"period {number}", int(then), int(now))
            for number, (then, now) in enumerate(zip(*lengths, strict=True))
        ),
        ranks=tuple(ranks),
        streams=tuple(streams),
        collective_start_median_error_ns=_collective_error_ns(job, held),
        unexplained_delay_ns=unexplained_ns,
        unexplained_delay_ratio=unexplained_ns / max(sum(rank.recorded_ns for rank in ranks), 1),
        host_path_ratio=path.host_ns / max(path.total_ns, 1),
        rounds=held.count,
        unsettled=held.unsettled,
        faults=job.report.grave_faults,
        cycle=job.report.cycle,
        **_coverage(job),
        step_error_ratio=max((rank.error_ratio for rank in job.report.evidence), default=0.0),
        host_path=tuple(path.by_call.most_common(_MOST_CALLS)),
        path_ranks=tuple(path.by_rank.most_common()),
        noise_ratio=max(
            of_rank.mended_ns / max(span.recorded_ns, 1)
            for of_rank, span in zip(job.report.ranks, ranks, strict=True)
        ),
    )


def _collective_error_ns(job: RecordedJob, held: Round) -> float:
    """Median error of the arrival of the last member of a rendezvous."""
    came: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for rank, (program, rows) in enumerate(rank_parts(job.graph)):
        for task in np.flatnonzero(program.slot != PLAIN).tolist():
            group = int(job.graph.rank_group[rank, program.slot[task]])
            row = rows.start + task
            moment = (int(job.recorded_start_ns[row]), int(held.start_ns[row]))
            came.setdefault((group, int(program.sequence[task])), []).append(moment)
    errors = [
        abs(max(now for _, now in moments) - max(then for then, _ in moments))
        for moments in came.values()
    ]
    return float(np.median(errors)) if errors else 0.0


def _coverage(job: RecordedJob) -> dict[str, Any]:
    """How much of *job* and of each rank starts by what it waits for, and not as recorded."""
    counts = []
    for program, part in rank_parts(job.graph):
        length_ns = (job.recorded_end_ns - job.recorded_start_ns)[part]
        length_ns = np.where(program.is_on_device(), length_ns, 0)
        # Whatever starts as recorded follows the beginning of the window.
        is_pin = (program.dep_task == _WINDOW) & (program.dep_anchor == int(Anchor.START))
        owners = program.dep_owners()
        pins = np.unique(owners[is_pin])
        counts.append((program.task_count, len(pins), length_ns.sum(), length_ns[pins].sum()))

    def shares(tasks: int, pinned: int, device_ns: int, pinned_ns: int) -> tuple[float, float]:
        return 1 - pinned / max(tasks, 1), float(1 - pinned_ns / max(device_ns, 1))

    task_ratio, device_ratio = shares(*np.sum(counts, axis=0).tolist())
    return {
        "retimed_task_ratio": task_ratio,
        "retimed_device_ratio": device_ratio,
        "coverage": tuple(
            Coverage(of_rank.rank, *shares(*own), own[1])
            for of_rank, own in zip(job.report.ranks, counts, strict=True)
        ),
    }


@dataclass(slots=True)
class _Path:
    """The time of the critical path: in all, on the host, by rank, and by call of the host."""

    total_ns: int = 0
    host_ns: int = 0
    by_rank: Counter[int] = field(default_factory=Counter)
    by_call: Counter[str] = field(default_factory=Counter)


def _walk_path(job: RecordedJob, held: Round) -> _Path:
    """The critical path from the first step end on."""
    moments = job.step_moments_ns(held.end_ns)
    history = History(held.job, held.durations, held.replay)
    path, ranks = _Path(), [rank.rank for rank in job.report.ranks]
    on_device = [program.is_on_device() for program, _ in rank_parts(held.job)]
    for step in critical_path(history, from_ns=moments[0] if len(moments) > 1 else 0):
        length_ns = step.to_ns - step.from_ns
        path.total_ns += length_ns
        path.by_rank[ranks[step.at.rank]] += length_ns
        if not on_device[step.at.rank][step.at.task]:
            path.host_ns += length_ns
            op = held.job.op_of(step.at.rank, step.at.task)
            label = held.job.label_of(step.at.rank, step.at.task)
            path.by_call[f"{op.name}: {label}" if isinstance(op, Fixed) else label] += length_ns
    return path
