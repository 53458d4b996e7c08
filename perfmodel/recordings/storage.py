"""Storage: a recorded job is a job folder with two more files in it.

The columns of the recording lie beside those of the graph; their header names
the checksum of both, so that files of different imports cannot be mixed.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from perfmodel.base.errors import TraceError
from perfmodel.graph.storage import HEADER, draft_job_of, load_job, write_job
from perfmodel.recordings.recorded_job import (
    ImportReport,
    RecordedJob,
    report_from_words,
    score_from_words,
)
from perfmodel.recordings.self_replay import with_score

SCHEMA_VERSION = 1
RECORDING_HEADER = "recording.json"
_COLUMNS_FILE = "recording.parquet"
_COLUMNS = ("recorded_start_ns", "recorded_end_ns", "hold_ratio", "can_be_held")


def is_recorded_job(folder: Path) -> bool:
    """Whether *folder* holds a job that was made from a recording."""
    return (folder / RECORDING_HEADER).is_file()


def save_recorded_job(job: RecordedJob, folder: Path, *, is_overwriting: bool = True) -> None:
    """Write *job* to *folder*, graph and recording together, with its score where it has one."""
    with draft_job_of(folder, is_overwriting=is_overwriting) as draft:
        write_job(job.graph, draft, beside=(RECORDING_HEADER, _COLUMNS_FILE))
        columns = {name: getattr(job, name) for name in _COLUMNS}
        pq.write_table(pa.table(columns), draft / _COLUMNS_FILE, compression="zstd")
        header = {
            "schema_version": SCHEMA_VERSION,
            "files": {name: _checksum(draft / name) for name in (HEADER, _COLUMNS_FILE)},
            "step_ends": [rows.tolist() for rows in job.step_ends],
            "report": asdict(job.report),
            "self_replay": None if job.score is None else asdict(job.score),
        }
        (draft / RECORDING_HEADER).write_bytes(orjson.dumps(header, option=orjson.OPT_INDENT_2))


def load_recorded_job(folder: Path) -> RecordedJob:
    """Read the recorded job in *folder*; anything but a whole one is refused."""
    graph = load_job(folder)
    if not is_recorded_job(folder):
        raise TraceError(
            f"{folder}: must be a job made from a recording, but has no {RECORDING_HEADER}. "
            "Make it with `perfmodel import`."
        )
    try:
        header = orjson.loads((folder / RECORDING_HEADER).read_bytes())
        _check_header(folder, header)
        table = pq.read_table(folder / _COLUMNS_FILE)
        score = header.get("self_replay")
        recorded = RecordedJob(
            graph=graph,
            **{name: table[name].to_numpy() for name in _COLUMNS},
            step_ends=tuple(np.array(rows, dtype=np.int64) for rows in header["step_ends"]),
            report=report_from_words(header["report"]),
            score=None if score is None else score_from_words(score),
        )
    except (ValueError, KeyError, TypeError, OSError, pa.ArrowException) as fault:
        raise TraceError(
            f"{folder}: not a readable recording ({type(fault).__name__}: {fault}). "
            "Import the traces again."
        ) from None
    # Folders of earlier versions have no score.
    return recorded if recorded.score is not None else with_score(recorded)


def load_report(folder: Path) -> ImportReport:
    """What was found in the traces that the job in *folder* was made from."""
    return report_from_words(orjson.loads((folder / RECORDING_HEADER).read_bytes())["report"])


def _check_header(folder: Path, header: dict[str, Any]) -> None:
    if header["schema_version"] != SCHEMA_VERSION:
        raise TraceError(
            f"{folder}: recording must have schema_version {SCHEMA_VERSION}, has "
            f"{header['schema_version']!r}. Import the traces again."
        )
    for name, expected in header["files"].items():
        if _checksum(folder / name) != expected:
            raise TraceError(
                f"{folder}: {name} was changed after the import. Import the traces again."
            )


def _checksum(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
