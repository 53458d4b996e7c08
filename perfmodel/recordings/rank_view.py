"""Rank view: the calls and device tasks of one trace, linked, on one clock.

The clocks of host and device are skewed against each other by tens of
microseconds. A kernel cannot start before the call that launches it, so the
smallest delays between the two tell the skew; it is taken out first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.recordings.calls import CallKind, is_communication, kind_of_call
from traces.trace import ABSENT, DEVICE_WORK, Category, Trace

Int64s = NDArray[np.int64]

# A launch takes 5 to 12 us on every GPU seen (V100, A100, H100, MI300X) with clocks in step.
SHORTEST_LAUNCH_NS = 6_000
_PLAUSIBLE_LAUNCH_NS = (0, 12_000)
_NOT_LAUNCHED = -1


@dataclass(frozen=True, slots=True, eq=False)
class Calls:
    """Runtime calls by start; a call inside another counts as part of it."""

    row: Int64s
    start_ns: Int64s
    end_ns: Int64s
    thread: Int64s
    kind: Int64s

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTasks:
    """Kernels, copies and sets by start; `call` is the launching call, or -1."""

    row: Int64s
    start_ns: Int64s
    end_ns: Int64s
    stream: Int64s
    call: Int64s
    is_copy: NDArray[np.bool_]
    is_collective: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, slots=True, eq=False)
class RankView:
    """One rank, its calls and device tasks on a common clock that starts at *origin_ns*."""

    trace: Trace
    calls: Calls
    device: DeviceTasks
    skew_ns: int
    repeated_correlations: int

    def shifted(self, offset_ns: int) -> RankView:
        """The same rank with all its clocks moved by *offset_ns*."""
        return replace(
            self,
            calls=replace(
                self.calls,
                start_ns=self.calls.start_ns + offset_ns,
                end_ns=self.calls.end_ns + offset_ns,
            ),
            device=replace(
                self.device,
                start_ns=self.device.start_ns + offset_ns,
                end_ns=self.device.end_ns + offset_ns,
            ),
        )

    @property
    def linked_count(self) -> int:
        """Device tasks whose launching call is in the trace."""
        return int((self.device.call != _NOT_LAUNCHED).sum())

    def is_before_window(self) -> NDArray[np.bool_]:
        """Device tasks without a call, ahead of everything launched on their stream."""
        seen: set[int] = set()
        before = np.zeros(len(self.device), dtype=bool)
        for task, (stream, call) in enumerate(
            zip(self.device.stream.tolist(), self.device.call.tolist(), strict=True)
        ):
            if call != _NOT_LAUNCHED:
                seen.add(stream)
            elif stream not in seen:
                before[task] = True
        return before


def view_rank(trace: Trace) -> RankView:
    """Link the calls and device tasks of *trace* and put them on the clock of the host."""
    calls, call_of_correlation, repeated = _calls_of(trace)
    device = _device_of(trace, call_of_correlation)
    skew_ns = _skew_ns(calls, device)
    device = replace(device, start_ns=device.start_ns + skew_ns, end_ns=device.end_ns + skew_ns)
    return RankView(trace, calls, device, skew_ns, repeated)


def _calls_of(trace: Trace) -> tuple[Calls, dict[int, int], int]:
    columns = trace.columns
    rows = np.flatnonzero(columns.is_in(Category.RUNTIME_CALL))
    kind_of_name = np.array([kind_of_call(name) for name in trace.names], dtype=np.int64)
    ends = columns.end_ns
    kept: list[int] = []
    outer: dict[int, int] = {}
    call_of_correlation: dict[int, int] = {}
    repeated = 0
    for row in rows.tolist():
        thread = int(columns.thread[row])
        above = outer.get(thread)
        if above is not None and _is_inside(columns, ends, kind_of_name, row, kept[above]):
            call = above
        else:
            call = len(kept)
            kept.append(row)
            outer[thread] = call
        correlation = int(columns.correlation[row])
        if correlation != ABSENT:
            repeated += (
                correlation in call_of_correlation and call_of_correlation[correlation] != call
            )
            call_of_correlation.setdefault(correlation, call)
    picked = np.array(kept, dtype=np.int64)
    calls = Calls(
        row=picked,
        start_ns=columns.start_ns[picked],
        end_ns=ends[picked],
        thread=columns.thread[picked],
        kind=kind_of_name[columns.name[picked]] if len(picked) else picked,
    )
    return calls, call_of_correlation, repeated


def _is_inside(columns: Any, ends: Int64s, kinds: Int64s, row: int, above: int) -> bool:
    """Whether a call is part of the one before; stamps are rounded, so kinds decide first."""
    if kinds[columns.name[row]] != CallKind.OTHER or kinds[columns.name[above]] != CallKind.OTHER:
        return False
    is_shorter = columns.duration_ns[row] < columns.duration_ns[above]
    return bool(is_shorter and ends[row] <= ends[above])


def _device_of(trace: Trace, call_of_correlation: dict[int, int]) -> DeviceTasks:
    columns = trace.columns
    rows = np.flatnonzero(columns.is_in(*DEVICE_WORK))
    rows = rows[np.lexsort((columns.correlation[rows], columns.start_ns[rows]))]
    is_nccl = np.array([is_communication(name) for name in trace.names], dtype=bool)
    calls = [call_of_correlation.get(int(c), _NOT_LAUNCHED) for c in columns.correlation[rows]]
    # Streams of different devices of one process must not be taken for one another.
    stream = columns.stream[rows] + (np.maximum(columns.device[rows], 0) << 32)
    return DeviceTasks(
        row=rows,
        start_ns=columns.start_ns[rows],
        end_ns=columns.end_ns[rows],
        stream=stream,
        call=np.array(calls, dtype=np.int64),
        is_copy=columns.category[rows] == Category.MEMORY_COPY,
        is_collective=is_nccl[columns.name[rows]] if len(rows) else np.zeros(0, dtype=bool),
    )


def _skew_ns(calls: Calls, device: DeviceTasks) -> int:
    linked = device.call != _NOT_LAUNCHED
    if not linked.any():
        return 0
    delays = device.start_ns[linked] - calls.start_ns[device.call[linked]]
    shortest = float(np.percentile(delays, 1))
    low, high = _PLAUSIBLE_LAUNCH_NS
    return 0 if low <= shortest <= high else round(SHORTEST_LAUNCH_NS - shortest)
