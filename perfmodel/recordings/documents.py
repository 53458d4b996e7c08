"""Documents: imports, self-replays and stream parts as plain values for JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from perfmodel.base.units import NS_PER_MS, NS_PER_US
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import PLAIN
from perfmodel.recordings.executed_jobs import ExecutedJob
from perfmodel.recordings.known_work import KnownShare, known_share
from perfmodel.recordings.recorded_job import Compared, RecordedJob, SelfReplay
from perfmodel.recordings.stream_parts import StreamParts
from perfmodel.recordings.trace_diff import DiffKind, DiffLine, TraceDiff

SCHEMA_VERSION = 1


def import_document(job: RecordedJob, score: SelfReplay) -> dict[str, Any]:
    """What was found in the traces, and how well the job replays itself."""
    report = job.report
    faults = [*([report.missing] if report.missing else []), *report.faults]
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "import",
        "job": job.graph.facts.name,
        "ranks": len(report.ranks),
        "tasks": job.graph.task_count,
        "events_read": sum(rank.objects for rank in report.ranks),
        "device_tasks": sum(rank.device_tasks for rank in report.ranks),
        "launches_linked": sum(rank.launches_linked for rank in report.ranks),
        "collectives": sum(rank.collectives for rank in report.ranks),
        "collectives_matched": sum(rank.collectives_matched for rank in report.ranks),
        "rendezvous": report.rendezvous,
        "steps": report.steps,
        "recorded_starts": report.recorded_starts,
        "faults": faults,
        "is_trusted": score.is_trusted and not report.all_faults,
        "known_work": known_work_document(known_share(job.graph)),
        "per_rank": [asdict(rank) for rank in report.ranks],
        "assumptions": list(job.graph.facts.assumptions),
        "self_replay": self_replay_document(score),
    }


def shapes_document(job: ExecutedJob) -> dict[str, Any]:
    """What was found in traces that say no starts."""
    graph = job.graph
    lanes = [program.lanes for program in graph.programs]
    programs = [graph.programs[int(number)] for number in graph.rank_program]
    is_device = [np.array([lane.kind.is_device for lane in one], dtype=bool) for one in lanes]
    counts = [
        int(is_device[number][program.task_lanes()].sum())
        for number, program in zip(graph.rank_program.tolist(), programs, strict=True)
    ]
    peers = sum(int((program.slot != PLAIN).sum()) for program in programs)
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "import",
        "job": graph.facts.name,
        "source": graph.facts.source,
        "ranks": graph.rank_count,
        "tasks": graph.task_count,
        "operators_read": job.operators,
        "device_tasks": sum(counts),
        "collectives": peers,
        "work": _count_work(graph),
        "faults": list(job.faults),
        "is_trusted": not job.faults,
        "known_work": known_work_document(known_share(graph)),
        "assumptions": list(graph.facts.assumptions),
        "self_replay": None,
    }


def _count_work(graph: JobGraph) -> dict[str, int]:
    """How many device tasks of all ranks do what kind of work."""
    words: Counter[str] = Counter()
    kinds = []
    for op in graph.ops:
        work = op.work if isinstance(op, Fixed) else op
        kinds.append("unknown" if work is None else type(work).__name__)
    for number in graph.rank_program.tolist():
        program = graph.programs[number]
        words.update(kinds[op] for op in program.op.tolist())
    host = ("HostWork", "HostSpan")
    return {kind: count for kind, count in sorted(words.items()) if kind not in host}


def known_work_document(share: KnownShare) -> dict[str, Any]:
    """How much of the device time says what was done in it."""
    return {
        "device_time_ms": share.total_ns / NS_PER_MS,
        "counted_pct": round(100 * share.counted_ratio, 2),
        "estimated_pct": round(100 * (share.known_ratio - share.counted_ratio), 2),
        "known_pct": round(100 * share.known_ratio, 2),
    }


def self_replay_document(score: SelfReplay) -> dict[str, Any]:
    """How well a job replays itself."""
    return {
        "iteration_error_pct": round(score.iteration.error_pct, 4),
        "worst_error_pct": round(score.worst_error_pct, 4),
        "is_trusted": score.is_trusted,
        "faults": list(score.faults),
        "iteration": _compared(score.iteration),
        "periods": [_compared(period) for period in score.periods],
        "ranks": [_compared(rank) for rank in score.ranks],
        "streams": [_compared(stream) for stream in score.streams],
        "collective_start_median_error_us": score.collective_start_median_error_ns / NS_PER_US,
        "unexplained_delay_ms": score.unexplained_delay_ns / NS_PER_MS,
        "unexplained_delay_pct": round(100 * score.unexplained_delay_ratio, 4),
        "critical_path_on_host_pct": round(100 * score.host_path_ratio, 2),
        "rounds": score.rounds,
        "unsettled": score.unsettled,
    }


def stream_parts_document(
    name: str, streams: Sequence[StreamParts], share: KnownShare
) -> dict[str, Any]:
    """What every stream spent its time on, and how much of it has known work."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "trace_stats",
        "job": name,
        "known_work": known_work_document(share),
        "streams": [
            {
                "rank": stream.rank,
                "stream": stream.stream,
                "tasks": stream.tasks,
                "window_ms": stream.window_ns / NS_PER_MS,
                "parts_ms": {
                    part.value: length_ns / NS_PER_MS for part, length_ns in stream.parts_ns.items()
                },
            }
            for stream in streams
        ],
    }


def diff_document(diff: TraceDiff) -> dict[str, Any]:
    """Two recordings side by side."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "trace_diff",
        "before": diff.before,
        "after": diff.after,
        "step_ms": [length_ns / NS_PER_MS for length_ns in diff.step_ns],
        "change_ms": (diff.step_ns[1] - diff.step_ns[0]) / NS_PER_MS,
        "steps": list(diff.steps),
        "same_tasks_pct": round(100 * diff.same_tasks_ratio, 2),
        "by": {kind.value: [_diff_line(line) for line in diff.of_kind(kind)] for kind in DiffKind},
    }


def _diff_line(line: DiffLine) -> dict[str, Any]:
    return {
        "name": line.name,
        "before_ms": line.before.duration_ns / NS_PER_MS,
        "after_ms": line.after.duration_ns / NS_PER_MS,
        "change_ms": line.change_ns / NS_PER_MS,
        "before_count": round(line.before.count, 3),
        "after_count": round(line.after.count, 3),
    }


def _compared(part: Compared) -> dict[str, Any]:
    return {
        "name": part.name,
        "recorded_ms": part.recorded_ns / NS_PER_MS,
        "replayed_ms": part.replayed_ns / NS_PER_MS,
        "error_pct": round(part.error_pct, 4),
    }
