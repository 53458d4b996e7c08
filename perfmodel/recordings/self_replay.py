"""Self-replay: a recorded job replayed with its own durations and compared with the recording.

Reproducing a recording proves little if starts were copied; here none was. The score is shown
with every later answer from the job.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.engine.history import History
from perfmodel.engine.reasons import critical_path
from perfmodel.engine.replay import Replayer
from perfmodel.graph.program import PLAIN
from perfmodel.recordings.hold_back import (
    HeldReplay,
    HoldRule,
    ready_ns_of,
    replay_held,
    replay_in_process,
)
from perfmodel.recordings.recorded_job import Compared, Int64s, RecordedJob, SelfReplay


def self_replay(job: RecordedJob, *, replayer: Replayer = replay_in_process) -> SelfReplay:
    """Replay *job* with its own durations and compare."""
    return compare(job, replay_as_recorded(job, replayer=replayer))


def replay_as_recorded(job: RecordedJob, *, replayer: Replayer = replay_in_process) -> HeldReplay:
    """*job* with its own durations."""
    rule = HoldRule(job.hold_ratio, job.can_be_held)
    return replay_held(job.graph, job.durations(), rule, replayer=replayer)


def with_score(job: RecordedJob) -> RecordedJob:
    """*job* with the score of its self-replay."""
    return replace(job, score=self_replay(job))


def compare(job: RecordedJob, held: HeldReplay) -> SelfReplay:
    """Compare the replay *held* with the recording of *job*."""
    unexplained_ns, ranks = _unexplained_ns(job, held), _ranks(job, held)
    return SelfReplay(
        periods=_periods(job, held),
        ranks=ranks,
        streams=_streams(job),
        collective_start_median_error_ns=_collective_error_ns(job, held),
        unexplained_delay_ns=unexplained_ns,
        unexplained_delay_ratio=unexplained_ns / max(sum(rank.recorded_ns for rank in ranks), 1),
        host_path_ratio=_host_path_ratio(job, held),
        rounds=held.rounds,
        unsettled=held.unsettled,
        faults=job.report.grave_faults,
    )


def step_moments_ns(job: RecordedJob, end_ns: Int64s) -> list[int]:
    """When each step ended."""
    return [int(end_ns[rows].max()) for rows in job.step_ends]


def _periods(job: RecordedJob, held: HeldReplay) -> tuple[Compared, ...]:
    recorded = np.diff(step_moments_ns(job, job.recorded_end_ns))
    replayed = np.diff(step_moments_ns(job, held.end_ns))
    return tuple(
        Compared(f"period {number}", int(then), int(now))
        for number, (then, now) in enumerate(zip(recorded, replayed, strict=True))
    )


def _ranks(job: RecordedJob, held: HeldReplay) -> tuple[Compared, ...]:
    rows = job.graph.rank_rows()
    compared = []
    for rank, of_rank in enumerate(job.report.ranks):
        part = slice(rows[rank] + 1, rows[rank + 1])
        first_ns = int(job.recorded_start_ns[part].min())
        compared.append(
            Compared(
                f"rank {of_rank.rank}",
                int(job.recorded_end_ns[part].max()) - first_ns,
                int(held.end_ns[part].max()) - first_ns,
            )
        )
    return tuple(compared)


def _streams(job: RecordedJob) -> tuple[Compared, ...]:
    """Busy time of each stream: recorded, and without waiting inside collectives."""
    rows, durations = job.graph.rank_rows(), job.durations()
    compared: list[Compared] = []
    for rank, of_rank in enumerate(job.report.ranks):
        program = job.graph.program_of(rank)
        lanes = program.task_lanes()
        part = slice(rows[rank], rows[rank + 1])
        recorded_ns = (job.recorded_end_ns - job.recorded_start_ns)[part]
        kept_ns = durations.of_rank(job.graph, rank)[:, 0]
        compared.extend(
            Compared(
                f"rank {of_rank.rank} {lane.name}",
                int(recorded_ns[lanes == number].sum()),
                int(kept_ns[lanes == number].sum()),
            )
            for number, lane in enumerate(program.lanes)
            if lane.kind.is_device
        )
    return tuple(compared)


def _collective_error_ns(job: RecordedJob, held: HeldReplay) -> float:
    """Median error of the arrival of the last member of a rendezvous."""
    rows = job.graph.rank_rows()
    came: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for rank in range(job.graph.rank_count):
        program = job.graph.program_of(rank)
        for task in np.flatnonzero(program.slot != PLAIN).tolist():
            group = int(job.graph.rank_group[rank, program.slot[task]])
            row = int(rows[rank]) + task
            moment = (int(job.recorded_start_ns[row]), int(held.start_ns[row]))
            came.setdefault((group, int(program.sequence[task])), []).append(moment)
    errors = [
        abs(max(now for _, now in moments) - max(then for then, _ in moments))
        for moments in came.values()
    ]
    return float(np.median(errors)) if errors else 0.0


def _unexplained_ns(job: RecordedJob, held: HeldReplay) -> int:
    """Total delay of recorded starts of device tasks after everything they waited for."""
    rows, total = job.graph.rank_rows(), 0
    for rank in range(job.graph.rank_count):
        program = held.graph.program_of(rank)
        part = slice(rows[rank], rows[rank + 1])
        start_ns, end_ns = job.recorded_start_ns[part], job.recorded_end_ns[part]
        is_device = program.is_on_device()
        ready_ns = ready_ns_of(program, start_ns, end_ns)
        total += int(np.maximum(start_ns - ready_ns, 0)[is_device].sum())
    return total


def _host_path_ratio(job: RecordedJob, held: HeldReplay) -> float:
    """Share of the critical path, from the first step end on, that is on the host."""
    moments = step_moments_ns(job, held.end_ns)
    history = History(held.graph, held.durations, held.replay)
    steps = critical_path(history, from_ns=moments[0] if len(moments) > 1 else 0)
    on_host = 0
    for step in steps:
        program = held.graph.program_of(step.at.rank)
        lane = int(np.searchsorted(program.lane_start, step.at.task, side="right")) - 1
        if not program.lanes[lane].kind.is_device:
            on_host += step.to_ns - step.from_ns
    return on_host / max(sum(step.to_ns - step.from_ns for step in steps), 1)
