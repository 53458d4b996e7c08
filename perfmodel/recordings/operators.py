"""Operators: inside which host operator each runtime call was made."""

from __future__ import annotations

import numpy as np

from perfmodel.recordings.rank_view import Int64s, RankView
from traces.trace import Category

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
