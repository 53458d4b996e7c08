"""Recorded jobs made of a few calls and kernels, and changes to them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.extensions.recordings.importing import import_job
from perfmodel.extensions.recordings.recorded_job import RecordedJob
from perfmodel.extensions.recordings.stream_holds import HoldRule, hold_ratios, replay_with_holds
from perfmodel.graph.durations import DurationTable
from tests import recorded
from tests.traces.builders import span, write_trace
from traces.job_trace import load_job_trace

V100 = {
    "id": 0, "name": "V100", "numSms": 80, "maxThreadsPerMultiprocessor": 2048,
    "regsPerMultiprocessor": 65536, "sharedMemPerMultiprocessor": 98304,
}  # fmt: skip


def call(name: str, start: float, duration: float, correlation: int, tid: int = 1) -> Any:
    """A runtime call."""
    return span("cuda_runtime", name, start, duration, correlation=correlation, tid=tid)


def import_spans(folder: Path, *ranks: list[Any]) -> RecordedJob:
    """Write the spans of each rank as a trace and import them as one job."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, spans in enumerate(ranks):
        write_trace(
            folder / f"rank{rank}.json", spans, deviceProperties=[V100],
            distributedInfo={"rank": rank, "world_size": len(ranks)},
        )  # fmt: skip
    job = import_job(load_job_trace(folder))
    columns = (job.recorded_start_ns, job.recorded_end_ns, hold_ratios(job.graph), job.can_be_held)
    recorded.check_job("", job.graph, *columns, *job.step_ends, job.report)
    return job


def durations_of(job: RecordedJob) -> DurationTable:
    """The recorded durations as a copy that can be changed."""
    table = job.durations()
    return replace(table, values_ns=table.values_ns.copy())


def find_tasks(job: RecordedJob, rank: int, label: str) -> list[int]:
    """Rows of the tasks of *rank* whose label contains *label*."""
    program = job.graph.program_of(rank)
    first = int(job.graph.rank_rows()[rank])
    return [
        first + task
        for task in range(program.task_count)
        if label in job.graph.labels[int(program.label[task])]
    ]


def replay_ms(job: RecordedJob, durations: DurationTable | None = None) -> list[float]:
    """The periods of *job* in milliseconds, replayed."""
    held = held_of(job, durations)
    moments = [int(held.end_ns[rows].max()) for rows in job.step_ends]
    return [float(period) / 1e6 for period in np.diff(moments)]


def held_of(job: RecordedJob, durations: DurationTable | None = None) -> Any:
    """A replay of *job* with *durations*, the recorded ones by default."""
    table = job.durations() if durations is None else durations
    return replay_with_holds(job.graph, table, HoldRule(hold_ratios(job.graph), job.can_be_held))
