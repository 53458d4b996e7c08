"""Import of files: traces of one job or several become job folders.

What a file holds is told by its content. Kineto traces become recordings with a
score, with the shapes of execution traces that lie beside them; execution
traces alone a job of shapes; Chakra files that perfmodel wrote the job they
came from, those of others a job with their durations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perfmodel.base.errors import TraceError
from perfmodel.graph.audit import check_job
from perfmodel.graph.storage import save_job
from perfmodel.recordings.chakra_jobs import assemble_chakra_job, is_own
from perfmodel.recordings.executed_jobs import ExecutedJob, build_executed_job
from perfmodel.recordings.importing import import_job
from perfmodel.recordings.linked_jobs import build_linked_job, is_linked
from perfmodel.recordings.recorded_job import RecordedJob, SelfReplay
from perfmodel.recordings.self_replay import with_score
from perfmodel.recordings.storage import save_recorded_job
from traces.chakra import load_chakra
from traces.execution_trace import load_execution_trace
from traces.job_trace import (
    OnFile,
    Recording,
    find_recordings,
    ignore_file,
    load_recording,
)
from traces.packed import DEFAULT_LIMITS, Limits


@dataclass(frozen=True, slots=True, eq=False)
class ImportedJob:
    """A recording that was scored, and the folder it was written to."""

    folder: Path
    job: RecordedJob

    @property
    def score(self) -> SelfReplay:
        """How well it replays itself."""
        assert self.job.score is not None
        return self.job.score

    @property
    def faults(self) -> tuple[str, ...]:
        """What is wrong with the recording."""
        return self.job.report.all_faults


@dataclass(frozen=True, slots=True, eq=False)
class ImportedShapes:
    """A job without recorded starts, and the folder it was written to."""

    folder: Path
    job: ExecutedJob

    @property
    def faults(self) -> tuple[str, ...]:
        """What is wrong with the traces."""
        return self.job.faults


@dataclass(frozen=True, slots=True)
class ImportWishes:
    """Whether faults are errors, whether jobs may be replaced, and how much a file may hold."""

    is_strict: bool = False
    is_overwriting: bool = False
    limits: Limits = DEFAULT_LIMITS


AsUsual = ImportWishes()
Imported = ImportedJob | ImportedShapes


def import_traces(
    paths: Sequence[Path],
    out: Path,
    wishes: ImportWishes = AsUsual,
    on_file: OnFile = ignore_file,
) -> tuple[Imported, ...]:
    """Import files of one job, a folder of them, or a folder of such folders.

    One job is written to *out*, several to folders in it with their names. Nothing is written
    before every job has been read.
    """
    recordings = find_recordings(list(paths))
    made: list[Imported] = []
    for recording in recordings:
        folder = out if len(recordings) == 1 else out / recording.name
        made.append(_read(recording, folder, wishes, on_file))
    if wishes.is_strict:
        _refuse_faults(made)
    for one in made:
        if isinstance(one, ImportedJob):
            save_recorded_job(one.job, one.folder, is_overwriting=wishes.is_overwriting)
        else:
            save_job(one.job.graph, one.folder, is_overwriting=wishes.is_overwriting)
    return tuple(made)


def import_kineto(paths: Sequence[Path], out: Path) -> tuple[ImportedJob, ...]:
    """Import Kineto traces as `import_traces` does; a job that is there is replaced."""
    found = import_traces(paths, out, ImportWishes(is_overwriting=True))
    return tuple(one for one in found if isinstance(one, ImportedJob))


def import_chakra(paths: Sequence[Path], out: Path) -> tuple[Imported, ...]:
    """Import Chakra traces as `import_traces` does; a job that is there is replaced."""
    return import_traces(paths, out, ImportWishes(is_overwriting=True))


def _read(recording: Recording, folder: Path, wishes: ImportWishes, on_file: OnFile) -> Imported:
    if recording.kineto:
        traces = load_recording(recording, wishes.limits, on_file)
        files = len(recording.kineto)
        on_file(recording.kineto[-1], files, files)
        return ImportedJob(folder, with_score(import_job(traces)))
    if recording.executed:
        job = _read_executed(recording, wishes.limits, on_file)
    else:
        traces_of = []
        for place, path in enumerate(recording.chakra):
            on_file(path, place, len(recording.chakra))
            traces_of.append(load_chakra(path, wishes.limits))
        if any(is_own(trace) for trace in traces_of):
            own = assemble_chakra_job(traces_of, recording.chakra[0].parent)
            return ImportedJob(folder, with_score(own))
        job = build_linked_job(recording.name, traces_of, "Chakra traces")
    check_job(job.graph)
    return ImportedShapes(folder, job)


def _read_executed(recording: Recording, limits: Limits, on_file: OnFile) -> ExecutedJob:
    traces = []
    for place, path in enumerate(recording.executed):
        on_file(path, place, len(recording.executed))
        traces.append(load_execution_trace(path, limits))
    if all(is_linked(trace) for trace in traces):
        ordered = sorted(traces, key=lambda trace: trace.rank)
        return build_linked_job(recording.name, ordered, "linked execution traces")
    return build_executed_job(recording.name, traces)


def _refuse_faults(made: Sequence[Imported]) -> None:
    found = [f"  {one.folder.name}: {fault}" for one in made for fault in one.faults]
    if found:
        heading = f"--strict: the traces must have no faults, they have {len(found)}."
        advice = "Nothing was written. Record again, or import without --strict and mind them."
        raise TraceError("\n".join([heading, *found, advice]))
