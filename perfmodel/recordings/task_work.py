"""Task work: what each recorded device task computed or moved, and how that is known.

A task with known work can be priced again for another machine. The shapes of the operator around
its launch give it exactly; without shapes its name, grid and duration give an estimate. A task
launched before the window is assumed to do the same as another one with its name and grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from embeddings.table import MOST_TABLES, Lookup
from perfmodel.base.dtypes import DType
from perfmodel.graph.calls import OperatorCall
from perfmodel.graph.operators import is_fused_lookup, lookup_of_call, works_of_call
from perfmodel.graph.ops import Copy, CopyRoute, EmbeddingOp, MemoryBound, Pass, Work, Works
from perfmodel.recordings.kernel_estimates import estimate_work, estimating_device, is_gemm_kernel
from perfmodel.recordings.operator_calls import call_of_detail
from perfmodel.recordings.rank_view import NO_OPERATOR, RankView
from traces.trace import ABSENT, Category

_ROUTES = {
    "htod": CopyRoute.HOST_TO_DEVICE,
    "dtoh": CopyRoute.DEVICE_TO_HOST,
    "dtod": CopyRoute.DEVICE_TO_DEVICE,
}
_WEIGHT_WORDS = ("wgrad", "wrw", "bwdwrw", "weight")
_MOST_BANDWIDTHS = 3.0
"""Shapes that would need more than this many times the memory bandwidth are not the moved bytes."""


class WorkReader:
    """Finds the work of every device task of a rank; `operators` holds their operators' rows.

    `works` holds the work by task, `estimated` the tasks whose work is not counted from shapes.
    *executed* holds calls, by row, that an execution trace describes better.
    """

    def __init__(self, view: RankView, executed: Mapping[int, OperatorCall] | None = None) -> None:
        self.view = view
        self.executed = executed or {}
        self.operators = view.operators_of_tasks()
        self.device = estimating_device(view.trace.device_names)
        self._calls: dict[tuple[int, int], OperatorCall | None] = {}
        self._works_of_id: dict[int, Works] = {}
        self._lookups = _find_lookups(self)
        self.works: dict[int, Work] = {}
        self.estimated: set[int] = set()
        tasks_of: dict[int, list[int]] = {}
        for task, is_collective in enumerate(view.device.is_collective.tolist()):
            if not is_collective:
                tasks_of.setdefault(self.operators[task], []).append(task)
        for row, tasks in tasks_of.items():
            kernels = [task for task in tasks if not self._find_copy(task)]
            if row != NO_OPERATOR and kernels:
                self._find(row, kernels)
        self._find_unlaunched()

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

    def _find(self, row: int, kernels: Sequence[int]) -> None:
        """Find the work of the *kernels* of the operator in *row*."""
        call = self.call_at(row)
        works = () if call is None else self._works_of_call(call)
        if not works:
            for task in kernels:
                self._estimate(task, row)
        elif isinstance(works[0], MemoryBound):
            self._share(works[0], kernels, row)
        else:
            self._assign(works, kernels, row)

    def _find_copy(self, task: int) -> bool:
        """Copies and sets state their size."""
        row, columns = int(self.view.device.row[task]), self.view.trace.columns
        name, category = self.view.task_name(task).lower(), columns.category[row]
        if category not in (Category.MEMORY_COPY, Category.MEMORY_SET):
            return False
        size_bytes = int(columns.size_bytes[row])
        route = next((route for word, route in _ROUTES.items() if word in name), None)
        if size_bytes == ABSENT:
            # The tensor that the operator around a copy copies has the size.
            operator = self.operators[task]
            call = self.call_at(operator) if operator != NO_OPERATOR else None
            if call is not None and call.name.endswith("copy_") and len(call.tensors) > 1:
                size_bytes = call.tensors[1].size_bytes
        is_known = 0 <= size_bytes < 2**48
        if is_known and category == Category.MEMORY_SET:
            self.works[task] = MemoryBound("fill", 0, size_bytes, DType.INT8)
        elif is_known and route is not None:
            self.works[task] = Copy(route, size_bytes, is_pinned="pageable" not in name)
        else:
            self._estimate(task, NO_OPERATOR)
        return True

    def _works_of_call(self, call: OperatorCall) -> Works:
        is_backward = _is_lookup_backward(call.name)
        if is_backward or is_fused_lookup(call.name):
            lookup = self._lookups.get(_lookup_key(call, is_backward=is_backward))
            direction = Pass.BACKWARD if is_backward else Pass.FORWARD
            return () if lookup is None else (EmbeddingOp(lookup, direction),)
        # Calls are kept, so no other call gets the id of one.
        if id(call) not in self._works_of_id:
            self._works_of_id[id(call)] = works_of_call(call)
        return self._works_of_id[id(call)]

    def _share(self, work: MemoryBound, tasks: Sequence[int], row: int) -> None:
        """Kernels of one operator share its traffic as they share its time."""
        lengths_ns = [self.view.device.length_ns(task) for task in tasks]
        total_ns = sum(lengths_ns)
        moved_bytes = work.read_bytes + work.write_bytes
        fits_bytes = (total_ns + 2_000) * self.device.memory_bandwidth_bytes_per_s / 1e9
        if moved_bytes > _MOST_BANDWIDTHS * fits_bytes:
            for task in tasks:
                self._estimate(task, row)
            return
        for task, length_ns in zip(tasks, lengths_ns, strict=True):
            share = length_ns / total_ns if total_ns else 1 / len(tasks)
            self.works[task] = replace(
                work,
                read_bytes=round(work.read_bytes * share),
                write_bytes=round(work.write_bytes * share),
            )

    def _assign(self, works: Works, tasks: Sequence[int], row: int) -> None:
        """The main kernels of an operator do its *works*; the other kernels are estimated.

        A convolution has two in its backward pass, told apart by the names of their kernels.
        """
        names = {task: self.view.task_name(task).lower() for task in tasks}
        gemms = [task for task in tasks if is_gemm_kernel(names[task])]
        candidates = tasks if isinstance(works[0], EmbeddingOp) else gemms or tasks
        main = {max(candidates, key=self.view.device.length_ns)}
        if len(works) > 1 and gemms:
            main = set(gemms)
        for task in tasks:
            if task in main:
                is_weight = any(word in names[task] for word in _WEIGHT_WORDS)
                self.works[task] = works[-1 if is_weight else 0]
            else:
                self._estimate(task, row)

    def _estimate(self, task: int, operator: int) -> None:
        trace = self.view.trace
        self.estimated.add(task)
        self.works[task] = estimate_work(
            self.view.task_name(task),
            self.view.device.length_ns(task),
            self.device,
            detail=trace.detail_of(int(self.view.device.row[task])),
            is_batched=operator != NO_OPERATOR and "bmm" in trace.name_of(operator),
        )

    def _find_unlaunched(self) -> None:
        """Tasks without a launch do the work of a task with their name and grid."""
        columns, rows = self.view.trace.columns, self.view.device.row
        keys = list(zip(columns.name[rows].tolist(), columns.detail[rows].tolist(), strict=True))
        known: dict[tuple[int, int], int] = {}
        for task in self.works:
            if keys[task] not in known or task not in self.estimated:
                known[keys[task]] = task
        for task, key in enumerate(keys):
            if task in self.works or self.view.device.is_collective[task]:
                continue
            if key not in known or key[1] == ABSENT:
                self._estimate(task, NO_OPERATOR)
                continue
            self.works[task] = self.works[known[key]]
            if known[key] in self.estimated:
                self.estimated.add(task)


def _is_lookup_backward(name: str) -> bool:
    return "SplitLookupFunction" in name or "embedding_backward_codegen" in name


def _lookup_key(call: OperatorCall, *, is_backward: bool) -> tuple[int, int]:
    """Samples, and the width of all tables if the backward pass states it, else 0."""
    if is_backward:
        gradients = call.operands(0)
        shape = gradients[0].shape if gradients else ()
        return (shape[0], shape[1]) if len(shape) == 2 else (0, 0)
    # Any width does: the samples do not depend on it.
    lookup = lookup_of_call(call, total_width=MOST_TABLES)
    return (0, 0) if lookup is None else (lookup.batch_size, 0)


def _find_lookups(reader: WorkReader) -> dict[tuple[int, int], Lookup]:
    """Fused lookups by samples alone, and by the samples and width of their backward pass."""
    trace = reader.view.trace
    is_wanted = [is_fused_lookup(name) or _is_lookup_backward(name) for name in trace.names]
    if not any(is_wanted):
        return {}
    rows = trace.columns.rows_in(Category.HOST_OPERATOR).tolist()
    calls = [reader.call_at(row) for row in rows if is_wanted[int(trace.columns.name[row])]]
    known = [call for call in calls if call is not None]
    widths = [
        _lookup_key(call, is_backward=True) for call in known if not is_fused_lookup(call.name)
    ]
    found: dict[tuple[int, int], Lookup] = {}
    for call in known:
        if is_fused_lookup(call.name):
            samples = _lookup_key(call, is_backward=False)[0]
            width = next((width for batch, width in widths if batch == samples), None)
            lookup = lookup_of_call(call, width)
            if lookup is not None:
                found.setdefault((samples, 0), lookup)
                found.setdefault((samples, width or 0), lookup)
    return found
