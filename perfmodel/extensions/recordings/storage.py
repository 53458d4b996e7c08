"""Storage: recorded jobs on disk, as job folders.

A recorded job is a job folder with two more files: a header and the columns of the recording. The
header holds the checksums of the graph and of the columns, so files of different imports cannot
be mixed.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path

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
)
from perfmodel.extensions.recordings.self_replay import with_score
from perfmodel.graph.storage import (
    HEADER,
    RECORDING_HEADER,
    draft_job_of,
    is_recorded_job,
    load_job,
    write_job,
)
from perfmodel.graph.stored_programs import read_columns, values_of, write_columns

_FOLDER_VERSION = 4
_COLUMNS_FILE = "recording.parquet"
_COLUMNS = ("recorded_start_ns", "recorded_end_ns", "can_be_held", "excess_ns")
_REPORT, _SCORE = TypeAdapter(ImportReport), TypeAdapter(SelfReplay | None)
_UNPROFILED = TypeAdapter(Unprofiled | None)


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
            "self_replay": job.score and asdict(job.score),
            "unprofiled": job.unprofiled and asdict(job.unprofiled),
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
    return recorded if recorded.score else with_score(recorded)


def load_report(folder: Path) -> ImportReport:
    """The report on the traces that the job in *folder* was made from."""
    header = orjson.loads((folder / RECORDING_HEADER).read_bytes())
    return _REPORT.validate_python(header["report"])


def _checksum(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
