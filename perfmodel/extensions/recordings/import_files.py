"""Import of files: traces of one job or several become job folders.

The content of a file decides what it is. Kineto traces become recordings with a score, with the
shapes of execution traces next to them; execution traces alone become a job of shapes. Chakra
files that perfmodel wrote become the job they came from, those of other programs a job with their
durations.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from perfmodel.base.errors import GraphError, TraceError
from perfmodel.base.units import NS_PER_MS
from perfmodel.extensions.recordings.execution_trace_jobs import ExecutedJob, build_executed_job
from perfmodel.extensions.recordings.importing import import_job
from perfmodel.extensions.recordings.linked_trace_jobs import build_linked_job, is_linked
from perfmodel.extensions.recordings.recorded_job import SCHEMA_VERSION, RecordedJob, SelfReplay
from perfmodel.extensions.recordings.self_replay import with_score
from perfmodel.extensions.recordings.storage import save_recorded_job
from perfmodel.extensions.recordings.trace_stats import known_share
from perfmodel.graph.audit import check_job
from perfmodel.graph.storage import save_job
from traces.chakra import load_chakra
from traces.execution_trace import load_execution_trace
from traces.file_stream import DEFAULT_LIMITS, Limits
from traces.job_trace import (
    OnFile,
    RecordedFiles,
    find_recordings,
    ignore_file,
    load_recording,
)


@dataclass(frozen=True, slots=True, eq=False)
class ImportedJob:
    """A recording with its score, and the folder it was written to."""

    folder: Path
    job: RecordedJob

    @property
    def score(self) -> SelfReplay:
        """How well it replays itself."""
        assert self.job.score is not None
        return self.job.score

    @property
    def faults(self) -> tuple[str, ...]:
        """The faults of the recording."""
        return self.job.report.all_faults

    def document(self) -> dict[str, Any]:
        """What was found in the traces, and the score, as plain values for JSON."""
        report, graph = self.job.report, self.job.graph
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "import",
            "job": graph.facts.name,
            "ranks": len(report.ranks),
            "tasks": graph.task_count,
            "events_read": sum(rank.objects for rank in report.ranks),
            **{
                count: sum(getattr(rank, count) for rank in report.ranks)
                for count in (
                    "device_tasks",
                    "launches_linked",
                    "collectives",
                    "collectives_matched",
                )
            },
            "rendezvous": report.rendezvous,
            "steps": report.steps,
            "step_rule": report.rule,
            "cycle": report.cycle,
            "step_table": [asdict(row) for row in report.table],
            "recorded_starts": report.recorded_starts,
            "faults": [*filter(None, [report.missing]), *report.faults],
            "is_trusted": self.score.is_trusted and not report.all_faults,
            "known_work": known_share(graph),
            "per_rank": [asdict(rank) for rank in report.ranks],
            "assumptions": list(graph.facts.assumptions),
            "self_replay": self.score.document(),
            "iteration_time_ms": self.score.iteration.recorded_ns / NS_PER_MS,
            "unprofiled": self.job.unprofiled and self.job.unprofiled.document(),
            "folder": str(self.folder),
        }


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Whether faults are errors, whether jobs may be replaced, and how much a file may hold."""

    is_strict: bool = False
    is_overwriting: bool = False
    limits: Limits = DEFAULT_LIMITS


DEFAULT_OPTIONS = ImportOptions()
_MMAP_THRESHOLD = -3
"""M_MMAP_THRESHOLD of glibc's mallopt."""
_LARGE_BLOCK_BYTES = 2**22
Imported = ImportedJob | ExecutedJob
Loaded = TypeVar("Loaded")


def import_traces(
    paths: Sequence[str | Path],
    out: str | Path,
    options: ImportOptions = DEFAULT_OPTIONS,
    on_file: OnFile = ignore_file,
) -> tuple[Imported, ...]:
    """Import files of one job, a folder of them, or a folder of such folders.

    One job is written to *out*, several to folders in it with their names. Nothing is written
    before every job has been read.
    """
    _return_large_blocks()
    recordings = find_recordings(list(paths))
    made: list[Imported] = []
    for recording in recordings:
        folder = Path(out) if len(recordings) == 1 else Path(out, recording.name)
        made.append(_read(recording, folder, options, on_file))
    found = [f"  {one.folder.name}: {fault}" for one in made for fault in one.faults]
    if options.is_strict and found:
        heading = f"--strict: the traces must have no faults, they have {len(found)}."
        advice = "Nothing was written. Record again, or import without --strict and check them."
        raise TraceError("\n".join([heading, *found, advice]))
    for one in made:
        if isinstance(one, ImportedJob):
            save_recorded_job(one.job, one.folder, is_overwriting=options.is_overwriting)
        else:
            save_job(one.graph, one.folder, is_overwriting=options.is_overwriting)
    return tuple(made)


def _return_large_blocks() -> None:
    """Let the C library return large blocks of memory as soon as they are free.

    It learns to keep blocks of up to 32 MiB, and then an import needs a third more memory than it
    ever uses at once.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)


def _read(
    recording: RecordedFiles, folder: Path, options: ImportOptions, on_file: OnFile
) -> Imported:
    if recording.timed:
        # The job is made from traces that nothing else holds, so they are given up on the way.
        recorded = import_job(load_recording(recording, options.limits, on_file))
        try:
            return ImportedJob(folder, with_score(recorded))
        except GraphError as fault:
            # What is launched by a call after it waits for itself; the faults say that and more.
            said = "; ".join(recorded.report.grave_faults) or str(fault)
            raise TraceError(
                f"{recording.name}: its device work cannot run in the order of its calls: {said}. "
                "Record again."
            ) from None
    if recording.executed:
        executed = _load(recording.executed, load_execution_trace, options.limits, on_file)
        if all(is_linked(trace) for trace in executed):
            executed.sort(key=lambda trace: trace.rank)
            job = build_linked_job(recording.name, executed, "linked execution traces")
        else:
            job = build_executed_job(recording.name, executed)
    else:
        chakra = _load(recording.chakra, load_chakra, options.limits, on_file)
        job = build_linked_job(recording.name, chakra, "Chakra traces")
    check_job(job.graph)
    return replace(job, folder=folder)


def _load(
    paths: Sequence[Path], load: Callable[[Path, Limits], Loaded], limits: Limits, on_file: OnFile
) -> list[Loaded]:
    loaded = []
    for place, path in enumerate(paths):
        on_file(path, place, len(paths))
        loaded.append(load(path, limits))
    return loaded
