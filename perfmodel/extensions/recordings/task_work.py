"""Task work: what each recorded device task computed or moved, and how that is known.

A task with known work can be priced again for another machine. The shapes of the operator around
its launch give it exactly; without shapes its name, grid and duration give an estimate. A task
launched before the window is assumed to do the same as another one with its name and grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from embeddings.table import MOST_TABLES, Lookup
from perfmodel.base.dtypes import DType
from perfmodel.extensions.recordings.kernel_estimates import (
    estimate_work,
    estimating_device,
    is_gemm_kernel,
)
from perfmodel.extensions.recordings.operator_calls import call_of_detail
from perfmodel.extensions.recordings.operators.calls import OperatorCall
from perfmodel.extensions.recordings.operators.works import (
    is_fused_lookup,
    lookup_of_call,
    works_of_call,
)
from perfmodel.extensions.recordings.rank_view import NO_OPERATOR, RankView, plain
from perfmodel.graph.ops import Copy, CopyRoute, EmbeddingOp, MemoryBound, Pass, Work, Works
from traces.trace import ABSENT, Category

_ROUTES = {
    "htod": CopyRoute.HOST_TO_DEVICE,
    "dtoh": CopyRoute.DEVICE_TO_HOST,
    "dtod": CopyRoute.DEVICE_TO_DEVICE,
}
_WEIGHT_WORDS = ("wgrad", "wrw", "bwdwrw", "weight")
_MOST_BANDWIDTHS = 3.0
"""Shapes that would need more than this many times the memory bandwidth are not the moved bytes."""


UNKNOWN = -1
_COPIES = (Category.MEMORY_COPY, Category.MEMORY_SET)


class WorkReader:
    """Finds the work of every device task of a rank; `operators` holds their operators' rows.

    `number` holds the place of the work of each task in `works`, or UNKNOWN, and `is_estimated`
    whether it is not counted from shapes. Equal works are kept once: there may be a million tasks.
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
        self._numbers: dict[Work, int] = {}
        self._estimates: dict[tuple[int, int, int, bool], Work] = {}
        self._details: dict[int, dict[str, Any]] = {}
        device, columns = view.device, view.trace.columns
        self._names = columns.name[device.row]
        self._lengths_ns = plain(device.end_ns - device.start_ns)
        self.number = np.full(len(device), UNKNOWN, dtype=np.int64)
        self.is_estimated = np.zeros(len(device), dtype=bool)
        is_copy = np.isin(columns.category[device.row], _COPIES) & ~device.is_collective
        for task in np.flatnonzero(is_copy).tolist():
            self._find_copy(task)
        is_kernel = ~is_copy & ~device.is_collective & (self.operators != NO_OPERATOR)
        tasks = np.flatnonzero(is_kernel)
        tasks = tasks[np.argsort(self.operators[tasks], kind="stable")]
        rows, firsts = np.unique(self.operators[tasks], return_index=True)
        bounds = [*firsts.tolist(), len(tasks)]
        for row, (first, last) in zip(rows.tolist(), pairwise(bounds), strict=True):
            self._find(row, tasks[first:last].tolist())
        self._find_unlaunched()

    @property
    def works(self) -> tuple[Work, ...]:
        """All works, each once."""
        return tuple(self._numbers)

    def _set(self, task: int, work: Work) -> None:
        self.number[task] = self._numbers.setdefault(work, len(self._numbers))

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

    def _find_copy(self, task: int) -> None:
        """Copies and sets state their size."""
        row, columns = int(self.view.device.row[task]), self.view.trace.columns
        name, size_bytes = self.view.task_name(task).lower(), int(columns.size_bytes[row])
        route = next((route for word, route in _ROUTES.items() if word in name), None)
        if size_bytes == ABSENT:
            # The tensor that the operator around a copy copies has the size.
            operator = int(self.operators[task])
            call = self.call_at(operator) if operator != NO_OPERATOR else None
            if call is not None and call.name.endswith("copy_") and len(call.tensors) > 1:
                size_bytes = call.tensors[1].size_bytes
        is_known = 0 <= size_bytes < 2**48
        if is_known and columns.category[row] == Category.MEMORY_SET:
            self._set(task, MemoryBound("fill", 0, size_bytes, DType.INT8))
        elif is_known and route is not None:
            self._set(task, Copy(route, size_bytes, is_pinned="pageable" not in name))
        else:
            self._estimate(task, NO_OPERATOR)

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
        lengths_ns = [self._lengths_ns[task] for task in tasks]
        total_ns = sum(lengths_ns)
        moved_bytes = work.read_bytes + work.write_bytes
        fits_bytes = (total_ns + 2_000) * self.device.memory_bandwidth_bytes_per_s / 1e9
        if moved_bytes > _MOST_BANDWIDTHS * fits_bytes:
            for task in tasks:
                self._estimate(task, row)
            return
        for task, length_ns in zip(tasks, lengths_ns, strict=True):
            share = length_ns / total_ns if total_ns else 1 / len(tasks)
            shared = work
            if share != 1:
                read_bytes, write_bytes = work.read_bytes * share, work.write_bytes * share
                shared = replace(work, read_bytes=round(read_bytes), write_bytes=round(write_bytes))
            self._set(task, shared)

    def _assign(self, works: Works, tasks: Sequence[int], row: int) -> None:
        """The main kernels of an operator do its *works*; the other kernels are estimated.

        A convolution has two in its backward pass, distinguished by the names of their kernels.
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
                self._set(task, works[-1 if is_weight else 0])
            else:
                self._estimate(task, row)

    def _estimate(self, task: int, operator: int) -> None:
        trace = self.view.trace
        is_batched = operator != NO_OPERATOR and "bmm" in trace.name_of(operator)
        detail = int(trace.columns.detail[self.view.device.row[task]])
        key = (int(self._names[task]), detail, self._lengths_ns[task], is_batched)
        if key not in self._estimates:
            if detail not in self._details:
                self._details[detail] = trace.detail_of(int(self.view.device.row[task]))
            self._estimates[key] = estimate_work(
                trace.names[key[0]],
                key[2],
                self.device,
                detail=self._details[detail],
                is_batched=is_batched,
            )
        self.is_estimated[task] = True
        self._set(task, self._estimates[key])

    def _find_unlaunched(self) -> None:
        """Tasks without a launch do the work of a task with their name and grid."""
        is_collective = self.view.device.is_collective
        left = np.flatnonzero((self.number == UNKNOWN) & ~is_collective).tolist()
        if not left:
            return
        details = self.view.trace.columns.detail[self.view.device.row]
        wanted = {(int(self._names[task]), int(details[task])) for task in left}
        known: dict[tuple[int, int], int] = {}
        # Counted work wins over estimated; of several tasks the last decides.
        for is_estimated in (True, False):
            found = (self.number != UNKNOWN) & (self.is_estimated == is_estimated)
            for task in np.flatnonzero(found).tolist():
                key = (int(self._names[task]), int(details[task]))
                if key in wanted and (not is_estimated or key not in known):
                    known[key] = task
        for task in left:
            key = (int(self._names[task]), int(details[task]))
            if key not in known or key[1] == ABSENT:
                self._estimate(task, NO_OPERATOR)
                continue
            self.number[task] = self.number[known[key]]
            self.is_estimated[task] = self.is_estimated[known[key]]


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
