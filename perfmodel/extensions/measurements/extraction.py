"""Extraction: tables of recorded measurements, in the forms that `calibrate` takes.

Host overheads by operator, GEMMs by shape, and collectives by size; each line names its recording.

Host overheads are the CPU time around kernel launches, by operator: T1 between two operators, T2
before the first launch of an operator, T3 after its last, T4 a launch call, T5 between two
launches; for an operator that launches nothing T5 is all of it. The profiler's own cost per row is
subtracted.

Leaves out: samples beyond 1.5 quartile ranges, and gaps above 200 us, which are waits or Python
and no overhead of an operator.
Source: the taxonomy of Lin et al. (HiPC 2022), 2 us per host row, 4 us per device row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.base.dtypes import DType
from perfmodel.base.writing import write_csv
from perfmodel.extensions.recordings.collective_calls import find_collective_calls
from perfmodel.extensions.recordings.rank_clocks import match_collectives, transfer_ns
from perfmodel.extensions.recordings.rank_view import CallKind, RankView, view_rank
from perfmodel.extensions.recordings.task_work import UNKNOWN, WorkReader
from perfmodel.graph.ops import Gemm, HostPart
from perfmodel.graph.program import Int64s
from traces.job_trace import JobTrace
from traces.trace import Category

_NCCL_WORDS = {DType.FP32: "float", DType.FP16: "half", DType.BF16: "bfloat16", DType.INT8: "int8"}
HOST_ROW_NS = 2_000
DEVICE_ROW_NS = 4_000
# The paper leaves 4 of 10 us of a launch; on faster hosts rows cost less, so at least that share
# of a call stays its own.
OWN_RATIO = 0.4
_LONGEST_GAP_NS = 200_000
Line = dict[str, Any]
Samples = dict[tuple[HostPart, str], list[int]]
MISSING = {
    "host_overheads": "the traces hold no host operators. Record with CPU activities.",
    "gemm": "no GEMM has recorded shapes. Record with record_shapes=True.",
    "collectives": (
        "no collective of the recorded ranks states its size. Newer PyTorch releases record it."
    ),
}
"""Why a table has no lines."""


def extract_tables(traces: JobTrace, *, topology: str) -> dict[str, list[Line]]:
    """Tables by name; *topology* is the machine that the recording was made on."""
    views = [view_rank(trace) for trace in traces.ranks]
    return {
        "host_overheads": extract_host_overheads(views),
        "gemm": _gemm_lines(traces.name, views),
        "collectives": _collective_lines(traces, views, topology),
    }


def write_tables(tables: dict[str, list[Line]], folder: Path) -> tuple[Path, ...]:
    """Write every table that has lines as a CSV file in *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, lines in tables.items():
        if lines:
            paths.append(folder / f"{name}.csv")
            write_csv(paths[-1], lines)
    return tuple(paths)


def extract_host_overheads(views: Sequence[RankView]) -> list[Line]:
    """The host overheads of all ranks pooled, by part and operator or call."""
    samples: Samples = {}
    for view in views:
        launching = view.calls.row[np.unique(view.device.call[view.device.call >= 0])]
        for thread in np.unique(view.calls.thread).tolist():
            on_thread = launching[view.trace.columns.thread[launching] == thread]
            _sample_thread(view, thread, on_thread, samples)
    parts = list(HostPart)
    lines = []
    for part, name in sorted(samples, key=lambda key: (parts.index(key[0]), key[1])):
        values = np.array(samples[part, name], dtype=np.float64) / 1e3
        low, high = np.percentile(values, [25, 75])
        margin = 1.5 * (high - low)
        kept = values[(values >= low - margin) & (values <= high + margin)]
        lines.append(
            {
                "type": part.value,
                "op": name,
                "mean_us": round(float(kept.mean()), 3),
                "std_us": round(float(kept.std()), 3),
                "count": len(kept),
            }
        )
    return lines


def _sample_thread(view: RankView, thread: int, launching: Int64s, samples: Samples) -> None:
    """Sample the outermost operators of *thread*, whose launch calls are *launching*."""
    columns, starts, ends = (
        view.trace.columns,
        view.trace.columns.start_ns,
        view.trace.columns.end_ns,
    )
    is_host = columns.is_in(Category.HOST_OPERATOR, Category.RUNTIME_CALL)
    rows = np.flatnonzero((columns.thread == thread) & is_host)
    operators = rows[columns.category[rows] == Category.HOST_OPERATOR]
    reached = np.maximum.accumulate(np.concatenate([[-1], ends[operators]]))[:-1]
    waits = view.calls.row[view.calls.kind != CallKind.OTHER]
    previous_end_ns = None
    for operator in operators[starts[operators] >= reached].tolist():
        low_ns, high_ns = starts[operator], ends[operator]
        if previous_end_ns is not None:
            gap_ns = int(low_ns - previous_end_ns) - HOST_ROW_NS
            if gap_ns <= _LONGEST_GAP_NS:
                _add(samples, HostPart.BETWEEN_OPERATORS, "", gap_ns)
        previous_end_ns = high_ns
        first, last = np.searchsorted(starts[rows], [low_ns, high_ns])
        # An operator that waits is not overhead, and its wait would dominate the sample.
        if not np.isin(rows[first:last], waits).any():
            begin, end = np.searchsorted(starts[launching], [low_ns, high_ns])
            _sample_operator(view, operator, rows[first:last], launching[begin:end], samples)


def _sample_operator(
    view: RankView, operator: int, inside: Int64s, launches: Int64s, samples: Samples
) -> None:
    columns, name = view.trace.columns, view.trace.name_of(operator)
    starts, ends = columns.start_ns, columns.end_ns
    low_ns, high_ns = int(starts[operator]), int(ends[operator])

    def own_ns(from_ns: int, to_ns: int, skipped_ns: int = 0) -> int:
        """The time between two moments without the cost of the profiler's rows in it."""
        first_ns = from_ns + skipped_ns
        count = int(((starts[inside] >= first_ns) & (starts[inside] < to_ns)).sum())
        return to_ns - from_ns - HOST_ROW_NS * count

    if not len(launches):
        _add(samples, HostPart.BETWEEN_LAUNCHES, name, own_ns(low_ns, high_ns, 1))
        return
    begins, returns = starts[launches].tolist(), ends[launches].tolist()
    _add(samples, HostPart.BEFORE_LAUNCH, name, own_ns(low_ns, begins[0], 1))
    _add(samples, HostPart.AFTER_LAUNCH, name, own_ns(returns[-1], high_ns))
    for row, begin_ns, return_ns in zip(launches.tolist(), begins, returns, strict=True):
        length_ns = return_ns - begin_ns
        kept_ns = max(length_ns - HOST_ROW_NS - DEVICE_ROW_NS, round(OWN_RATIO * length_ns))
        _add(samples, HostPart.LAUNCH, view.trace.name_of(row), kept_ns)
    for return_ns, begin_ns in zip(returns, begins[1:], strict=False):
        _add(samples, HostPart.BETWEEN_LAUNCHES, name, own_ns(return_ns, begin_ns))


def _add(samples: Samples, part: HostPart, name: str, length_ns: int) -> None:
    samples.setdefault((part, name), []).append(max(length_ns, 0))


def _gemm_lines(name: str, views: Sequence[RankView]) -> list[Line]:
    lengths: dict[tuple[str, Gemm], list[int]] = {}
    for view in views:
        reader = WorkReader(view)
        works = reader.works
        device = next(iter(view.trace.device_names), "unknown")
        # By operator, the time of the reductions of split-k GEMMs.
        reductions_ns: Counter[int] = Counter()
        for task in range(len(view.device)):
            if "splitkreduce" in view.task_name(task).lower():
                reductions_ns[reader.operators[task]] += view.device.length_ns(task)
        for task in range(len(view.device)):
            work = None if reader.number[task] == UNKNOWN else works[reader.number[task]]
            if isinstance(work, Gemm) and not reader.is_estimated[task]:
                length_ns = view.device.length_ns(task) + reductions_ns[reader.operators[task]]
                lengths.setdefault((device, work), []).append(length_ns)
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


def _collective_lines(traces: JobTrace, views: Sequence[RankView], topology: str) -> list[Line]:
    lengths: dict[tuple[int, str, int, str], list[int]] = {}
    for group in match_collectives(views, [find_collective_calls(view) for view in views]):
        for number, call in enumerate(group.calls[0]):
            if call.collective is not None:
                dtype = call.collective.dtype
                word = _NCCL_WORDS.get(dtype, dtype.value)
                kind, size_bytes = call.collective.kind.value, call.collective.size_bytes
                key = (len(group.members), kind, size_bytes, word)
                lengths.setdefault(key, []).append(max(transfer_ns(views, group, number)))
    infos = [trace.properties.get("distributedInfo") for trace in traces.ranks]
    versions = [info.get("nccl_version") for info in infos if isinstance(info, dict)]
    return [
        {
            "topology": topology,
            "hosts": 1,
            "nranks": ranks,
            "collective": kind,
            "size_bytes": size_bytes,
            "dtype": dtype,
            "nccl_version": next((str(version) for version in versions if version), ""),
            "time_us": round(float(np.median(values)) / 1e3, 3),
            "source": f"recording {traces.name}",
        }
        for (ranks, kind, size_bytes, dtype), values in sorted(lengths.items())
    ]
