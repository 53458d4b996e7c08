"""Jobs and recordings: traces and scripts become jobs, and traces are looked into."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.api.asking import open_place

if TYPE_CHECKING:
    from perfmodel.emulation.request import Emulation
    from perfmodel.emulation.summary import EmulatedJob
    from perfmodel.graph.job import JobGraph
    from perfmodel.recordings.import_files import Imported, ImportedJob, ImportWishes
    from traces.job_trace import OnFile


def import_traces(
    paths: Sequence[str | Path],
    out: str | Path,
    wishes: ImportWishes | None = None,
    on_file: OnFile | None = None,
) -> tuple[Imported, ...]:
    """Turn traces of all ranks into a job in the folder *out*; what they are is told by content.

    *paths* are files of one job, a folder of them, or a folder of such folders; several jobs go
    to folders in *out*. *on_file* is told before each file is read, and when all are.
    """
    from perfmodel.recordings import import_files
    from traces.job_trace import ignore_file

    return import_files.import_traces(
        [Path(path) for path in paths],
        Path(out),
        import_files.AsUsual if wishes is None else wishes,
        ignore_file if on_file is None else on_file,
    )


def import_kineto(paths: Sequence[str | Path], out: str | Path) -> tuple[ImportedJob, ...]:
    """Turn Kineto traces of all ranks into a job in the folder *out*, and score it.

    *paths* are files of one job, a folder of them, or a folder of such folders;
    several jobs go to folders in *out*.
    """
    from perfmodel.recordings import import_files

    return import_files.import_kineto([Path(path) for path in paths], Path(out))


def import_chakra(paths: Sequence[str | Path], out: str | Path) -> tuple[Imported, ...]:
    """Turn Chakra execution traces of one job into a job in the folder *out*."""
    from perfmodel.recordings import import_files

    return import_files.import_chakra([Path(path) for path in paths], Path(out))


def emulate(
    request: Emulation,
    out: str | Path,
    *,
    executor: str = "auto",
    workers: int | None = None,
    ray_address: str | None = None,
) -> EmulatedJob:
    """Run the torch script of *request* on virtual GPUs and write its job to the folder *out*."""
    from perfmodel.emulation import emulate as emulation

    with open_place(executor, workers, ray_address) as place:
        return emulation.emulate(request, Path(out), place=place)


def load_job(folder: str | Path) -> JobGraph:
    """The graph of the job in *folder*, recorded or built."""
    from perfmodel.graph import storage

    return storage.load_job(Path(folder))


def save_job(job: JobGraph, folder: str | Path) -> None:
    """Write *job* into *folder*, for `load_job`, `predict --job`, `replay` and `whatif`."""
    from perfmodel.graph import storage

    storage.save_job(job, Path(folder))


def trace_stats(paths: Sequence[str | Path], on_file: OnFile | None = None) -> list[dict[str, Any]]:
    """What every stream of every rank spent its time on, one document a recording in *paths*."""
    from perfmodel.recordings.trace_stats import stats_document
    from traces.job_trace import ignore_file, load_job_traces

    tell = ignore_file if on_file is None else on_file
    return [
        stats_document(one) for one in load_job_traces([Path(path) for path in paths], on_file=tell)
    ]


def trace_diff(before: str | Path, after: str | Path) -> dict[str, Any]:
    """What got slower between two recordings: by operator, kernel, range of the profiler, wait."""
    from perfmodel.recordings.trace_diff import diff_traces
    from traces.job_trace import load_job_trace

    then, now = (load_job_trace([Path(path)]) for path in (before, after))
    return diff_traces(then, now).document()


def trace_extract(
    paths: Sequence[str | Path], out: str | Path, *, topology: str = "unknown"
) -> tuple[Path, ...]:
    """Write the recorded products, collectives and host times of a job as tables into *out*."""
    from perfmodel.recordings.extraction import extract_tables, write_tables
    from traces.job_trace import load_job_trace

    recorded = load_job_trace([Path(path) for path in paths])
    return tuple(write_tables(extract_tables(recorded, topology=topology), Path(out)))


def trace_chakra(job: str | Path, out: str | Path) -> tuple[Path, ...]:
    """Write the recorded *job* as Chakra execution traces into *out*, one file per rank."""
    from perfmodel.recordings.storage import load_recorded_job, write_chakra_job

    return tuple(write_chakra_job(load_recorded_job(Path(job)), Path(out)))
