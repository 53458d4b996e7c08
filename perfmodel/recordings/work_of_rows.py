"""Work of rows: what each recorded device task did, and how that is known.

A task whose work is known can be priced anew for another machine. Shapes of
the operator around its launch say it best; where there are none its name, grid
and duration give an estimate. A task launched before the window is taken to do
what another one with the same name and grid does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from embeddings.table import MOST_TABLES, Lookup
from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import (
    Attention,
    Convolution,
    Copy,
    CopyRoute,
    EmbeddingOp,
    Gemm,
    MemoryBound,
    Pass,
    Work,
)
from perfmodel.recordings.kernel_estimates import (
    estimate_work,
    estimating_device,
    is_product,
    parse_launch,
)
from perfmodel.recordings.operator_calls import OperatorCall, call_of_detail
from perfmodel.recordings.operator_work import (
    gradient_of_weights,
    is_lookup,
    lookup_of_call,
    work_of_call,
)
from perfmodel.recordings.rank_view import NO_OPERATOR, RankView
from traces.trace import ABSENT, Category

_ROUTES = (
    ("htod", CopyRoute.HOST_TO_DEVICE),
    ("dtoh", CopyRoute.DEVICE_TO_HOST),
    ("dtod", CopyRoute.DEVICE_TO_DEVICE),
)
_WEIGHT_WORDS = ("wgrad", "wrw", "bwdwrw", "weight")
_MOST_BANDWIDTHS = 3.0
"""Shapes that would need more than so many times the memory's rate are not what was moved."""


class WorkSource(Enum):
    """How the work of a task is known; the value is the word used in reports."""

    SHAPES = "shapes"
    ESTIMATE = "estimate"


@dataclass(frozen=True, slots=True)
class FoundWork:
    """The work of a device task, and how it is known."""

    work: Work
    source: WorkSource


class WorkReader:
    """Finds the work of every device task of a rank.

    *executed* are calls that an execution trace knows more about, by row.
    """

    def __init__(self, view: RankView, executed: Mapping[int, OperatorCall] | None = None) -> None:
        self.view = view
        self.executed = executed or {}
        self.operator_of_call = view.operators_of_calls()
        self.device = estimating_device(view.trace.device_names)
        self._calls: dict[tuple[int, int], OperatorCall | None] = {}
        self._works: dict[int, Work | None] = {}
        self._lookups = _find_lookups(self)
        self._found: dict[int, FoundWork] = {}
        for row, tasks in self._tasks_of_operators().items():
            self._find(row, tasks)
        self._lend()

    def found(self, task: int) -> FoundWork | None:
        """The work of *task* and how it is known."""
        return self._found.get(task)

    def operator_of(self, task: int) -> int:
        """The row of the operator around the launch of *task*, or NO_OPERATOR."""
        call = int(self.view.device.call[task])
        return int(self.operator_of_call[call]) if call >= 0 else NO_OPERATOR

    def call_at(self, row: int) -> OperatorCall | None:
        """The call of the operator in *row*, if its shapes are known."""
        if row in self.executed:
            return self.executed[row]
        columns = self.view.trace.columns
        key = int(columns.name[row]), int(columns.detail[row])
        if key not in self._calls:
            detail = self.view.trace.detail_of(row)
            self._calls[key] = call_of_detail(self.view.trace.name_of(row), detail)
        return self._calls[key]

    def _tasks_of_operators(self) -> dict[int, list[int]]:
        tasks: dict[int, list[int]] = {}
        for task in range(len(self.view.device)):
            if not self.view.device.is_collective[task]:
                tasks.setdefault(self.operator_of(task), []).append(task)
        return tasks

    def _find(self, row: int, tasks: Sequence[int]) -> None:
        kernels = [task for task in tasks if not self._find_copy(task)]
        if row == NO_OPERATOR or not kernels:
            return
        call = self.call_at(row)
        work = self._work_of_call(call)
        if call is None or work is None:
            for task in kernels:
                self._estimate(task, row)
        elif isinstance(work, MemoryBound):
            self._share(work, kernels, row)
        else:
            self._give(work, kernels, row)

    def _find_copy(self, task: int) -> bool:
        """Copies and sets say their size themselves."""
        row = int(self.view.device.row[task])
        name = self.view.trace.name_of(row).lower()
        category = self.view.trace.columns.category[row]
        if category not in (Category.MEMORY_COPY, Category.MEMORY_SET):
            return False
        size_bytes = int(self.view.trace.columns.size_bytes[row])
        route = next((route for word, route in _ROUTES if word in name), None)
        if size_bytes == ABSENT:
            size_bytes = self._copied_bytes(task)
        if not 0 <= size_bytes < 2**48:
            self._estimate(task, NO_OPERATOR)
        elif category == Category.MEMORY_SET:
            work = MemoryBound("fill", 0, size_bytes, _BYTE)
            self._found[task] = FoundWork(work, WorkSource.SHAPES)
        elif route is not None:
            copy = Copy(route, size_bytes, is_pinned="pageable" not in name)
            self._found[task] = FoundWork(copy, WorkSource.SHAPES)
        else:
            self._estimate(task, NO_OPERATOR)
        return True

    def _copied_bytes(self, task: int) -> int:
        """The tensor that the operator around a copy copies; ABSENT where it does not say."""
        row = self.operator_of(task)
        call = self.call_at(row) if row != NO_OPERATOR else None
        if call is None or not call.name.endswith("copy_") or len(call.tensors) < 2:
            return ABSENT
        return call.tensors[1].size_bytes

    def _work_of_call(self, call: OperatorCall | None) -> Work | None:
        if call is None:
            return None
        if is_lookup(call.name) or _is_lookup_backward(call.name):
            is_backward = _is_lookup_backward(call.name)
            lookup = self._lookups.get(_lookup_key(call, is_backward=is_backward))
            direction = Pass.BACKWARD if is_backward else Pass.FORWARD
            return None if lookup is None else EmbeddingOp(lookup, direction)
        # Calls are kept, so that no other gets the id of one.
        if id(call) not in self._works:
            self._works[id(call)] = work_of_call(call)
        return self._works[id(call)]

    def _share(self, work: MemoryBound, tasks: Sequence[int], row: int) -> None:
        """Kernels of one operator share its traffic as they share its time."""
        total_ns = sum(self._length_ns(task) for task in tasks)
        moved_bytes = work.read_bytes + work.write_bytes
        fits_bytes = total_ns * self.device.memory_bandwidth_bytes_per_s / 1e9
        floor_bytes = 2_000 * self.device.memory_bandwidth_bytes_per_s / 1e9
        if moved_bytes > _MOST_BANDWIDTHS * (fits_bytes + floor_bytes):
            for task in tasks:
                self._estimate(task, row)
            return
        for task in tasks:
            share = self._length_ns(task) / total_ns if total_ns else 1 / len(tasks)
            part = MemoryBound(
                work.operator,
                round(work.read_bytes * share),
                round(work.write_bytes * share),
                work.dtype,
                row_length=work.row_length,
            )
            self._found[task] = FoundWork(part, WorkSource.SHAPES)

    def _give(self, work: Work, tasks: Sequence[int], row: int) -> None:
        """The kernels that do *work* itself get it; those around them are estimated."""
        main = self._main_tasks(work, tasks)
        for task in tasks:
            if task not in main:
                self._estimate(task, row)
                continue
            given = work
            if isinstance(work, Convolution) and work.direction is Pass.BACKWARD:
                is_of_weights = any(word in self._name(task) for word in _WEIGHT_WORDS)
                given = gradient_of_weights(work) if is_of_weights else work
            self._found[task] = FoundWork(given, WorkSource.SHAPES)

    def _main_tasks(self, work: Work, tasks: Sequence[int]) -> set[int]:
        products = [task for task in tasks if is_product(self._name(task))]
        longest = max(products or tasks, key=self._length_ns)
        if isinstance(work, Convolution) and work.direction is Pass.BACKWARD:
            return set(products) or {longest}
        if isinstance(work, Gemm | Attention | Convolution | EmbeddingOp):
            return {max(tasks, key=self._length_ns) if isinstance(work, EmbeddingOp) else longest}
        return set(tasks)

    def _estimate(self, task: int, operator: int) -> None:
        row = int(self.view.device.row[task])
        trace = self.view.trace
        launch = parse_launch(trace.name_of(row), self._length_ns(task), trace.detail_of(row))
        name = trace.name_of(operator) if operator != NO_OPERATOR else ""
        work = estimate_work(launch, self.device, is_batched="bmm" in name)
        self._found[task] = FoundWork(work, WorkSource.ESTIMATE)

    def _lend(self) -> None:
        """Tasks without a launch do what a task with their name and grid does."""
        columns, rows = self.view.trace.columns, self.view.device.row
        known: dict[tuple[int, int], FoundWork] = {}
        for task, found in self._found.items():
            key = int(columns.name[rows[task]]), int(columns.detail[rows[task]])
            if key not in known or found.source is WorkSource.SHAPES:
                known[key] = found
        for task in range(len(self.view.device)):
            if task in self._found or self.view.device.is_collective[task]:
                continue
            key = int(columns.name[rows[task]]), int(columns.detail[rows[task]])
            if key in known and key[1] != ABSENT:
                self._found[task] = known[key]
            else:
                self._estimate(task, NO_OPERATOR)

    def _name(self, task: int) -> str:
        return self.view.trace.name_of(int(self.view.device.row[task])).lower()

    def _length_ns(self, task: int) -> int:
        return int(self.view.device.end_ns[task] - self.view.device.start_ns[task])


_BYTE = DType.INT8
_LookupKey = tuple[int, int]


def _is_lookup_backward(name: str) -> bool:
    return "SplitLookupFunction" in name or "embedding_backward_codegen" in name


def _lookup_key(call: OperatorCall, *, is_backward: bool) -> _LookupKey:
    """Samples, and the width of all tables where the backward pass says it: else 0."""
    if is_backward:
        gradient = call.tensor(0, rank=2)
        return (0, 0) if gradient is None else (gradient.shape[0], gradient.shape[1])
    # Any width does: the samples do not depend on it.
    lookup = lookup_of_call(call, total_width=MOST_TABLES)
    return (0, 0) if lookup is None else (lookup.batch_size, 0)


def _find_lookups(reader: WorkReader) -> dict[_LookupKey, Lookup]:
    """Fused lookups by samples alone and by samples and width, their backward beside them."""
    trace = reader.view.trace
    forward, widths = [], []
    is_wanted = [is_lookup(name) or _is_lookup_backward(name) for name in trace.names]
    if not any(is_wanted):
        return {}
    for row in trace.columns.rows_in(Category.HOST_OPERATOR).tolist():
        call = reader.call_at(row) if is_wanted[int(trace.columns.name[row])] else None
        if call is None:
            continue
        if is_lookup(call.name):
            forward.append(call)
        else:
            widths.append(_lookup_key(call, is_backward=True))
    found: dict[_LookupKey, Lookup] = {}
    for call in forward:
        samples = _lookup_key(call, is_backward=False)[0]
        width = next((width for batch, width in widths if batch == samples), None)
        lookup = lookup_of_call(call, width)
        if lookup is not None:
            found.setdefault((samples, 0), lookup)
            found.setdefault((samples, width or 0), lookup)
    return found
