"""Storage: a job as a folder of Parquet columns and one small JSON header.

The header is written last and lists every file with its size and checksum. A folder gets its name
only when it is complete. A folder that was truncated or changed afterwards is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import TypeAdapter

import perfmodel
from perfmodel.base.errors import GraphError
from perfmodel.base.identity import program_identity
from perfmodel.base.reading import read_bytes
from perfmodel.base.writing import draft_folder_of, recover_folder
from perfmodel.graph.audit import check_job, check_outline
from perfmodel.graph.job import Group, JobFacts, JobGraph, Origin
from perfmodel.graph.op_words import op_from_words, op_to_words
from perfmodel.graph.program import COLUMN_TYPES, Program
from perfmodel.graph.stored_programs import (
    BY_DEPENDENCY,
    BY_TASK,
    DEP_COUNT,
    DEPENDENCIES_FILE,
    TASKS_FILE,
    StoredPrograms,
    as_column,
    loaded,
    read_columns,
    read_outlines,
    values_of,
    write_columns,
)

SCHEMA_VERSION = 1
_MOST_HEADER_BYTES = 2**30
HEADER = "job.json"
RECORDING_HEADER = "recording.json"
"""The file that makes a job folder one of a recording."""
MOST_NAMED = 5
"""Files of others that a refusal names."""
MOST_NAME = 200
_ORIGINS_FILE = "origins.parquet"


def is_recorded_job(folder: Path) -> bool:
    """Whether *folder* holds a job made from a recording."""
    return (folder / RECORDING_HEADER).is_file()


def save_job(job: JobGraph, folder: str | Path, *, is_overwriting: bool = True) -> None:
    """Write *job* to *folder*, completely or not at all; see `draft_job_of`."""
    with draft_job_of(Path(folder), is_overwriting=is_overwriting) as draft:
        write_job(job, draft)


@contextmanager
def draft_job_of(folder: Path, *, is_overwriting: bool = True) -> Iterator[Path]:
    """A draft that becomes *folder*, which must not exist or must hold a job and nothing else.

    An existing job is replaced only if *is_overwriting*.
    """
    check_job_place(folder, is_overwriting=is_overwriting)
    with draft_folder_of(folder) as draft:
        yield draft
        # Other files may have come while the job was made.
        check_job_place(folder, is_overwriting=is_overwriting)


def check_job_place(folder: Path, *, is_overwriting: bool) -> None:
    """Raise unless a job may be written to *folder*."""
    recover_folder(folder)
    if folder.exists() and not (folder / HEADER).is_file():
        raise GraphError(
            f"{folder}: exists and is not a job, so it is not overwritten. Name another folder."
        )
    if folder.exists() and not is_overwriting:
        raise GraphError(
            f"{folder}: already holds a job. Choose another folder, or replace it with --overwrite."
        )
    if foreign := _list_foreign(folder):
        names = ", ".join(foreign[:MOST_NAMED]) + (" ..." if len(foreign) > MOST_NAMED else "")
        raise GraphError(
            f"{folder}: holds {len(foreign)} files that are not of the job ({names}), so it is not "
            "overwritten. Move them away, or name another folder."
        )


def _list_foreign(folder: Path) -> list[str]:
    """Names in *folder* that the header of its job does not list."""
    if not folder.exists():
        return []
    try:
        header = orjson.loads(read_bytes(folder / HEADER, GraphError, _MOST_HEADER_BYTES))
        ours = {HEADER, *map(str, header["files"]), *map(str, header.get("beside", ()))}
    except (ValueError, KeyError, TypeError, AttributeError):
        ours = {HEADER}
    return sorted(path.name for path in folder.iterdir() if path.name not in ours)


def write_job(job: JobGraph, draft: Path, *, beside: Sequence[str] = ()) -> None:
    """Write the files of *job* to the empty folder *draft*.

    *beside* are files that the caller adds; the folder is refused without them.
    """
    _write_columns(job, draft)
    files = {path.name: _fingerprint(path) for path in sorted(draft.iterdir())}
    header = _header(job) | {"files": files, "beside": list(beside)}
    header["sha256"] = _digest(header)
    header["made"] = {"version": perfmodel.__version__, "program": program_identity()}
    (draft / HEADER).write_bytes(orjson.dumps(header, option=orjson.OPT_INDENT_2))


def load_job(folder: str | Path) -> JobGraph:
    """Read the job in *folder*; an incomplete or invalid job is refused."""
    folder = Path(folder)
    job = _open(folder, is_loaded=True)
    check_job(job)
    return job


def open_job(folder: Path) -> JobGraph:
    """The job in *folder*, its programs read on access.

    Checks that every file is complete. The reader of a program must check that it is valid.
    """
    job = _open(folder, is_loaded=False)
    check_outline(job)
    return job


def checksum_of(folder: Path) -> str:
    """The checksum of the job in *folder*, after checking every file."""
    return _digest(_read_whole_header(folder))


def _read_whole_header(folder: Path) -> dict[str, Any]:
    """The header of the job in *folder*, after checking all its files."""
    header = _read_header(folder)
    for name, expected in header["files"].items():
        path = folder / name
        if not path.is_file() or _fingerprint(path) != expected:
            raise GraphError(
                f"{folder}: {name} is missing or was changed after the job was written. "
                "Write the job again."
            )
    for name in header.get("beside", ()):
        if not (folder / str(name)).is_file():
            raise GraphError(
                f"{folder}: {name} is missing, so the job is incomplete. Write the job again."
            )
    return header


def _open(folder: Path, *, is_loaded: bool) -> JobGraph:
    header = _read_whole_header(folder)
    try:
        programs: Sequence[Program] = StoredPrograms(folder, read_outlines(header["programs"]))
        if is_loaded:
            programs = tuple(loaded(one, tuple(COLUMN_TYPES)) for one in programs)
        return _assemble(folder, header, programs)
    except (LookupError, TypeError, ValueError, AttributeError, pa.ArrowException) as fault:
        raise GraphError(
            f"{folder}: not a readable job ({type(fault).__name__}: {fault})."
        ) from None


def _read_header(folder: Path) -> dict[str, Any]:
    path = folder / HEADER
    if not path.is_file():
        raise GraphError(
            f"{folder}: must be a folder with a {HEADER}, as `perfmodel import` writes it."
        )
    try:
        header = orjson.loads(read_bytes(path, GraphError, _MOST_HEADER_BYTES))
        version, files = header["schema_version"], header["files"]
        stated = header.pop("sha256", None)
        found = _digest(header)
    except (ValueError, KeyError, TypeError):
        raise GraphError(f"{path}: not the header of a job.") from None
    beside = header.get("beside", [])
    if isinstance(files, dict) and isinstance(beside, list):
        for name in (*files, *beside):
            if Path(str(name)).name != name or len(name) > MOST_NAME:
                raise GraphError(f"{path}: {name!r:.60} must be the name of a file in the folder.")
    elif version == SCHEMA_VERSION:
        raise GraphError(f"{path}: must list the files of the job.")
    if version != SCHEMA_VERSION:
        raise GraphError(
            f"{path}: must have schema_version {SCHEMA_VERSION}, has {version!r}. "
            "Write the job again with this version of perfmodel."
        )
    if stated != found:
        raise GraphError(f"{path}: was changed after the job was written. Write the job again.")
    return dict(header)


def _header(job: JobGraph) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        **asdict(job.facts),
        "programs": [
            {
                "lanes": [[lane.name, lane.kind.value] for lane in program.lanes],
                "lane_start": program.lane_start.tolist(),
            }
            for program in job.programs
        ],
        "groups": [{"name": group.name, "ranks": list(group.ranks)} for group in job.groups],
        "slot_count": int(job.rank_group.shape[1]),
    }


def _write_columns(job: JobGraph, draft: Path) -> None:
    def stacked(*names: str) -> dict[str, NDArray[Any]]:
        return {name: np.concatenate([getattr(p, name) for p in job.programs]) for name in names}

    # The bytes that orjson returns occupy a kilobyte each; texts are as small as they are.
    ops = [orjson.dumps(op_to_words(op)).decode() for op in job.ops]
    write_columns(draft / "ops.parquet", {"op": ops})
    write_columns(draft / "labels.parquet", {"label": job.labels})
    names = [one.name for one in fields(Origin)]
    origins = {name: [getattr(origin, name) for origin in job.origins] for name in names}
    write_columns(draft / _ORIGINS_FILE, origins)
    ranks = {"program": job.rank_program, "groups": job.rank_group}
    write_columns(draft / "ranks.parquet", ranks)
    write_columns(
        draft / TASKS_FILE,
        {
            **stacked(*BY_TASK),
            DEP_COUNT: np.concatenate([np.diff(p.dep_start) for p in job.programs]),
        },
    )
    write_columns(draft / DEPENDENCIES_FILE, stacked(*BY_DEPENDENCY))


def _assemble(folder: Path, header: dict[str, Any], programs: Sequence[Program]) -> JobGraph:
    ops = read_columns(folder / "ops.parquet")["op"].to_pylist()
    labels = tuple(_words(read_columns(folder / "labels.parquet"), "label"))
    ranks = read_columns(folder / "ranks.parquet")
    rows = ranks["groups"].to_pylist()
    groups = np.array([group for row in rows for group in row])
    if {len(row) for row in rows} - {header["slot_count"]}:
        raise ValueError(f"column groups must have {header['slot_count']} slots per rank")
    table = read_columns(folder / _ORIGINS_FILE)
    columns = {name: _words(table, name) for name in table.column_names}
    origins = tuple(
        Origin(**dict(zip(columns, words, strict=True)))
        for words in zip(*columns.values(), strict=True)
    )
    facts = {one.name: header[one.name] for one in fields(JobFacts) if one.name in header}
    return JobGraph(
        ops=tuple(
            op_from_words(orjson.loads(words), where=f"{folder}: op {index}")
            for index, words in enumerate(ops)
        ),
        labels=labels,
        origins=origins,
        programs=programs,
        rank_program=as_column("program", values_of(ranks["program"]), np.int32),
        groups=tuple(_read_group(words) for words in header["groups"]),
        rank_group=as_column("groups", groups, np.int32).reshape(len(ranks), header["slot_count"]),
        facts=TypeAdapter(JobFacts).validate_python(facts),
    )


def _words(table: Any, name: str) -> list[str]:
    words: list[str] = table[name].to_pylist()
    if not all(isinstance(word, str) for word in words):
        raise TypeError(f"column {name} must hold text")
    return words


def _read_group(words: dict[str, Any]) -> Group:
    if not all(type(rank) is int for rank in words["ranks"]):
        raise TypeError(f"ranks of group {words['name']!r} must be whole numbers")
    return Group(str(words["name"]), tuple(words["ranks"]))


def _digest(header: dict[str, Any]) -> str:
    """The checksum of *header* without the program that made it: equal jobs have equal ones."""
    content = {key: value for key, value in header.items() if key != "made"}
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}
