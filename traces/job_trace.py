"""Job traces: the recordings of all ranks of one job.

A job is a folder with one trace a rank. A folder of such folders is several
recordings, each a job of its own. Execution traces beside Kineto traces belong
to them, in the same folder or in one next to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from perfmodel.base.documents import FaultList
from perfmodel.base.errors import TraceError
from traces.chakra import is_chakra
from traces.execution_trace import ExecutionTrace, load_execution_trace
from traces.kineto import load_kineto
from traces.packed import DEFAULT_LIMITS, Limits, read_head
from traces.trace import Trace

_HEAD_BYTES = 1 << 20
_NAMED_RANKS = 8


class TraceFormat(Enum):
    """What a file holds, by its content."""

    KINETO = "kineto"
    EXECUTION_TRACE = "pytorch execution trace"
    CHAKRA = "chakra"
    OTHER = "other"


OnFile = Callable[[Path, int, int], None]
"""Told before each file is read: the file, its place from 0, and how many there are."""


def ignore_file(path: Path, place: int, count: int) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class Recording:
    """The files of one job, by what they hold."""

    name: str
    kineto: tuple[Path, ...] = ()
    executed: tuple[Path, ...] = ()
    chakra: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class JobTrace:
    """What every recorded rank did, by rank; `missing_ranks` were not recorded.

    *executed* are execution traces of the same job by rank.
    """

    name: str
    ranks: tuple[Trace, ...]
    world_size: int
    executed: tuple[ExecutionTrace, ...] = ()

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
    def missing_count(self) -> int:
        """How many ranks of the job no trace is of."""
        return self.world_size - len(self.ranks)

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """The first few ranks of the job that no trace is of."""
        recorded = {trace.rank for trace in self.ranks}
        # Among so many ranks there are enough that were not recorded.
        first = range(min(self.world_size, len(recorded) + _NAMED_RANKS + 1))
        return tuple(rank for rank in first if rank not in recorded)[: _NAMED_RANKS + 1]


def load_job_trace(
    paths: Sequence[Path | str] | Path | str, limits: Limits = DEFAULT_LIMITS
) -> JobTrace:
    """Read the one job at *paths*: a file, some files, or a folder with one file a rank."""
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
    lacking = [recording.name for recording in recordings if not recording.kineto]
    if lacking:
        raise TraceError(
            f"{', '.join(lacking)}: must hold Kineto traces, one file a rank; holds execution "
            "traces only. Make a job of them with `perfmodel import`."
        )
    return tuple(load_recording(recording, limits, on_file) for recording in recordings)


def find_recordings(paths: Sequence[Path | str] | Path | str) -> tuple[Recording, ...]:
    """The jobs whose files lie at *paths*; files given together are one job."""
    given = [Path(paths)] if isinstance(paths, Path | str) else [Path(path) for path in paths]
    if not given:
        raise TraceError("traces: must name at least one file or folder, got none.")
    for path in given:
        if not path.exists():
            raise TraceError(f"{path}: must be a trace or a folder of traces, but is not there.")
    files = [path for path in given if path.is_file()]
    found = []
    if files:
        name = files[0].parent.name if len(files) > 1 else _stem(files[0])
        found.append(_recording_of(name, files, is_asked_for=True))
    for folder in given:
        if folder.is_dir():
            found.extend(_recordings_in(folder))
    return tuple(_beside(found, found[0].name))


def detect_format(path: Path) -> TraceFormat:
    """What *path* holds, from its first bytes."""
    head = read_head(path, _HEAD_BYTES)
    text = head.lstrip()
    if text[:1] in (b"{", b"["):
        if b'"traceEvents"' in head or text[:1] == b"[":
            return TraceFormat.KINETO
        if b'"nodes"' in head and b'schema"' in head:
            return TraceFormat.EXECUTION_TRACE
    if head and is_chakra(head):
        return TraceFormat.CHAKRA
    return TraceFormat.OTHER


def _recordings_in(folder: Path) -> list[Recording]:
    own = _recording_of(folder.name, _files_in(folder))
    if own.kineto or own.executed or own.chakra:
        return [own]
    inner = [
        _recording_of(path.name, _files_in(path))
        for path in sorted(folder.iterdir())
        if path.is_dir()
    ]
    inner = [found for found in inner if found.kineto or found.executed or found.chakra]
    if not inner:
        raise TraceError(
            f"{folder}: must hold Kineto traces, execution traces or Chakra traces, one file a "
            "rank, or folders of such; holds none."
        )
    joined = _beside(inner, folder.name)
    jobs = [found for found in joined if found.kineto] or joined
    return [replace(jobs[0], name=folder.name)] if len(jobs) == 1 else jobs


def _beside(found: list[Recording], name: str) -> list[Recording]:
    """One recording beside its execution traces is one job, called *name*."""
    recorded = [one for one in found if one.kineto]
    beside = [one.executed for one in found if one.executed]
    if len(recorded) != 1 or len(beside) != 1 or len(found) != 2:
        return found
    return [replace(recorded[0], name=name, executed=beside[0])]


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


def _recording_of(name: str, files: Sequence[Path], *, is_asked_for: bool = False) -> Recording:
    by_format: dict[TraceFormat, list[Path]] = {kind: [] for kind in TraceFormat}
    for path in files:
        by_format[detect_format(path)].append(path)
    other = by_format[TraceFormat.OTHER]
    # A file that was named must be read; if it is no trace, the Kineto reader says why.
    kineto = by_format[TraceFormat.KINETO] + (other if is_asked_for else [])
    return Recording(
        name,
        tuple(sorted(kineto)),
        tuple(by_format[TraceFormat.EXECUTION_TRACE]),
        tuple(by_format[TraceFormat.CHAKRA]),
    )


def load_recording(
    recording: Recording, limits: Limits = DEFAULT_LIMITS, on_file: OnFile = ignore_file
) -> JobTrace:
    """Read the Kineto traces of *recording*, and the execution traces beside them."""
    traces, faults = [], FaultList(f"job {recording.name!r}")
    count = len(recording.kineto) + len(recording.executed)
    for place, path in enumerate(recording.kineto):
        on_file(path, place, count)
        try:
            traces.append(load_kineto(path, limits))
        except TraceError as fault:
            faults.add(path.name, str(fault))
    faults.check(TraceError)
    traces = _with_ranks(traces)
    executed = []
    for place, path in enumerate(recording.executed, start=len(recording.kineto)):
        on_file(path, place, count)
        executed.append(load_execution_trace(path, limits))
    if len(traces) == len(executed) == 1:
        executed = [replace(executed[0], rank=traces[0].rank)]
    return JobTrace(
        name=recording.name,
        ranks=tuple(sorted(traces, key=lambda trace: trace.rank)),
        world_size=max(max(trace.world_size, trace.rank + 1) for trace in traces),
        executed=tuple(executed),
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


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".json").removesuffix(".et")
