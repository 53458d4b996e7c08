"""Storage: recorded jobs on disk, as job folders and as Chakra execution traces.

A recorded job is a job folder with two more files: a header and the columns of the recording. The
header holds the checksums of the graph and of the columns, so files of different imports cannot
be mixed.

Chakra traces, one file per rank, know operations and what they wait for. Everything that Chakra
has no field for (lanes, lags, rendezvous, nanoseconds) goes into attributes, so nothing is lost;
other readers see whole microseconds and plain dependencies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from pydantic import TypeAdapter

from perfmodel.base.errors import TraceError
from perfmodel.extensions.recordings.recorded_job import (
    ImportReport,
    RecordedJob,
    SelfReplay,
    Unprofiled,
    deps_of,
)
from perfmodel.extensions.recordings.self_replay import with_score
from perfmodel.graph.job import Group, JobFacts, JobGraph, Origin
from perfmodel.graph.op_words import op_from_words, op_to_words
from perfmodel.graph.ops import Fixed, Op
from perfmodel.graph.program import COLUMN_TYPES, PLAIN, Lane, LaneKind, Program
from perfmodel.graph.storage import (
    HEADER,
    RECORDING_HEADER,
    draft_job_of,
    is_recorded_job,
    load_job,
    write_job,
)
from perfmodel.graph.stored_programs import as_column, read_columns, values_of, write_columns
from traces.chakra import SCHEMA_VERSION, ChakraKind, ChakraOperation, ChakraTrace, write_chakra

_FOLDER_VERSION = 2
_COLUMNS_FILE = "recording.parquet"
_COLUMNS = ("recorded_start_ns", "recorded_end_ns", "hold_ratio", "can_be_held", "excess_ns")
_CHAKRA_HEADER = "perfmodel"
_TASK_COLUMNS = ("slot", "sequence", "role")
_REPORT, _SCORE = TypeAdapter(ImportReport), TypeAdapter(SelfReplay | None)
_UNPROFILED = TypeAdapter(Unprofiled | None)
_DEP_COLUMNS = ("dep_task", "dep_anchor", "dep_distance", "dep_lag_ns")


def save_recorded_job(job: RecordedJob, folder: Path, *, is_overwriting: bool = True) -> None:
    """Write *job* to *folder*: graph, recording and, if there is one, its score."""
    with draft_job_of(folder, is_overwriting=is_overwriting) as draft:
        write_job(job.graph, draft, beside=(RECORDING_HEADER, _COLUMNS_FILE))
        columns = {name: getattr(job, name) for name in _COLUMNS}
        write_columns(draft / _COLUMNS_FILE, columns)
        header = {
            "schema_version": _FOLDER_VERSION,
            "files": {name: _checksum(draft / name) for name in (HEADER, _COLUMNS_FILE)},
            "step_ends": [rows.tolist() for rows in job.step_ends],
            "report": asdict(job.report),
            "self_replay": None if job.score is None else asdict(job.score),
            "unprofiled": None if job.unprofiled is None else asdict(job.unprofiled),
        }
        (draft / RECORDING_HEADER).write_bytes(orjson.dumps(header, option=orjson.OPT_INDENT_2))


def load_recorded_job(folder: Path) -> RecordedJob:
    """Read the recorded job in *folder*; an incomplete or changed one is refused."""
    graph = load_job(folder)
    if not is_recorded_job(folder):
        raise TraceError(
            f"{folder}: must be a job made from a recording, but has no {RECORDING_HEADER}. "
            "Make it with `perfmodel import`."
        )
    try:
        header = orjson.loads((folder / RECORDING_HEADER).read_bytes())
        if header["schema_version"] != _FOLDER_VERSION:
            raise TraceError(
                f"{folder}: recording must have schema_version {_FOLDER_VERSION}, has "
                f"{header['schema_version']!r}. Import the traces again."
            )
        for name, expected in header["files"].items():
            if _checksum(folder / name) != expected:
                raise TraceError(
                    f"{folder}: {name} was changed after the import. Import the traces again."
                )
        table = read_columns(folder / _COLUMNS_FILE)
        recorded = RecordedJob(
            graph=graph,
            **{name: values_of(table[name]) for name in _COLUMNS},
            step_ends=tuple(np.array(rows, dtype=np.int64) for rows in header["step_ends"]),
            report=_REPORT.validate_python(header["report"]),
            score=_SCORE.validate_python(header.get("self_replay")),
            unprofiled=_UNPROFILED.validate_python(header.get("unprofiled")),
        )
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        OverflowError,
        OSError,
        pa.ArrowException,
    ) as fault:
        raise TraceError(
            f"{folder}: not a readable recording ({type(fault).__name__}: {fault}). "
            "Import the traces again."
        ) from None
    # Folders of earlier versions have no score.
    return recorded if recorded.score is not None else with_score(recorded)


def load_report(folder: Path) -> ImportReport:
    """The report on the traces that the job in *folder* was made from."""
    header = orjson.loads((folder / RECORDING_HEADER).read_bytes())
    return _REPORT.validate_python(header["report"])


def _checksum(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_chakra_job(job: RecordedJob, folder: Path) -> tuple[Path, ...]:
    """Write *job* to *folder* as Chakra traces, one file per rank."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for rank in range(job.graph.rank_count):
        paths.append(folder / f"rank{rank}.et")
        write_chakra(_trace_of(job, rank), paths[-1])
    return tuple(paths)


def is_own(trace: ChakraTrace) -> bool:
    """Whether perfmodel wrote *trace*."""
    return _CHAKRA_HEADER in trace.attributes


def assemble_chakra_job(traces: Sequence[ChakraTrace], place: Path) -> RecordedJob:
    """The job that `write_chakra_job` wrote to *place* as *traces*, one per rank."""
    headers = [_header_of(trace) for trace in traces]
    ranks, count = [header["rank"] for header in headers], headers[0]["ranks"]
    if sorted(ranks) != list(range(len(traces))) or count != len(traces):
        raise TraceError(
            f"{place}: must hold one file for each of {count} ranks, has those of {sorted(ranks)}."
        )
    order = np.argsort(ranks)
    try:
        return _assemble([traces[number] for number in order], [headers[n] for n in order])
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as fault:
        raise TraceError(
            f"{place}: not a readable Chakra job ({type(fault).__name__}: {fault!s:.200}). "
            "Write it again."
        ) from None


def _trace_of(job: RecordedJob, rank: int) -> ChakraTrace:
    graph, program = job.graph, job.graph.program_of(rank)
    first = int(job.graph.rank_rows()[rank])
    header = {
        "rank": rank,
        "ranks": graph.rank_count,
        "name": graph.facts.name,
        "source": graph.facts.source,
        "assumptions": graph.facts.assumptions,
        "lanes": [[lane.name, lane.kind.value] for lane in program.lanes],
        "lane_start": program.lane_start.tolist(),
        "groups": [{"name": group.name, "ranks": group.ranks} for group in graph.groups],
        "slots": graph.rank_group[rank].tolist(),
        "step_ends": [rows.tolist() for rows in job.step_ends],
        "report": asdict(job.report),
    }
    lanes = program.task_lanes()
    operations = tuple(
        _operation(job, program, task, int(lanes[task]), first + task)
        for task in range(program.task_count)
    )
    attributes: dict[str, Any] = {_CHAKRA_HEADER: orjson.dumps(header).decode()}
    return ChakraTrace(graph.facts.name, SCHEMA_VERSION, operations, attributes)


def _operation(
    job: RecordedJob, program: Program, task: int, lane: int, row: int
) -> ChakraOperation:
    op = job.graph.ops[int(program.op[task])]
    deps = deps_of(program, task)
    is_first = task == int(program.lane_start[lane])
    is_member = int(program.slot[task]) != PLAIN
    duration_ns = op.duration_ns if isinstance(op, Fixed) else 0
    return ChakraOperation(
        number=task,
        name=job.graph.labels[int(program.label[task])],
        kind=ChakraKind.COLLECTIVE if is_member else ChakraKind.COMPUTE,
        control=() if is_first else (task - 1,),
        data=tuple(sorted({int(source) for source in program.dep_task[deps]})),
        start_us=max(int(job.recorded_start_ns[row]), 0) // 1000,
        duration_us=-(-duration_ns // 1000),
        attributes={
            "is_cpu_op": not program.lanes[lane].kind.is_device,
            "op": orjson.dumps(op_to_words(op)).decode(),
            "recorded_ns": (int(job.recorded_start_ns[row]), int(job.recorded_end_ns[row])),
            "hold_ratio": float(job.hold_ratio[row]),
            "can_be_held": bool(job.can_be_held[row]),
            "excess_ns": int(job.excess_ns[row]),
            **{name: int(getattr(program, name)[task]) for name in _TASK_COLUMNS},
            **{name: tuple(getattr(program, name)[deps].tolist()) for name in _DEP_COLUMNS},
        },
    )


def _header_of(trace: ChakraTrace) -> dict[str, Any]:
    text = trace.attributes.get(_CHAKRA_HEADER)
    try:
        header = orjson.loads(text) if isinstance(text, str) else None
    except orjson.JSONDecodeError:
        header = None
    stated = header if isinstance(header, dict) else {}
    numbers = [stated.get(key) for key in ("rank", "ranks")]
    if not all(type(number) is int and 0 <= number < 2**20 for number in numbers):
        raise TraceError(
            f"{trace.document}: must state its rank and the number of ranks, as perfmodel writes "
            "them; states neither. Files of perfmodel and of other programs cannot be mixed."
        )
    return stated


def _assemble(traces: Sequence[ChakraTrace], headers: Sequence[dict[str, Any]]) -> RecordedJob:
    ops: dict[Op, int] = {}
    labels: dict[str, int] = {}
    programs = tuple(
        _program(trace, header, ops, labels) for trace, header in zip(traces, headers, strict=True)
    )
    head = headers[0]
    graph = JobGraph(
        ops=tuple(ops),
        labels=tuple(labels),
        origins=tuple(Origin(label) for label in labels),
        programs=programs,
        rank_program=np.arange(len(traces), dtype=np.int32),
        groups=tuple(Group(group["name"], tuple(group["ranks"])) for group in head["groups"]),
        rank_group=np.stack(
            [as_column("slots", np.array(header["slots"]), np.int32) for header in headers]
        ),
        facts=JobFacts(head["name"], head["source"], tuple(head["assumptions"])),
    )
    operations = [operation for trace in traces for operation in trace.operations]
    times = np.array([operation.attributes["recorded_ns"] for operation in operations])
    return RecordedJob(
        graph=graph,
        recorded_start_ns=times[:, 0].astype(np.int64),
        recorded_end_ns=times[:, 1].astype(np.int64),
        hold_ratio=np.array([operation.attributes["hold_ratio"] for operation in operations]),
        can_be_held=np.array([o.attributes["can_be_held"] for o in operations], dtype=bool),
        excess_ns=np.array([o.attributes["excess_ns"] for o in operations], dtype=np.int64),
        step_ends=tuple(np.array(rows, dtype=np.int64) for rows in head["step_ends"]),
        report=_REPORT.validate_python(head["report"]),
    )


def _program(
    trace: ChakraTrace, header: dict[str, Any], ops: dict[Op, int], labels: dict[str, int]
) -> Program:
    rows = sorted(trace.operations, key=lambda operation: operation.number)
    op_numbers = []
    for row in rows:
        words = orjson.loads(str(row.attributes["op"]))
        op = op_from_words(words, where=f"{trace.document}: operation {row.number}")
        op_numbers.append(ops.setdefault(op, len(ops)))
    counts = [len(_values(row, "dep_task")) for row in rows]
    columns: dict[str, Any] = {
        **{name: [row.attributes[name] for row in rows] for name in _TASK_COLUMNS},
        **{name: [v for row in rows for v in _values(row, name)] for name in _DEP_COLUMNS},
        "lane_start": header["lane_start"],
        "op": op_numbers,
        "label": [labels.setdefault(row.name, len(labels)) for row in rows],
        "dep_start": np.concatenate([[0], np.cumsum(counts)]),
    }
    columns["origin"] = columns["label"]
    return Program(
        lanes=tuple(Lane(name, LaneKind(kind)) for name, kind in header["lanes"]),
        **{
            name: as_column(name, np.array(columns[name]), kind)
            for name, kind in COLUMN_TYPES.items()
        },
    )


def _values(row: ChakraOperation, name: str) -> tuple[Any, ...]:
    values = row.attributes[name]
    if not isinstance(values, tuple):
        raise TypeError(f"operation {row.number}: {name} must be a list")
    return values
