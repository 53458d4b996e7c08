"""Small traces, written as a profiler would."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any


def span(category: str, name: str, start: float, duration: float, **more: Any) -> dict[str, Any]:
    """One interval object; *more* goes into `args`, except `tid`."""
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": more.pop("tid", 1),
        "ts": start,
        "dur": duration,
        "args": more,
    }


def launch(correlation: int, start: float, **more: Any) -> dict[str, Any]:
    """A kernel launch call of 5 us."""
    return span("cuda_runtime", "cudaLaunchKernel", start, 5, correlation=correlation, **more)


def kernel(
    correlation: int, start: float, duration: float, stream: int = 7, **more: Any
) -> dict[str, Any]:
    """A kernel on *stream*."""
    name = more.pop("name", "gemm")
    return span(
        "kernel", name, start, duration,
        tid=stream, stream=stream, device=0, correlation=correlation, **more,
    )  # fmt: skip


def write_trace(path: Path, spans: list[Any], **around: Any) -> Path:
    """Write *spans* as a Kineto file; the name decides about compression."""
    text = json.dumps({"schemaVersion": 1, **around, "traceEvents": spans}).encode()
    path.write_bytes(gzip.compress(text) if path.name.endswith(".gz") else text)
    return path


_NSYS_TABLES = {
    "StringIds": "id, value",
    "TARGET_INFO_GPU": "id, name, smCount, totalMemory, maxRegistersPerSm, maxShmemPerSm, "
    "maxWarpsPerSm, threadsPerWarp",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start, end, deviceId, streamId, correlationId, globalPid, "
    "demangledName, gridX, gridY, gridZ, blockX, blockY, blockZ, registersPerThread, "
    "staticSharedMemory, dynamicSharedMemory",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start, end, deviceId, streamId, correlationId, globalPid, "
    "bytes, copyKind",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start, end, globalTid, correlationId, nameId",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "start, end, deviceId, streamId, correlationId, "
    "globalPid, syncType, eventId",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": "deviceId, streamId, correlationId, globalPid, eventId",
    "NVTX_EVENTS": "start, end, eventType, text, textId, globalTid",
}  # fmt: skip


def write_nsys(path: Path, *processes: list[Any]) -> Path:
    """Write the spans of each process as an SQLite export of Nsight Systems."""
    rows: dict[str, list[tuple[Any, ...]]] = {table: [] for table in _NSYS_TABLES}
    texts: dict[str, int] = {}
    for number, spans in enumerate(processes):
        process = (number + 1) << 24
        for one in spans:
            start, args = round(one["ts"] * 1000), one["args"]
            when = (start, start + round(one["dur"] * 1000))
            text = texts.setdefault(one["name"], len(texts))
            where = (args.get("device", number), args.get("stream"), args.get("correlation"))
            thread = process + one["tid"]
            match one["cat"]:
                case "kernel":
                    grid, block = args.get("grid", [1, 1, 1]), args.get("block", [1, 1, 1])
                    geometry = (*grid, *block, args.get("registers per thread", 0), 0, 0)
                    row = (*when, *where, process, text, *geometry)
                    rows["CUPTI_ACTIVITY_KIND_KERNEL"].append(row)
                case "gpu_memcpy":
                    row = (*when, *where, process, args["bytes"], 1 if "HtoD" in one["name"] else 2)
                    rows["CUPTI_ACTIVITY_KIND_MEMCPY"].append(row)
                case "cuda_runtime":
                    text = texts.setdefault(f"{one['name']}_v7000", len(texts))
                    row = (*when, thread, args.get("correlation"), text)
                    rows["CUPTI_ACTIVITY_KIND_RUNTIME"].append(row)
                case "cuda_sync":
                    mark = args["wait_on_cuda_event_record_corr_id"]
                    # The handle is used again, as torch does.
                    rows["CUPTI_ACTIVITY_KIND_CUDA_EVENT"].append(
                        (where[0], args["wait_on_stream"], mark, process, 5)
                    )
                    row = (*when, *where, process, 2, 5)
                    rows["CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"].append(row)
                case _:
                    rows["NVTX_EVENTS"].append((*when, 59, one["name"], None, thread))
    rows["StringIds"] = [(number, text) for text, number in texts.items()]
    rows["TARGET_INFO_GPU"] = [
        (number, "V100", 80, 2**34, 65536, 98304, 64, 32) for number in range(len(processes))
    ]
    with closing(sqlite3.connect(path)) as database:
        for table, columns in _NSYS_TABLES.items():
            if rows[table]:
                names = columns.replace("end", '"end"')
                database.execute(f"CREATE TABLE {table} ({names})")
                places = ", ".join("?" * len(columns.split(", ")))
                database.executemany(f"INSERT INTO {table} VALUES ({places})", rows[table])
        database.commit()
    return path
