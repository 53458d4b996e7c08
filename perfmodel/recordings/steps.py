"""Steps: where one iteration of a recorded job ends and the next begins.

On the device side: the end of the same collective in successive iterations.
The profiler's own step marks are host time, and the host runs ahead.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.recordings.collective_calls import CollectiveCall
from perfmodel.recordings.rank_view import RankView
from traces.trace import Category

_MIN_REPEATED_RATIO = 0.7
_STEP_WORD = "ProfilerStep#"


def count_profiler_steps(view: RankView) -> int:
    """How many steps the profiler marked on this rank."""
    rows = view.trace.columns.rows_in(Category.HOST_ANNOTATION)
    return sum(view.trace.name_of(row).startswith(_STEP_WORD) for row in rows.tolist())


def step_ends(calls: Sequence[CollectiveCall], profiler_steps: int) -> list[int]:
    """Positions in *calls* that end a step: the last one, and its like before it.

    The sequence must repeat over most of its length; at the beginning of the
    window some may be missing. Of several lengths that fit, the one that comes
    nearest to the number of marked steps is taken, then the shortest.
    """
    length = len(calls)
    repeated = {period: _repeated(calls, period) for period in range(1, length // 2 + 1)}
    fitting = [
        period
        for period, count in repeated.items()
        if count >= max(period, _MIN_REPEATED_RATIO * (length - period))
    ]
    if not fitting:
        return []
    wanted = profiler_steps or length
    period = min(fitting, key=lambda period: (abs(length / period - wanted), period))
    first = length - period - repeated[period]
    return list(range(length - 1, first - 1, -period))[::-1]


def _repeated(calls: Sequence[CollectiveCall], period: int) -> int:
    """How many calls, counted from the end, are like the one a *period* later."""
    count = 0
    while count < len(calls) - period:
        later = calls[len(calls) - 1 - count]
        if not _are_alike(calls[len(calls) - 1 - count - period], later):
            break
        count += 1
    return count


def _are_alike(one: CollectiveCall, other: CollectiveCall) -> bool:
    """Same signature; where one of the two has no metadata, same kind."""
    if (one.collective is None) == (other.collective is None):
        return one.signature == other.signature and one.group == other.group
    return one.kind is other.kind


def last_tasks_of_profiler_steps(view: RankView) -> list[int]:
    """The device task that ended last of those launched in each marked step."""
    columns = view.trace.columns
    rows = columns.rows_in(Category.HOST_ANNOTATION)
    device, launched = view.device, view.device.call >= 0
    call_start_ns = np.where(launched, view.calls.start_ns[np.maximum(device.call, 0)], -1)
    ends = []
    for row in rows.tolist():
        if not view.trace.name_of(row).startswith(_STEP_WORD):
            continue
        low_ns = columns.start_ns[row]
        high_ns = low_ns + columns.duration_ns[row]
        tasks = np.flatnonzero((call_start_ns >= low_ns) & (call_start_ns < high_ns))
        if len(tasks):
            ends.append(int(tasks[np.argmax(device.end_ns[tasks])]))
    return ends
