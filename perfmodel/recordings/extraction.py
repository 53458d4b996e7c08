"""Extraction: tables of what a recording measured, in the forms that `calibrate` takes.

Host overheads by operator, matrix products by shape, and collectives by size;
each line says of which recording it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.base.dtypes import DType
from perfmodel.base.writing import write_csv
from perfmodel.graph.ops import Gemm
from perfmodel.recordings.collective_calls import find_collective_calls
from perfmodel.recordings.host_overheads import HostOverhead, extract_host_overheads
from perfmodel.recordings.matching import match_collectives, transfer_ns
from perfmodel.recordings.rank_view import RankView, view_rank
from perfmodel.recordings.task_work import WorkReader
from traces.job_trace import JobTrace

_NCCL_WORDS = {DType.FP32: "float", DType.FP16: "half", DType.BF16: "bfloat16", DType.INT8: "int8"}
Line = dict[str, Any]
MISSING = {
    "host_overheads": "the traces hold no host operators. Record with CPU activities.",
    "gemm": "no matrix product has its shapes. Record with record_shapes=True.",
    "collectives": (
        "no collective of all recorded ranks says what it moved. Newer PyTorch releases write that."
    ),
}
"""Why a table has no lines."""


def extract_tables(traces: JobTrace, *, topology: str) -> dict[str, list[Line]]:
    """Tables by name; *topology* is the machine that the recording was made on."""
    views = [view_rank(trace) for trace in traces.ranks]
    return {
        "host_overheads": [_overhead_line(line) for line in extract_host_overheads(views)],
        "gemm": _gemm_lines(traces.name, views),
        "collectives": _collective_lines(traces, views, topology),
    }


def write_tables(tables: dict[str, list[Line]], folder: Path) -> tuple[Path, ...]:
    """Write every table that has lines as a CSV file in *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, lines in tables.items():
        if lines:
            path = folder / f"{name}.csv"
            write_csv(path, lines)
            paths.append(path)
    return tuple(paths)


def _overhead_line(line: HostOverhead) -> Line:
    return {
        "type": line.part.value,
        "op": line.operator,
        "mean_us": round(line.mean_us, 3),
        "std_us": round(line.std_us, 3),
        "count": line.count,
    }


def _gemm_lines(name: str, views: Sequence[RankView]) -> list[Line]:
    lengths: dict[tuple[str, Gemm], list[int]] = {}
    for view in views:
        reader = WorkReader(view)
        device = next(iter(view.trace.device_names), "unknown")
        beside_ns = _reductions_ns(view, reader)
        for task in range(len(view.device)):
            found = reader.found(task)
            if found is None or found.is_estimated:
                continue
            if isinstance(found.work, Gemm):
                length_ns = int(view.device.end_ns[task] - view.device.start_ns[task])
                length_ns += beside_ns.get(reader.operator_of(task), 0)
                lengths.setdefault((device, found.work), []).append(length_ns)
    return [
        {
            "collector": f"recording {name}",
            "device": device,
            "dtype": work.dtype.value,
            "batch": work.batch,
            "m": work.m,
            "n": work.n,
            "k": work.k,
            "residency": "cold",
            "latency_ms": round(float(np.median(values)) / 1e6, 6),
            "count": len(values),
        }
        for (device, work), values in lengths.items()
    ]


def _reductions_ns(view: RankView, reader: WorkReader) -> dict[int, int]:
    """How long the sums of products that were split along their depth took, by operator."""
    lengths: dict[int, int] = {}
    for task in range(len(view.device)):
        if "splitkreduce" in view.trace.name_of(int(view.device.row[task])).lower():
            row = reader.operator_of(task)
            length_ns = int(view.device.end_ns[task] - view.device.start_ns[task])
            lengths[row] = lengths.get(row, 0) + length_ns
    return lengths


def _collective_lines(traces: JobTrace, views: Sequence[RankView], topology: str) -> list[Line]:
    groups = match_collectives([find_collective_calls(view) for view in views])
    lengths: dict[tuple[int, str, int, str], list[int]] = {}
    for group in groups:
        for number in range(group.count):
            collective = group.calls[0][number].collective
            if collective is not None:
                key = (
                    len(group.members),
                    collective.kind.value,
                    collective.size_bytes,
                    _NCCL_WORDS.get(collective.dtype, collective.dtype.value),
                )
                lengths.setdefault(key, []).append(max(transfer_ns(views, group, number)))
    version = _nccl_version(traces)
    return [
        {
            "topology": topology,
            "hosts": 1,
            "nranks": ranks,
            "collective": kind,
            "size_bytes": size_bytes,
            "dtype": dtype,
            "nccl_version": version,
            "time_us": round(float(np.median(values)) / 1e3, 3),
            "source": f"recording {traces.name}",
        }
        for (ranks, kind, size_bytes, dtype), values in sorted(lengths.items())
    ]


def _nccl_version(traces: JobTrace) -> str:
    infos: Iterable[Any] = (trace.properties.get("distributedInfo") for trace in traces.ranks)
    versions = [info.get("nccl_version") for info in infos if isinstance(info, dict)]
    return next((str(version) for version in versions if version), "")
