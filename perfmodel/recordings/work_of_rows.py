"""Work of rows: what a recorded device task did, where the trace tells.

A task whose work is known can be priced anew for another machine; one whose
work is not known keeps its recorded duration.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import Copy, CopyRoute, Gemm, Work
from perfmodel.recordings.rank_view import Int64s, RankView
from traces.trace import ABSENT, Category

NO_OPERATOR = -1


def innermost_operators(view: RankView) -> Int64s:
    """The row of the innermost operator or annotation around each call, or -1."""
    return _enclosing(view, is_outermost=False)


def outermost_operators(view: RankView) -> Int64s:
    """The row of the outermost operator around each call, annotations left out, or -1."""
    return _enclosing(view, is_outermost=True)


def _enclosing(view: RankView, *, is_outermost: bool) -> Int64s:
    columns = view.trace.columns
    wanted = [Category.HOST_OPERATOR]
    if not is_outermost:
        wanted.append(Category.HOST_ANNOTATION)
    rows = np.flatnonzero(columns.is_in(*wanted))
    ends, starts, threads = columns.end_ns, columns.start_ns, columns.thread
    result = np.full(len(view.calls), NO_OPERATOR, dtype=np.int64)
    stacks: dict[int, list[int]] = {}
    place = 0
    row_list = rows.tolist()
    for call, row in enumerate(view.calls.row.tolist()):
        while place < len(row_list) and starts[row_list[place]] <= starts[row]:
            operator = row_list[place]
            stack = stacks.setdefault(int(threads[operator]), [])
            while stack and ends[stack[-1]] <= starts[operator]:
                stack.pop()
            stack.append(operator)
            place += 1
        stack = stacks.get(int(threads[row]), [])
        while stack and ends[stack[-1]] <= starts[row]:
            stack.pop()
        if stack:
            result[call] = stack[0] if is_outermost else stack[-1]
    return result


_DTYPES = {
    "float": DType.FP32,
    "double": DType.FP64,
    "c10::half": DType.FP16,
    "c10::bfloat16": DType.BF16,
}
_GEMM_WORDS = ("gemm", "cutlass", "cijk_", "sm80_xmma", "sm90_xmma", "nvjet")
_ROUTES = (
    ("htod", CopyRoute.HOST_TO_DEVICE),
    ("dtoh", CopyRoute.DEVICE_TO_HOST),
    ("dtod", CopyRoute.DEVICE_TO_DEVICE),
)


class WorkReader:
    """Looks up the operator behind each device task of a rank."""

    def __init__(self, view: RankView) -> None:
        self.view = view
        self.operator_of_call = innermost_operators(view)

    def work_of(self, task: int) -> Work | None:
        """The work of *task*, or None where it is not known."""
        view = self.view
        row = int(view.device.row[task])
        name = view.trace.name_of(row).lower()
        if view.device.is_copy[task]:
            return self._copy(row, name)
        if not any(word in name for word in _GEMM_WORDS):
            return None
        call = int(view.device.call[task])
        operator = int(self.operator_of_call[call]) if call >= 0 else NO_OPERATOR
        if operator == NO_OPERATOR:
            return None
        return _gemm(view.trace.name_of(operator), view.trace.detail_of(operator))

    def _copy(self, row: int, name: str) -> Work | None:
        size_bytes = int(self.view.trace.columns.size_bytes[row])
        route = next((route for word, route in _ROUTES if word in name), None)
        if route is None or size_bytes == ABSENT:
            return None
        return Copy(route, size_bytes, is_pinned="pageable" not in name)


def _gemm(operator: str, detail: dict[str, Any]) -> Gemm | None:
    shapes, types = detail.get("Input Dims"), detail.get("Input type")
    if not isinstance(shapes, list) or not isinstance(types, list):
        return None
    first = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}.get(operator)
    if first is None or len(shapes) < first + 2 or len(types) <= first:
        return None
    left, right = shapes[first], shapes[first + 1]
    dtype = _DTYPES.get(str(types[first]).lower())
    is_batched = operator.endswith("bmm")
    if dtype is None or not _are_shapes(left, right, 3 if is_batched else 2):
        return None
    batch = left[0] if is_batched else 1
    return Gemm(m=left[-2], n=right[-1], k=left[-1], dtype=dtype, batch=batch)


def _are_shapes(left: object, right: object, length: int) -> bool:
    return all(
        isinstance(shape, list)
        and len(shape) == length
        and all(isinstance(extent, int) and extent > 0 for extent in shape)
        for shape in (left, right)
    )
