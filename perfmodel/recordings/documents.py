"""Documents: imports, self-replays and stream parts as plain values for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from perfmodel.base.units import NS_PER_MS, NS_PER_US
from perfmodel.recordings.recorded_job import Compared, RecordedJob, SelfReplay
from perfmodel.recordings.stream_parts import StreamParts

SCHEMA_VERSION = 1


def import_document(job: RecordedJob, score: SelfReplay) -> dict[str, Any]:
    """What was found in the traces, and how well the job replays itself."""
    report = job.report
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
        "faults": list(report.faults),
        "per_rank": [asdict(rank) for rank in report.ranks],
        "assumptions": list(job.graph.facts.assumptions),
        "self_replay": self_replay_document(score),
    }


def self_replay_document(score: SelfReplay) -> dict[str, Any]:
    """How well a job replays itself."""
    return {
        "iteration_error_pct": round(score.iteration.error_pct, 4),
        "worst_error_pct": round(score.worst_error_pct, 4),
        "is_trusted": score.is_trusted,
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


def stream_parts_document(name: str, streams: Sequence[StreamParts]) -> dict[str, Any]:
    """What every stream spent its time on."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "trace_stats",
        "job": name,
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


def _compared(part: Compared) -> dict[str, Any]:
    return {
        "name": part.name,
        "recorded_ms": part.recorded_ns / NS_PER_MS,
        "replayed_ms": part.replayed_ns / NS_PER_MS,
        "error_pct": round(part.error_pct, 4),
    }
