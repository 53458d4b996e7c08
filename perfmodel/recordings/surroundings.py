"""Surroundings: the operators, ranges and modules around each call of a recording."""

from __future__ import annotations

import numpy as np

from perfmodel.recordings.rank_view import Int64s, RankView
from traces.trace import Category

NO_OPERATOR = -1


def innermost_operators(view: RankView) -> Int64s:
    """The row of the innermost operator or annotation around each call, or -1."""
    rows = view.trace.columns.is_in(Category.HOST_OPERATOR, Category.HOST_ANNOTATION)
    return _around(view, np.flatnonzero(rows), view.calls.thread)


def spans_of_calls(view: RankView) -> list[str]:
    """The ranges around each call that a program or PyTorch named, outermost first, or nothing.

    The thread that runs backward has none of its own: it is in the one that the thread with
    most calls is in at that moment. Steps of the profiler and calls of NCCL are no ranges.
    """
    columns, trace = view.trace.columns, view.trace
    rows = np.flatnonzero(columns.is_in(Category.HOST_ANNOTATION))
    is_range = [not name.startswith(_NO_RANGES) for name in trace.names]
    rows = rows[[is_range[int(name)] for name in columns.name[rows]]] if len(rows) else rows
    found = _around(view, rows, view.calls.thread)
    threads, counts = np.unique(view.calls.thread, return_counts=True)
    if len(threads) > 1:
        main = np.full(len(view.calls), threads[np.argmax(counts)])
        found = np.where(found == NO_OPERATOR, _around(view, rows, main), found)
    paths = _paths(view, rows) | {NO_OPERATOR: ""}
    return [paths[row] for row in found.tolist()]


def modules_of_calls(view: RankView) -> list[str]:
    """The modules around each call as the profiler named them, outermost first, or nothing.

    What backward does belongs to the module whose forward operator it is the gradient of.
    """
    columns = view.trace.columns
    rows = np.flatnonzero(columns.is_in(Category.MODULE))
    if not len(rows):
        return [""] * len(view.calls)
    found = _around(view, rows, view.calls.thread)
    operators = np.flatnonzero(columns.is_in(Category.HOST_OPERATOR) & (columns.sequence >= 0))
    is_backward = columns.forward_thread[operators] > 0
    forward = operators[~is_backward]
    module_of = dict(
        zip(
            columns.sequence[forward].tolist(),
            _around(view, rows, columns.thread[forward], inner=forward).tolist(),
            strict=True,
        )
    )
    around = _around(view, operators[is_backward], view.calls.thread, is_outermost=True)
    for call in np.flatnonzero((found == NO_OPERATOR) & (around != NO_OPERATOR)).tolist():
        found[call] = module_of.get(int(columns.sequence[around[call]]), NO_OPERATOR)
    paths = _paths(view, rows) | {NO_OPERATOR: ""}
    return [paths[row] for row in found.tolist()]


INSIDE = " > "
"""Stands between a range and one inside it."""


def _paths(view: RankView, rows: Int64s) -> dict[int, str]:
    """The names of every range of *rows* and of those around it."""
    columns = view.trace.columns
    stacks: dict[int, list[int]] = {}
    paths: dict[int, str] = {}
    for row in rows[np.argsort(columns.start_ns[rows], kind="stable")].tolist():
        stack = stacks.setdefault(int(columns.thread[row]), [])
        while stack and columns.end_ns[stack[-1]] <= columns.start_ns[row]:
            stack.pop()
        around = paths[stack[-1]] + INSIDE if stack else ""
        paths[row] = around + view.trace.name_of(row).removeprefix("nn.Module: ")
        stack.append(row)
    return paths


_NO_RANGES = ("ProfilerStep", "nccl:", "enumerate(DataLoader)")


def _around(
    view: RankView,
    rows: Int64s,
    thread_of: Int64s,
    *,
    inner: Int64s | None = None,
    is_outermost: bool = False,
) -> Int64s:
    """Of *rows*, the one around each call, or each row of *inner*, on the thread given for it."""
    columns = view.trace.columns
    ends, starts, threads = columns.end_ns, columns.start_ns, columns.thread
    inside = view.calls.row if inner is None else inner
    result = np.full(len(inside), NO_OPERATOR, dtype=np.int64)
    stacks: dict[int, list[int]] = {}
    place = 0
    row_list = rows.tolist()
    for call, row in enumerate(inside.tolist()):
        while place < len(row_list) and starts[row_list[place]] <= starts[row]:
            operator = row_list[place]
            stack = stacks.setdefault(int(threads[operator]), [])
            while stack and ends[stack[-1]] <= starts[operator]:
                stack.pop()
            stack.append(operator)
            place += 1
        stack = stacks.get(int(thread_of[call]), [])
        while stack and ends[stack[-1]] <= starts[row]:
            stack.pop()
        if stack:
            result[call] = stack[0] if is_outermost else stack[-1]
    return result
