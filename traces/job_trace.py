"""Job traces: the recordings of all ranks of one job.

A job is a folder with one trace a rank. A folder of such folders is several
recordings, each a job of its own.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from perfmodel.base.documents import FaultList
from perfmodel.base.errors import TraceError
from traces.kineto import load_kineto
from traces.trace import Trace

_HEAD_BYTES = 1 << 20


class TraceFormat(Enum):
    """What a file holds, by its content."""

    KINETO = "kineto"
    EXECUTION_TRACE = "pytorch execution trace"
    CHAKRA = "chakra"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class JobTrace:
    """What every recorded rank did, by rank; `missing_ranks` were not recorded."""

    name: str
    ranks: tuple[Trace, ...]
    world_size: int

    def __post_init__(self) -> None:
        if not self.ranks:
            raise TraceError(f"job {self.name!r}: must hold at least one trace, got none.")
        faults = FaultList(f"job {self.name!r}")
        owner: dict[int, str] = {}
        for trace in self.ranks:
            if trace.rank in owner:
                faults.add(
                    trace.document,
                    f"is of rank {trace.rank}, but so is {owner[trace.rank]}. Files of one job "
                    "have one rank each; give recordings of different jobs one by one.",
                )
            owner.setdefault(trace.rank, trace.document)
        faults.check(TraceError)

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks of the job that no trace is of."""
        recorded = {trace.rank for trace in self.ranks}
        return tuple(rank for rank in range(self.world_size) if rank not in recorded)


def load_job_trace(paths: Sequence[Path | str] | Path | str) -> JobTrace:
    """Read the one job at *paths*: a file, some files, or a folder with one file a rank."""
    jobs = load_job_traces(paths)
    if len(jobs) > 1:
        names = ", ".join(job.name for job in jobs)
        raise TraceError(
            f"{paths}: must hold one job, holds {len(jobs)} recordings ({names}). Give one of them."
        )
    return jobs[0]


def load_job_traces(paths: Sequence[Path | str] | Path | str) -> tuple[JobTrace, ...]:
    """Read every job at *paths*; files given together are one job."""
    given = [Path(paths)] if isinstance(paths, Path | str) else [Path(path) for path in paths]
    if not given:
        raise TraceError("traces: must name at least one file or folder, got none.")
    for path in given:
        if not path.exists():
            raise TraceError(f"{path}: must be a trace or a folder of traces, but is not there.")
    files = [path for path in given if path.is_file()]
    jobs = (
        [_job_of(files[0].parent.name if len(files) > 1 else _stem(files[0]), files)]
        if files
        else []
    )
    for folder in given:
        if folder.is_dir():
            jobs.extend(_jobs_in(folder))
    return tuple(jobs)


def detect_format(path: Path) -> TraceFormat:
    """What *path* holds, from its first bytes."""
    head = _head(path)
    text = head.lstrip()
    if text[:1] in (b"{", b"["):
        if b'"traceEvents"' in head or text[:1] == b"[":
            return TraceFormat.KINETO
        if b'"nodes"' in head and b'"schema"' in head:
            return TraceFormat.EXECUTION_TRACE
        return TraceFormat.OTHER
    if path.name.removesuffix(".gz").endswith(".et"):
        return TraceFormat.CHAKRA
    return TraceFormat.OTHER


def _jobs_in(folder: Path) -> list[JobTrace]:
    files = sorted(path for path in folder.iterdir() if path.is_file())
    kineto = [path for path in files if detect_format(path) is TraceFormat.KINETO]
    if kineto:
        return [_job_of(folder.name, kineto)]
    jobs = []
    for inner in sorted(path for path in folder.iterdir() if path.is_dir()):
        names = sorted(path for path in inner.iterdir() if path.is_file())
        kineto = [path for path in names if detect_format(path) is TraceFormat.KINETO]
        if kineto:
            jobs.append(_job_of(inner.name, kineto))
    if len(jobs) == 1:
        # One recording beside, say, its execution traces: the outer folder names the job.
        jobs = [replace(jobs[0], name=folder.name)]
    if not jobs:
        kinds = sorted({detect_format(path).value for path in files}) or ["nothing"]
        raise TraceError(
            f"{folder}: must hold Kineto traces, one file a rank, or folders of such; "
            f"holds {', '.join(kinds)}."
        )
    return jobs


def _job_of(name: str, files: list[Path]) -> JobTrace:
    traces, faults = [], FaultList(f"job {name!r}")
    for path in files:
        try:
            traces.append(load_kineto(path))
        except TraceError as fault:
            faults.add(path.name, str(fault))
    faults.check(TraceError)
    traces = _with_ranks(traces)
    world_size = max(max(trace.world_size, trace.rank + 1) for trace in traces)
    return JobTrace(
        name=name, ranks=tuple(sorted(traces, key=lambda t: t.rank)), world_size=world_size
    )


def _with_ranks(traces: list[Trace]) -> list[Trace]:
    """A lone trace without a rank is rank 0; several without one cannot be told apart."""
    if len(traces) == 1:
        return traces
    unknown = [trace.document for trace in traces if not trace.is_rank_stated]
    if unknown:
        raise TraceError(
            f"{', '.join(unknown)}: no rank in distributedInfo nor in the file name. "
            "Name the files of one job rank0.json, rank1.json and so on; give recordings of "
            "different jobs one by one."
        )
    return traces


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            magic = stream.read(2)
        if magic != b"\x1f\x8b":
            with path.open("rb") as stream:
                return stream.read(_HEAD_BYTES)
        with gzip.open(path, "rb") as packed:
            return bytes(packed.read(_HEAD_BYTES))
    except (OSError, EOFError, zlib.error):
        return b""


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".json")
