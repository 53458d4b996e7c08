"""Reader of Nsight Systems: the SQLite file that `nsys export --type sqlite` writes.

Its rows become the objects of a Kineto trace, so both formats are read alike (schema_nsys.yaml). A
file holds all processes that were profiled; each one with kernels is a rank, in the order of their
GPUs. A stream that waits names an event, and waits for the last record of it before that call.

Leaves out: what hosts do other than CUDA calls and NVTX ranges.
Source: the schema reference of Nsight Systems' exporter.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

from perfmodel.base.documents import load_yaml
from perfmodel.base.errors import TraceError
from traces.file_stream import DEFAULT_LIMITS, Limits, ObjectStream
from traces.kineto import TraceReader
from traces.trace import Trace

_QUERIES = load_yaml(Path(__file__).with_name("schema_nsys.yaml"))
_MAGIC = b"SQLite format 3\0"
_BATCH = 4096
_VERSION = re.compile(r"_v\d+(_pts[dz])?$")
_COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
_STREAM_WAIT = "Stream Wait Event"
Row = Mapping[str, Any]


def is_nsys(head: bytes) -> bool:
    """Whether a file that begins with *head* is a database."""
    return head.startswith(_MAGIC)


def load_nsys(path: Path | str, limits: Limits = DEFAULT_LIMITS) -> tuple[Trace, ...]:
    """The traces of all processes with kernels in the export at *path*."""
    path = Path(path)
    limits.check_size(path, path.stat().st_size)
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as database:
            database.row_factory = sqlite3.Row
            return _Export(path, database, limits).traces()
    except sqlite3.Error as fault:
        raise TraceError(
            f"{path}: must be an export of Nsight Systems, but {fault}. Export it again with "
            "nsys export --type sqlite --output rank0.sqlite REPORT.nsys-rep"
        ) from None


class _Export:
    """One file, and which tables it has."""

    def __init__(self, path: Path, database: sqlite3.Connection, limits: Limits) -> None:
        self.path, self.database, self.limits = path, database, limits
        rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self.tables = {name for (name,) in rows}

    def traces(self) -> tuple[Trace, ...]:
        """One trace per process; refuses a file in which none used a GPU."""
        found = {
            (row["deviceId"], row["globalPid"])
            for query in _QUERIES["used"]
            for row in self._rows(query)
        }
        processes = list(dict.fromkeys(process for _, process in sorted(found)))
        if not processes:
            raise TraceError(
                f"{self.path}: must hold kernels that Nsight Systems recorded, but holds none. "
                "Record with nsys profile --trace=cuda,nvtx --cuda-event-trace=true."
            )
        devices = [_device(row) for row in self._rows(_QUERIES["devices"])]
        traces = []
        for rank, process in enumerate(processes):
            stream = ObjectStream(self.path, "", limits=self.limits)
            stream.surroundings["deviceProperties"] = devices
            if len(processes) > 1:
                stated = {"rank": rank, "world_size": len(processes)}
                stream.surroundings["distributedInfo"] = stated
            reader, objects = TraceReader(stream), self._objects(process)
            while batch := list(islice(objects, _BATCH)):
                reader.add(batch)
            traces.append(reader.trace())
        return tuple(traces)

    def _objects(self, process: int) -> Iterator[dict[str, Any]]:
        """The rows of *process* as objects of a Kineto trace."""
        for category in ("kernel", "graph", "gpu_memcpy", "gpu_memset"):
            for row in self._rows(_QUERIES[category], process):
                yield _task("kernel" if category == "graph" else category, dict(row))
        for row in self._rows(_QUERIES["cuda_runtime"], process):
            yield _object("cuda_runtime", row, name=_VERSION.sub("", row["name"]))
        for row in self._rows(_QUERIES["user_annotation"], process):
            # Operators, which torch.autograd.profiler.emit_nvtx writes with their numbers.
            name, comma, numbers = row["name"].partition(", ")
            is_operator = comma and numbers.startswith(("op_id = ", "seq = "))
            category = "cpu_op" if is_operator else "user_annotation"
            yield _object(category, row, name=name if is_operator else row["name"])
        recorded: dict[int, Row] = {}
        calls = [(query, row) for query in ("records", "waits")
                 for row in self._rows(_QUERIES[query], process)]  # fmt: skip
        for query, row in sorted(calls, key=lambda one: int(one[1]["correlation"])):
            if query == "records":
                recorded[row["eventId"]] = row
            elif row["eventId"] in recorded:
                source = recorded[row["eventId"]]
                yield _object(
                    "cuda_sync", row, name=_STREAM_WAIT, tid=row["stream"],
                    cuda_sync_kind=_STREAM_WAIT, wait_on_stream=source["stream"],
                    wait_on_cuda_event_record_corr_id=source["correlation"],
                )  # fmt: skip

    def _rows(self, query: str, process: int = 0) -> Iterator[Row]:
        """The rows of *query*; none if its table is absent."""
        if query.partition("FROM ")[2].split()[0] in self.tables:
            yield from self.database.execute(query, {"process": process})


def _task(category: str, row: dict[str, Any]) -> dict[str, Any]:
    """A kernel, captured graph, copy or set of a device."""
    if category == "gpu_memcpy":
        row["name"] = f"Memcpy {_COPIES.get(row.pop('kind'), 'of arrays')}"
    if "gridX" in row:
        row["grid"], row["block"] = (
            [row.pop(f"{word}{axis}") for axis in "XYZ"] for word in ("grid", "block")
        )
        row["registers per thread"] = row.pop("registersPerThread")
        row["shared memory"] = row.pop("shared")
    return _object(category, row, tid=row["stream"])


def _object(category: str, row: Row, **more: Any) -> dict[str, Any]:
    """An interval as Kineto writes it: stamps in microseconds."""
    found = {**dict(row), **more}
    of_span = {key: found.pop(key) for key in ("name", "tid")}
    stamps = {key: found.pop(key) / 1000 for key in ("ts", "dur")}
    return {"ph": "X", "cat": category, **of_span, **stamps, "args": found}


def _device(row: Row) -> dict[str, Any]:
    """A GPU in the words of Kineto."""
    found = dict(row)
    fields = _QUERIES["device_fields"].items()
    known = {word: found[column] for word, column in fields if found.get(column)}
    if found.get("maxWarpsPerSm"):
        known["maxThreadsPerMultiprocessor"] = found["maxWarpsPerSm"] * found["threadsPerWarp"]
    return {"id": found["id"], "name": found["name"], **known}
