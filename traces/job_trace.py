"""Job traces: the recordings of all ranks of one job.

A job is a folder with one trace per rank. A folder of such folders holds several recordings, each
a job of its own. Execution traces in the folder of Kineto traces, or in one next to it, belong to
the same job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TypeVar

from perfmodel.base.errors import TraceError
from perfmodel.base.faults import FaultList
from traces.chakra import is_chakra
from traces.execution_trace import ExecutionTrace, load_execution_trace
from traces.file_stream import DEFAULT_LIMITS, Limits, read_head
from traces.kineto import load_kineto
from traces.nsys import is_nsys, load_nsys
from traces.trace import Trace

_HEAD_BYTES = 1 << 20
_NAMED_RANKS = 8
_LOOKED_AT = 1_000


class TraceFormat(Enum):
    """The format of a file, by its content."""

    KINETO = "kineto"
    NSYS = "nsight systems"
    EXECUTION_TRACE = "pytorch execution trace"
    CHAKRA = "chakra"
    OTHER = "other"


OnFile = Callable[[Path, int, int], None]
"""Called before each file is read: the file, its place from 0, and how many there are."""


def ignore_file(path: Path, place: int, count: int) -> None:
    """Report no progress."""


@dataclass(frozen=True, slots=True)
class RecordedFiles:
    """The files of one job; *timed* are of the formats in `TIMED`."""

    name: str
    timed: tuple[Path, ...] = ()
    executed: tuple[Path, ...] = ()
    chakra: tuple[Path, ...] = ()

    @property
    def has_files(self) -> bool:
        """Whether any trace was found."""
        return bool(self.timed or self.executed or self.chakra)


@dataclass(frozen=True, slots=True)
class JobTrace:
    """The traces of all recorded ranks of a job; `missing_ranks` were not recorded.

    *executed* are execution traces of the same job.
    """

    name: str
    ranks: tuple[Trace, ...]
    world_size: int
    executed: tuple[ExecutionTrace, ...] = ()

    @property
    def missing_count(self) -> int:
        """How many ranks of the job have no trace."""
        return self.world_size - len(self.ranks)

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """The first few ranks of the job without a trace."""
        recorded = {trace.rank for trace in self.ranks}
        # This many ranks contain enough that were not recorded.
        first = range(min(self.world_size, len(recorded) + _NAMED_RANKS + 1))
        return tuple(rank for rank in first if rank not in recorded)[: _NAMED_RANKS + 1]


AnyTrace = TypeVar("AnyTrace", Trace, ExecutionTrace)


def by_rank(name: str, traces: Sequence[AnyTrace]) -> tuple[AnyTrace, ...]:
    """*traces* of the job *name* in the order of their ranks, which must be known and differ."""
    # A lone trace without a rank is rank 0; several without one cannot be distinguished.
    unknown = [trace.document for trace in traces if not trace.is_rank_stated]
    if unknown and len(traces) > 1:
        raise TraceError(
            f"{', '.join(unknown)}: no rank in distributedInfo nor in the file name. "
            "Name the files of one job rank0.json, rank1.json and so on; give recordings of "
            "different jobs one by one."
        )
    faults = FaultList(f"job {name!r}")
    owner: dict[int, str] = {}
    for trace in traces:
        if trace.rank in owner:
            faults.add(
                trace.document,
                f"is of rank {trace.rank}, but so is {owner[trace.rank]}. Files of one job "
                "have one rank each; give recordings of different jobs one by one.",
            )
        owner.setdefault(trace.rank, trace.document)
    faults.check(TraceError)
    return tuple(sorted(traces, key=lambda trace: trace.rank))


def load_job_trace(
    paths: Sequence[Path | str] | Path | str, limits: Limits = DEFAULT_LIMITS
) -> JobTrace:
    """Read the one job at *paths*: a file, some files, or a folder with one file per rank."""
    jobs = load_job_traces(paths, limits)
    if len(jobs) > 1:
        names = ", ".join(job.name for job in jobs)
        raise TraceError(
            f"{paths}: must hold one job, holds {len(jobs)} recordings ({names}). Give one of them."
        )
    return jobs[0]


def load_job_traces(
    paths: Sequence[Path | str] | Path | str,
    limits: Limits = DEFAULT_LIMITS,
    on_file: OnFile = ignore_file,
) -> tuple[JobTrace, ...]:
    """Read every job at *paths*; files given together are one job."""
    recordings = find_recordings(paths)
    lacking = [recording.name for recording in recordings if not recording.timed]
    if lacking:
        raise TraceError(
            f"{', '.join(lacking)}: must hold Kineto traces, one file per rank; holds execution "
            "traces only. Turn them into a job with `perfmodel import`."
        )
    return tuple(load_recording(recording, limits, on_file) for recording in recordings)


def find_recordings(paths: Sequence[Path | str] | Path | str) -> tuple[RecordedFiles, ...]:
    """The jobs whose files are at *paths*; files given together are one job."""
    given = [Path(paths)] if isinstance(paths, Path | str) else [Path(path) for path in paths]
    if not given:
        raise TraceError("traces: must name at least one file or folder, got none.")
    for path in given:
        if not path.exists():
            raise TraceError(f"{path}: must be a trace or a folder of traces, but does not exist.")
    files = [path for path in given if path.is_file()]
    found = []
    if files:
        stem = files[0].name.removesuffix(".gz").removesuffix(".json").removesuffix(".et")
        name = files[0].parent.name if len(files) > 1 else stem
        found.append(_recording_of(name, files, is_asked_for=True))
    for folder in given:
        if folder.is_dir():
            found.extend(_recordings_in(folder))
    return tuple(_joined(found, found[0].name))


def detect_format(path: Path) -> TraceFormat:
    """The format of *path*, from its first bytes."""
    head = read_head(path, _HEAD_BYTES)
    return next((kind for kind, is_of in FORMATS.items() if is_of(head)), TraceFormat.OTHER)


def _is_kineto(head: bytes) -> bool:
    first = head.lstrip()[:1]
    return first == b"[" or (first == b"{" and b'"traceEvents"' in head)


def _is_executed(head: bytes) -> bool:
    return head.lstrip()[:1] == b"{" and b'"nodes"' in head and b'schema"' in head


FORMATS: Mapping[TraceFormat, Callable[[bytes], bool]] = {
    TraceFormat.KINETO: _is_kineto,
    TraceFormat.NSYS: is_nsys,
    TraceFormat.EXECUTION_TRACE: _is_executed,
    TraceFormat.CHAKRA: is_chakra,
}
"""Whether a file that begins with some bytes is of a format; the first that holds is taken."""
TIMED: Mapping[TraceFormat, Callable[[Path, Limits], Sequence[Trace]]] = {
    TraceFormat.KINETO: lambda path, limits: (load_kineto(path, limits),),
    TraceFormat.NSYS: load_nsys,
}
"""Readers of the formats that say when everything ran; a file holds one rank or several."""
_AGAIN = "record with torch.profiler, or with nsys profile --trace=cuda,nvtx"
_NSYS = ("a report of Nsight Systems", "nsys export --type sqlite --output rank0.sqlite FILE")
_PERFETTO = ("a binary trace of Perfetto", "traceconv json FILE rank0.json, if PyTorch wrote it")
_ASCEND = ("a profile of Ascend NPUs", "torch.profiler.ExecutionTraceObserver: a job of shapes")
REFUSED: Mapping[str, tuple[str, str]] = {
    "*.nsys-rep": _NSYS,
    "*.qdrep": _NSYS,
    "*.ncu-rep": ("a report of Nsight Compute, without a timeline", _AGAIN),
    "*.xplane.pb": ("a profile of XLA, which does not say what launched what", _AGAIN),
    "*.rpd": ("a database of ROCm's profiler", _AGAIN),
    "*.pftrace": _PERFETTO,
    "*.perfetto-trace": _PERFETTO,
    "*_ascend_pt": _ASCEND,
    "trace_view.json": _ASCEND,
    "*.pickle": ("a snapshot of memory, without times", _AGAIN),
}
"""Files and folders of other programs, by name: what they are, and what can be read instead."""


def _refuse(paths: Sequence[Path]) -> None:
    """Raise if one of *paths* is a file of another program."""
    for path in paths:
        for name, (what, instead) in REFUSED.items():
            if any(part.match(name) for part in (path, *path.parents)):
                raise TraceError(
                    f"{path}: must be a trace of torch.profiler, an SQLite export of Nsight "
                    f"Systems, an execution trace or a Chakra trace, but is {what}. "
                    f"Instead: {instead.replace('FILE', path.name)}."
                )


def _recordings_in(folder: Path) -> list[RecordedFiles]:
    own = _recording_of(folder.name, [path for path in folder.iterdir() if path.is_file()])
    if own.has_files:
        return [own]
    folders = sorted(path for path in folder.iterdir() if path.is_dir())
    inner = [
        _recording_of(path.name, [file for file in path.iterdir() if file.is_file()])
        for path in folders
    ]
    inner = [found for found in inner if found.has_files]
    if not inner:
        _refuse([path for path in sorted(folder.rglob("*"))[:_LOOKED_AT] if path.is_file()])
        raise TraceError(
            f"{folder}: must hold Kineto traces, exports of Nsight Systems, execution traces or "
            "Chakra traces, one file per rank, or folders of such; holds none."
        )
    joined = _joined(inner, folder.name)
    jobs = [found for found in joined if found.timed] or joined
    return [replace(jobs[0], name=folder.name)] if len(jobs) == 1 else jobs


def _joined(found: list[RecordedFiles], name: str) -> list[RecordedFiles]:
    """*found*; one recording with its execution traces next to it is one job, called *name*."""
    recorded = [one for one in found if one.timed]
    executed = [one.executed for one in found if one.executed]
    if len(recorded) != 1 or len(executed) != 1 or len(found) != 2:
        return found
    return [replace(recorded[0], name=name, executed=executed[0])]


def _recording_of(name: str, files: Sequence[Path], *, is_asked_for: bool = False) -> RecordedFiles:
    by_format: dict[TraceFormat, list[Path]] = {kind: [] for kind in TraceFormat}
    if is_asked_for:
        _refuse(files)
    for path in files if is_asked_for else sorted(files):
        by_format[detect_format(path)].append(path)
    # A file that was named must be read; if it is not a trace, the Kineto reader says why.
    other = by_format[TraceFormat.OTHER] if is_asked_for else []
    return RecordedFiles(
        name,
        tuple(sorted([*(path for kind in TIMED for path in by_format[kind]), *other])),
        tuple(by_format[TraceFormat.EXECUTION_TRACE]),
        tuple(by_format[TraceFormat.CHAKRA]),
    )


def load_recording(
    recording: RecordedFiles, limits: Limits = DEFAULT_LIMITS, on_file: OnFile = ignore_file
) -> JobTrace:
    """Read the timed traces of *recording*, and its execution traces."""
    traces, faults = list[Trace](), FaultList(f"job {recording.name!r}")
    count = len(recording.timed) + len(recording.executed)
    for place, path in enumerate(recording.timed):
        on_file(path, place, count)
        try:
            kind = detect_format(path)
            traces += TIMED[kind if kind in TIMED else TraceFormat.KINETO](path, limits)
        except TraceError as fault:
            faults.add(path.name, str(fault))
    faults.check(TraceError)
    ranks = by_rank(recording.name, traces)
    executed = []
    for place, path in enumerate(recording.executed, start=len(recording.timed)):
        on_file(path, place, count)
        executed.append(load_execution_trace(path, limits))
    if len(ranks) == len(executed) == 1:
        executed = [replace(executed[0], rank=ranks[0].rank)]
    return JobTrace(
        name=recording.name,
        ranks=ranks,
        world_size=max(max(trace.world_size, trace.rank + 1) for trace in ranks),
        executed=tuple(executed),
    )
