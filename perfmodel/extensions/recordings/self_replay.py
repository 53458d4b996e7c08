"""Self-replay: a recorded job replayed with its own durations and compared with the recording.

Reproducing a recording proves little if starts were copied; here none was. The score is shown
with every later answer from the job.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from perfmodel.engine.history import History
from perfmodel.engine.reasons import critical_path
from perfmodel.engine.settle import Round
from perfmodel.extensions.recordings.hold_back import HoldRule, hold_ratios, replay_held
from perfmodel.extensions.recordings.recorded_job import (
    RecordedJob,
    ReplayedLength,
    SelfReplay,
    rank_parts,
)
from perfmodel.extensions.recordings.unprofiled import with_estimate
from perfmodel.graph.ops import Fixed

_MOST_CALLS = 8
_WINDOW = 0
"""The first task of every rank: the beginning of the recording."""


def self_replay(job: RecordedJob) -> SelfReplay:
    """Replay *job* with its own durations and compare."""
    return compare(job, replay_as_recorded(job))


def replay_as_recorded(job: RecordedJob) -> Round:
    """*job* with its own durations."""
    return replay_held(
        job.graph, job.durations(), HoldRule(hold_ratios(job.graph), job.can_be_held)
    )


def with_score(job: RecordedJob) -> RecordedJob:
    """*job* with the score of its self-replay, and its time without the profiler."""
    return with_estimate(replace(job, score=self_replay(job)))


def compare(job: RecordedJob, held: Round) -> SelfReplay:
    """Compare the replay *held* with the recording of *job*."""
    lengths = (np.diff(job.step_moments_ns(ends)) for ends in (job.recorded_end_ns, held.end_ns))
    ranks: list[ReplayedLength] = []
    for of_rank, (_, part) in zip(job.report.ranks, rank_parts(held.job), strict=True):
        # The first task is the beginning of the window.
        first_ns = int(job.recorded_start_ns[part][1:].min())
        ends = (job.recorded_end_ns[part][1:], held.end_ns[part][1:])
        spans_ns = (int(of.max()) - first_ns for of in ends)
        ranks.append(ReplayedLength(f"rank {of_rank.rank}", *spans_ns))
    path = _walk_path(job, held)
    return SelfReplay(
        periods=tuple(
            ReplayedLength(f"period {number}", int(then), int(now))
            for number, (then, now) in enumerate(zip(*lengths, strict=True))
        ),
        ranks=tuple(ranks),
        host_path_ratio=path.host_ns / max(path.total_ns, 1),
        rounds=held.count,
        unsettled=held.unsettled,
        faults=job.report.grave_faults,
        cycle=job.report.cycle,
        host_path=tuple(path.by_call.most_common(_MOST_CALLS)),
        path_ranks=tuple(path.by_rank.most_common()),
        noise_ratio=max(
            of_rank.mended_ns / max(span.recorded_ns, 1)
            for of_rank, span in zip(job.report.ranks, ranks, strict=True)
        ),
    )


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
