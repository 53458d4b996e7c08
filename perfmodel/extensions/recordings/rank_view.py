"""Rank view: the runtime calls and device tasks of one trace, linked, on one clock.

The clocks of host and device are skewed by tens of microseconds. A kernel cannot start before
the call that launches it, so the shortest launch delays give the skew, which is removed first.
A call is known by its kind (launch, wait, allocation) and by what encloses it on its thread:
operators, profiler ranges and modules. A few tasks whose stamps contradict their launch or
their stream are clock noise and mended; many are left, for the report to name.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.documents import load_yaml
from perfmodel.extensions.recordings.nesting import NOTHING, Nesting
from perfmodel.graph.program import Int64s
from traces.trace import ABSENT, DEVICE_WORK, Category, Trace, TraceColumns

# A launch takes 5 to 12 us on every GPU seen (V100, A100, H100, MI300X) with synchronised clocks.
SHORTEST_LAUNCH_NS = 6_000
_PLAUSIBLE_LAUNCH_NS = (0, 12_000)
# A start before the launch, or before the end of the task ahead, that no rounding explains.
EARLY_NS, OVERLAP_NS = 1_000_000, 10_000
MOST_NOISE_RATIO = 0.01
"""At most this share of the device tasks has stamps that may be mended."""
_NOT_LAUNCHED = -1
_NEVER_NS = -(2**62)
NO_OPERATOR = NOTHING


class CallKind(IntEnum):
    """The effect of a CUDA or ROCm runtime call on its thread; OTHER is plain host time."""

    OTHER = 0
    STREAM_SYNCHRONISE = 1
    DEVICE_SYNCHRONISE = 2
    MARK_SYNCHRONISE = 3
    ELAPSED_TIME = 4
    STREAM_WAIT = 5
    FREE = 6
    ALLOCATE = 7
    MARK_RECORD = 8


_PREFIXES = [
    (tuple(prefixes), CallKind[kind.upper()])
    for kind, prefixes in load_yaml(Path(__file__).with_suffix(".yaml")).items()
]
"""Prefixes of calls and their kinds; the first matching prefix decides."""


def kind_of_call(name: str) -> CallKind:
    """The kind of the call *name*, such as `cudaStreamSynchronize`."""
    for runtime in ("cuda", "hip", "cu"):
        if name.startswith(runtime):
            word = name.removeprefix(runtime)
            kinds = (kind for prefixes, kind in _PREFIXES if word.startswith(prefixes))
            return next(kinds, CallKind.OTHER)
    return CallKind.OTHER


def is_communication(kernel: str) -> bool:
    """Whether *kernel* belongs to NCCL or RCCL."""
    word = kernel.lower()
    return word.startswith(("ncclkernel", "rccl")) or "nccldevkernel" in word


def plain(column: NDArray[Any]) -> array[int]:
    """*column* for reading one value at a time: an array gives plain numbers, and quickly."""
    return array("q", column.astype(np.int64).tobytes())


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

    def length_ns(self, task: int) -> int:
        """How long *task* took."""
        return int(self.end_ns[task] - self.start_ns[task])

    def reached_ns(self) -> Int64s:
        """When all that is ahead of each task on its stream had ended."""
        reached_ns = np.full(len(self), _NEVER_NS, dtype=np.int64)
        for stream in np.unique(self.stream).tolist():
            own = np.flatnonzero(self.stream == stream)
            reached_ns[own[1:]] = np.maximum.accumulate(self.end_ns[own])[:-1]
        return reached_ns

    def taken(self, order: Int64s) -> DeviceTasks:
        """The same tasks in another *order*."""
        return DeviceTasks(*(getattr(self, name)[order] for name in self.__slots__))


@dataclass(frozen=True, slots=True, eq=False)
class LaunchedTasks:
    """The device tasks of each call: those in *order* from its bound to the next."""

    order: array[int]
    bounds: array[int]

    def by(self, call: int) -> list[int]:
        """The tasks that *call* launched, in order."""
        return self.order[self.bounds[call] : self.bounds[call + 1]].tolist()

    def has_any(self) -> NDArray[np.bool_]:
        """Which calls launched a task."""
        return np.diff(self.bounds) > 0


Tasks = TypeVar("Tasks", Calls, DeviceTasks)


@dataclass(frozen=True, slots=True, eq=False)
class RankView:
    """One rank, its calls and device tasks on the clock of its host.

    *operators* has the row of the innermost operator or annotation around each call, or
    NO_OPERATOR. The stamps of *mended* device tasks were moved: *mended_ns* is the root of the
    sum of the squares, as far as noise may add up.
    """

    trace: Trace
    calls: Calls
    device: DeviceTasks
    skew_ns: int
    repeated_correlations: int
    operators: Int64s
    mended: int
    mended_ns: int

    def shifted(self, offset_ns: int) -> RankView:
        """The same rank with all its clocks moved by *offset_ns*."""
        calls, device = _shifted(self.calls, offset_ns), _shifted(self.device, offset_ns)
        return replace(self, calls=calls, device=device)

    @property
    def host_offset_ns(self) -> int:
        """How much later the clock of the view is than that of the trace, for rows of the host."""
        of_trace_ns = self.trace.columns.start_ns[self.calls.row[:1]]
        return int((self.calls.start_ns[:1] - of_trace_ns).sum())

    def launched_ns(self) -> Int64s:
        """When the call began that launched each device task; long ago without a call."""
        return np.append(self.calls.start_ns, _NEVER_NS)[self.device.call]

    @property
    def linked_count(self) -> int:
        """Device tasks whose launching call is in the trace."""
        return int((self.device.call != _NOT_LAUNCHED).sum())

    def task_name(self, task: int) -> str:
        """The name of device task *task*."""
        return self.trace.name_of(int(self.device.row[task]))

    def tasks_by_call(self) -> LaunchedTasks:
        """The device tasks that each call launched."""
        order = np.argsort(self.device.call, kind="stable")
        bounds = np.searchsorted(self.device.call[order], np.arange(len(self.calls) + 1))
        return LaunchedTasks(plain(order), plain(bounds))

    def is_before_window(self) -> NDArray[np.bool_]:
        """Device tasks without a call, before everything launched on their stream."""
        is_launched = self.device.call != _NOT_LAUNCHED
        before: NDArray[np.bool_] = ~is_launched
        for stream in np.unique(self.device.stream).tolist():
            own = np.flatnonzero(self.device.stream == stream)
            before[own] &= np.cumsum(is_launched[own]) == 0
        return before

    def last_before_window(self) -> dict[int, int]:
        """The last such task of each stream."""
        before = np.flatnonzero(self.is_before_window())
        return dict(zip(self.device.stream[before].tolist(), before.tolist(), strict=True))

    def operators_of_tasks(self) -> Int64s:
        """The row of the operator around the launch of each device task, or NO_OPERATOR."""
        # Tasks without a call have the number -1, which picks the last entry.
        return np.append(self.operators, NO_OPERATOR)[self.device.call]


def _shifted(tasks: Tasks, offset_ns: int) -> Tasks:
    return replace(tasks, start_ns=tasks.start_ns + offset_ns, end_ns=tasks.end_ns + offset_ns)


def view_rank(trace: Trace) -> RankView:
    """Link the calls and device tasks of *trace* and put them on the clock of the host."""
    calls, correlations = _calls_of(trace)
    device = _device_of(trace, correlations)
    skew_ns = _skew_ns(calls, device)
    columns = trace.columns
    rows = columns.rows_in(Category.HOST_OPERATOR, Category.HOST_ANNOTATION)
    operators = Nesting(columns, rows).around(columns.start_ns[calls.row], calls.thread)
    noisy = _shifted(device, skew_ns)
    device = _without_overlaps(_without_early_starts(calls, noisy))
    in_file = np.argsort(device.row), np.argsort(noisy.row)
    moved_ns = np.abs(device.start_ns[in_file[0]] - noisy.start_ns[in_file[1]])
    return RankView(
        trace,
        calls,
        device,
        skew_ns,
        correlations.repeated,
        operators,
        mended=int((moved_ns > 0).sum()),
        mended_ns=round(float(np.sqrt((moved_ns.astype(np.float64) ** 2).sum()))),
    )


def _without_early_starts(calls: Calls, device: DeviceTasks) -> DeviceTasks:
    """*device* with a few tasks that began long before their launch moved to it.

    What ran before the first call of the window was launched before it, by a call whose
    correlation came again.
    """
    if not len(calls):
        return device
    launched_ns = calls.start_ns[device.call]
    is_early = (device.call != _NOT_LAUNCHED) & (device.start_ns < launched_ns - EARLY_NS)
    if not 0 < is_early.sum() <= MOST_NOISE_RATIO * len(device):
        return device
    is_before = is_early & (device.end_ns < int(calls.start_ns[0]))
    call = np.where(is_before, _NOT_LAUNCHED, device.call)
    shift_ns = np.where(is_early & ~is_before, launched_ns - device.start_ns, 0)
    start_ns, end_ns = device.start_ns + shift_ns, device.end_ns + shift_ns
    moved = replace(device, call=call, start_ns=start_ns, end_ns=end_ns)
    return moved.taken(np.argsort(start_ns, kind="stable"))


def _without_overlaps(device: DeviceTasks) -> DeviceTasks:
    """*device* with a few tasks that began inside the one ahead on their stream cut to its end."""
    reached_ns = device.reached_ns()
    is_cut = device.start_ns < reached_ns - OVERLAP_NS
    if not 0 < is_cut.sum() <= MOST_NOISE_RATIO * len(device):
        return device
    start_ns = np.where(is_cut, reached_ns, device.start_ns)
    cut = replace(device, start_ns=start_ns, end_ns=np.maximum(start_ns, device.end_ns))
    return cut.taken(np.argsort(start_ns, kind="stable"))


@dataclass(frozen=True, slots=True, eq=False)
class _Correlations:
    """The call of each correlation, by correlation, and how many calls repeat one."""

    number: Int64s
    call: Int64s
    repeated: int

    def call_of(self, numbers: Int64s) -> Int64s:
        """The call of each of *numbers*, or _NOT_LAUNCHED."""
        if not len(self.number):
            return np.full(len(numbers), _NOT_LAUNCHED, dtype=np.int64)
        places = np.minimum(np.searchsorted(self.number, numbers), len(self.number) - 1)
        return np.where(self.number[places] == numbers, self.call[places], _NOT_LAUNCHED)


def _calls_of(trace: Trace) -> tuple[Calls, _Correlations]:
    """Outer calls, and the call of each correlation."""
    columns = trace.columns
    kinds = np.array([kind_of_call(name) for name in trace.names], dtype=np.int64)
    rows = columns.rows_in(Category.RUNTIME_CALL)
    is_outer, outer = np.ones(len(rows), dtype=bool), np.arange(len(rows))
    for thread in np.unique(columns.thread[rows]).tolist():
        own = np.flatnonzero(columns.thread[rows] == thread)
        is_outer[own] = _are_outer(columns, rows[own], kinds)
        # The outer call of each row is the last one of its thread.
        outer[own] = np.maximum.accumulate(np.where(is_outer[own], own, 0))
    call_of_row = (np.cumsum(is_outer) - 1)[outer]
    picked = rows[is_outer]
    calls = Calls(
        row=picked,
        start_ns=columns.start_ns[picked],
        end_ns=columns.start_ns[picked] + columns.duration_ns[picked],
        thread=columns.thread[picked].astype(np.int64),
        kind=kinds[columns.name[picked]],
    )
    linked = np.flatnonzero(columns.correlation[rows] != ABSENT)
    numbers = columns.correlation[rows[linked]].astype(np.int64)
    number, first, place = np.unique(numbers, return_index=True, return_inverse=True)
    call = call_of_row[linked]
    repeated = int((call[first][place] != call).sum())
    return calls, _Correlations(number, call[first], repeated)


def _are_outer(columns: TraceColumns, rows: Int64s, kinds: Int64s) -> NDArray[np.bool_]:
    """Which calls in *rows* of one thread are not part of the outer call before them.

    Stamps are rounded, so kinds decide first.
    """
    is_plain = kinds[columns.name[rows]] == CallKind.OTHER
    duration_ns = columns.duration_ns[rows]
    end_ns = columns.start_ns[rows] + duration_ns
    is_outer = np.ones(len(rows), dtype=bool)
    # Only a call that ends before a plain one just before it may be inside; usually none does.
    reached_ns = np.maximum.accumulate(np.where(is_plain, end_ns, 0))
    suspects = np.flatnonzero(is_plain[1:] & (end_ns[1:] <= reached_ns[:-1])) + 1
    above = 0
    for place in suspects.tolist():
        above = place - 1 if is_outer[place - 1] else above
        is_outer[place] = not (
            is_plain[above]
            and duration_ns[place] < duration_ns[above]
            and end_ns[place] <= end_ns[above]
        )
    return is_outer


def _device_of(trace: Trace, correlations: _Correlations) -> DeviceTasks:
    columns = trace.columns
    rows = columns.rows_in(*DEVICE_WORK)
    numbers = columns.correlation[rows].astype(np.int64)
    order = np.lexsort((numbers, columns.start_ns[rows]))
    rows, numbers = rows[order], numbers[order]
    is_nccl = np.array([is_communication(name) for name in trace.names], dtype=bool)
    devices = np.maximum(columns.device[rows], 0).astype(np.int64)
    return DeviceTasks(
        row=rows,
        start_ns=columns.start_ns[rows],
        end_ns=columns.start_ns[rows] + columns.duration_ns[rows],
        # Two devices of one process may use the same stream numbers.
        stream=columns.stream[rows].astype(np.int64) + (devices << 32),
        call=correlations.call_of(numbers),
        is_copy=columns.category[rows] == Category.MEMORY_COPY,
        is_collective=is_nccl[columns.name[rows]],
    )


def _skew_ns(calls: Calls, device: DeviceTasks) -> int:
    """How much earlier the clock of the device is than that of the host.

    No task may start before its launch. Tasks that start late say nothing while the device is
    busy, because the host runs ahead; only those that were launched to an idle device show that
    its clock is late.
    """
    linked = np.flatnonzero(device.call != _NOT_LAUNCHED)
    if not len(linked):
        return 0
    launched_ns = calls.start_ns[device.call[linked]]
    delays_ns = device.start_ns[linked] - launched_ns
    low_ns, high_ns = _PLAUSIBLE_LAUNCH_NS
    is_noise = delays_ns < -EARLY_NS
    if is_noise.mean() <= MOST_NOISE_RATIO:
        linked, launched_ns, delays_ns = (
            column[~is_noise] for column in (linked, launched_ns, delays_ns)
        )
    shortest_ns = float(np.percentile(delays_ns, 1))
    if shortest_ns > high_ns:
        reached_ns = np.concatenate([[_NEVER_NS], np.maximum.accumulate(device.end_ns)[:-1]])
        is_idle = reached_ns[linked] < launched_ns
        idle_ns = float(np.percentile(delays_ns[is_idle], 1)) if is_idle.any() else low_ns
        shortest_ns = min(shortest_ns, idle_ns)
    return 0 if low_ns <= shortest_ns <= high_ns else round(SHORTEST_LAUNCH_NS - shortest_ns)
