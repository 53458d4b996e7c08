"""Rank view: the runtime calls and device tasks of one trace, linked, on one clock.

The clocks of host and device are skewed by tens of microseconds. A kernel cannot start before
the call that launches it, so the shortest launch delays give the skew, which is removed first.
A call is known by its kind (launch, wait, allocation) and by what encloses it on its thread:
operators, profiler ranges and modules.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.documents import load_yaml
from perfmodel.graph.program import Int64s
from traces.trace import ABSENT, DEVICE_WORK, Category, Trace

# A launch takes 5 to 12 us on every GPU seen (V100, A100, H100, MI300X) with synchronised clocks.
SHORTEST_LAUNCH_NS = 6_000
_PLAUSIBLE_LAUNCH_NS = (0, 12_000)
_NOT_LAUNCHED = -1
NO_OPERATOR = -1
INSIDE = " > "
"""Separates a range from the range inside it."""
_NO_RANGES = ("ProfilerStep", "nccl:", "enumerate(DataLoader)")


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


Tasks = TypeVar("Tasks", Calls, DeviceTasks)


@dataclass(frozen=True, slots=True, eq=False)
class RankView:
    """One rank, its calls and device tasks on the clock of its host."""

    trace: Trace
    calls: Calls
    device: DeviceTasks
    skew_ns: int
    repeated_correlations: int

    def shifted(self, offset_ns: int) -> RankView:
        """The same rank with all its clocks moved by *offset_ns*."""
        calls, device = _shifted(self.calls, offset_ns), _shifted(self.device, offset_ns)
        return replace(self, calls=calls, device=device)

    @property
    def linked_count(self) -> int:
        """Device tasks whose launching call is in the trace."""
        return int((self.device.call != _NOT_LAUNCHED).sum())

    def task_name(self, task: int) -> str:
        """The name of device task *task*."""
        return self.trace.name_of(int(self.device.row[task]))

    def tasks_by_call(self) -> dict[int, list[int]]:
        """The device tasks that each call launched."""
        launched: dict[int, list[int]] = {}
        for task, call in enumerate(self.device.call.tolist()):
            if call != _NOT_LAUNCHED:
                launched.setdefault(call, []).append(task)
        return launched

    def is_before_window(self) -> NDArray[np.bool_]:
        """Device tasks without a call, ahead of everything launched on their stream."""
        seen: set[int] = set()
        before = np.zeros(len(self.device), dtype=bool)
        links = zip(self.device.stream.tolist(), self.device.call.tolist(), strict=True)
        for task, (stream, call) in enumerate(links):
            if call != _NOT_LAUNCHED:
                seen.add(stream)
            elif stream not in seen:
                before[task] = True
        return before

    def last_before_window(self) -> dict[int, int]:
        """The last such task of each stream."""
        before = np.flatnonzero(self.is_before_window())
        return dict(zip(self.device.stream[before].tolist(), before.tolist(), strict=True))

    def operators_of_calls(self) -> Int64s:
        """The row of the innermost operator or annotation around each call, or NO_OPERATOR."""
        rows = self.trace.columns.rows_in(Category.HOST_OPERATOR, Category.HOST_ANNOTATION)
        return self._around(rows, self.calls.row, self.calls.thread)

    def operators_of_tasks(self) -> list[int]:
        """The row of the operator around the launch of each device task, or NO_OPERATOR."""
        # Tasks without a call have the number -1, which picks the last entry.
        rows: list[int] = np.append(self.operators_of_calls(), NO_OPERATOR)[
            self.device.call
        ].tolist()
        return rows

    def ranges_of_calls(self) -> list[str]:
        """The program's or PyTorch's named ranges around each call, outermost first, or nothing.

        The thread that runs backward has no ranges: it is in the range of the thread with most
        calls at that moment. Profiler steps and NCCL calls are no ranges.
        """
        trace = self.trace
        rows = trace.columns.rows_in(Category.HOST_ANNOTATION)
        is_range = np.array([not name.startswith(_NO_RANGES) for name in trace.names], dtype=bool)
        rows = rows[is_range[trace.columns.name[rows]]]
        found = self._around(rows, self.calls.row, self.calls.thread)
        threads, counts = np.unique(self.calls.thread, return_counts=True)
        if len(threads) > 1:
            main = np.full(len(self.calls), threads[np.argmax(counts)])
            on_main = self._around(rows, self.calls.row, main)
            found = np.where(found == NO_OPERATOR, on_main, found)
        return self._paths(rows, found)

    def modules_of_calls(self) -> list[str]:
        """The modules around each call as the profiler named them, outermost first, or nothing.

        Backward work belongs to the module of the forward operator that it is the gradient of.
        """
        columns, calls = self.trace.columns, self.calls
        rows = columns.rows_in(Category.MODULE)
        if not len(rows):
            return [""] * len(calls)
        found = self._around(rows, calls.row, calls.thread)
        operators = np.flatnonzero(columns.is_in(Category.HOST_OPERATOR) & (columns.sequence >= 0))
        is_backward = columns.forward_thread[operators] > 0
        forward = operators[~is_backward]
        modules = self._around(rows, forward, columns.thread[forward]).tolist()
        module_of = dict(zip(columns.sequence[forward].tolist(), modules, strict=True))
        around = self._around(operators[is_backward], calls.row, calls.thread, is_outermost=True)
        for call in np.flatnonzero((found == NO_OPERATOR) & (around != NO_OPERATOR)).tolist():
            found[call] = module_of.get(int(columns.sequence[around[call]]), NO_OPERATOR)
        return self._paths(rows, found)

    def _around(
        self, rows: Int64s, inner: Int64s, threads: Int64s, *, is_outermost: bool = False
    ) -> Int64s:
        """Of *rows*, the innermost around each row of *inner*, on the thread given for it."""
        columns = self.trace.columns
        starts, ends = columns.start_ns, columns.end_ns
        result = np.full(len(inner), NO_OPERATOR, dtype=np.int64)
        stacks: dict[int, list[int]] = {}
        outer = iter(rows.tolist())
        following = next(outer, None)
        for place, row in enumerate(inner.tolist()):
            while following is not None and starts[following] <= starts[row]:
                stack = stacks.setdefault(int(columns.thread[following]), [])
                _pop_ended(stack, ends, starts[following])
                stack.append(following)
                following = next(outer, None)
            stack = stacks.get(int(threads[place]), [])
            _pop_ended(stack, ends, starts[row])
            if stack:
                result[place] = stack[0] if is_outermost else stack[-1]
        return result

    def _paths(self, rows: Int64s, found: Int64s) -> list[str]:
        """The names around each row of *found* and its own; empty for NO_OPERATOR."""
        columns, ends = self.trace.columns, self.trace.columns.end_ns
        stacks: dict[int, list[int]] = {}
        paths = {NO_OPERATOR: ""}
        for row in rows[np.argsort(columns.start_ns[rows], kind="stable")].tolist():
            stack = stacks.setdefault(int(columns.thread[row]), [])
            _pop_ended(stack, ends, columns.start_ns[row])
            around = paths[stack[-1]] + INSIDE if stack else ""
            paths[row] = around + self.trace.name_of(row).removeprefix("nn.Module: ")
            stack.append(row)
        return [paths[row] for row in found.tolist()]


def _pop_ended(stack: list[int], ends: Int64s, now_ns: np.int64) -> None:
    while stack and ends[stack[-1]] <= now_ns:
        stack.pop()


def _shifted(tasks: Tasks, offset_ns: int) -> Tasks:
    return replace(tasks, start_ns=tasks.start_ns + offset_ns, end_ns=tasks.end_ns + offset_ns)


def view_rank(trace: Trace) -> RankView:
    """Link the calls and device tasks of *trace* and put them on the clock of the host."""
    calls, call_of_correlation, repeated = _calls_of(trace)
    device = _device_of(trace, call_of_correlation)
    skew_ns = _skew_ns(calls, device)
    return RankView(trace, calls, _shifted(device, skew_ns), skew_ns, repeated)


def _calls_of(trace: Trace) -> tuple[Calls, dict[int, int], int]:
    """Outer calls, the call of each correlation, and how many calls repeat one."""
    columns, ends = trace.columns, trace.columns.end_ns
    kinds = np.array([kind_of_call(name) for name in trace.names], dtype=np.int64)
    kept: list[int] = []
    outer: dict[int, int] = {}
    call_of_correlation: dict[int, int] = {}
    repeated = 0
    for row in columns.rows_in(Category.RUNTIME_CALL).tolist():
        thread = int(columns.thread[row])
        above = kept[outer[thread]] if thread in outer else row
        # Whether it is part of the call before; stamps are rounded, so kinds decide first.
        is_plain = kinds[columns.name[row]] == kinds[columns.name[above]] == CallKind.OTHER
        is_shorter = columns.duration_ns[row] < columns.duration_ns[above]
        if not (is_plain and is_shorter and ends[row] <= ends[above]):
            outer[thread] = len(kept)
            kept.append(row)
        call, correlation = outer[thread], int(columns.correlation[row])
        if correlation != ABSENT:
            repeated += call_of_correlation.setdefault(correlation, call) != call
    picked = np.array(kept, dtype=np.int64)
    calls = Calls(
        row=picked,
        start_ns=columns.start_ns[picked],
        end_ns=ends[picked],
        thread=columns.thread[picked],
        kind=kinds[columns.name[picked]],
    )
    return calls, call_of_correlation, repeated


def _device_of(trace: Trace, call_of_correlation: dict[int, int]) -> DeviceTasks:
    columns = trace.columns
    rows = columns.rows_in(*DEVICE_WORK)
    rows = rows[np.lexsort((columns.correlation[rows], columns.start_ns[rows]))]
    is_nccl = np.array([is_communication(name) for name in trace.names], dtype=bool)
    calls = [call_of_correlation.get(int(c), _NOT_LAUNCHED) for c in columns.correlation[rows]]
    return DeviceTasks(
        row=rows,
        start_ns=columns.start_ns[rows],
        end_ns=columns.end_ns[rows],
        # Two devices of one process may number their streams alike.
        stream=columns.stream[rows] + (np.maximum(columns.device[rows], 0) << 32),
        call=np.array(calls, dtype=np.int64),
        is_copy=columns.category[rows] == Category.MEMORY_COPY,
        is_collective=is_nccl[columns.name[rows]],
    )


def _skew_ns(calls: Calls, device: DeviceTasks) -> int:
    linked = device.call != _NOT_LAUNCHED
    if not linked.any():
        return 0
    delays = device.start_ns[linked] - calls.start_ns[device.call[linked]]
    shortest = float(np.percentile(delays, 1))
    low, high = _PLAUSIBLE_LAUNCH_NS
    return 0 if low <= shortest <= high else round(SHORTEST_LAUNCH_NS - shortest)
