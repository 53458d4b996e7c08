"""The Python interface of recorded traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.api.questions import File, Files
from perfmodel.base.extensions import load_extension

if TYPE_CHECKING:
    from traces.job_trace import OnFile


def trace_stats(paths: Files, on_file: OnFile | None = None) -> list[dict[str, Any]]:
    """What every stream of every rank spends its time on, one document per recording in *paths*."""
    from perfmodel.extensions.recordings.trace_stats import stats_document
    from traces.job_trace import ignore_file, load_job_traces

    recorded = load_job_traces(paths, on_file=on_file or ignore_file)
    return [stats_document(one) for one in recorded]


def trace_diff(before: File, after: File) -> dict[str, Any]:
    """What is slower in the later recording: by operator, kernel, profiler range, wait."""
    from perfmodel.extensions.recordings.trace_diff import diff_traces
    from traces.job_trace import load_job_trace

    return diff_traces(load_job_trace(before), load_job_trace(after))


def trace_extract(paths: Files, out: File, *, topology: str = "unknown") -> tuple[Path, ...]:
    """Write the recorded GEMMs, collectives and host times of a job as tables into *out*."""
    from traces.job_trace import load_job_trace

    extraction = load_extension("measurements", "extraction")
    tables = extraction.extract_tables(load_job_trace(paths), topology=topology)
    written: tuple[Path, ...] = extraction.write_tables(tables, Path(out))
    return written
