"""Self-replay: a recorded job replayed with its own durations and compared with the recording.

Reproducing a recording proves little if starts were copied; here none was. The score is shown
with every later answer from the job.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.engine.settle import Round
from perfmodel.extensions.recordings.recorded_job import (
    RecordedJob,
    ReplayedLength,
    SelfReplay,
    rank_parts,
)
from perfmodel.extensions.recordings.stream_holds import HoldRule, hold_ratios, replay_with_holds
from perfmodel.extensions.recordings.unprofiled import with_estimate


def self_replay(job: RecordedJob) -> SelfReplay:
    """Replay *job* with its own durations and compare."""
    return compare(job, replay_as_recorded(job))


def replay_as_recorded(job: RecordedJob) -> Round:
    """*job* with its own durations."""
    return replay_with_holds(
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
    return SelfReplay(
        periods=tuple(
            ReplayedLength(f"period {number}", int(then), int(now))
            for number, (then, now) in enumerate(zip(*lengths, strict=True))
        ),
        ranks=tuple(ranks),
        rounds=held.count,
        unsettled=held.unsettled,
        faults=job.report.grave_faults,
        cycle=job.report.cycle,
        noise_ratio=max(
            of_rank.mended_ns / max(span.recorded_ns, 1)
            for of_rank, span in zip(job.report.ranks, ranks, strict=True)
        ),
    )
