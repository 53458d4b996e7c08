"""Steps: where one iteration of a recorded job ends and the next begins.

On the device side: the end of the same collective in successive iterations.
The profiler's own step marks are host time, and the host runs ahead.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.recordings.rank_view import RankView
from traces.trace import Category

_STEP_WORD = "ProfilerStep#"


def count_profiler_steps(view: RankView) -> int:
    """How many steps the profiler marked on this rank."""
    rows = np.flatnonzero(view.trace.columns.is_in(Category.HOST_ANNOTATION))
    return sum(view.trace.name_of(row).startswith(_STEP_WORD) for row in rows.tolist())


def step_ends(signatures: Sequence[object], profiler_steps: int) -> list[int]:
    """Positions in *signatures* that end a step: the last one, and its like before it.

    The sequence must repeat all the way. Of several lengths that fit, the one
    that comes nearest to the number of marked steps is taken, then the shortest.
    """
    length = len(signatures)
    fitting = [
        period
        for period in range(1, length // 2 + 1)
        if all(signatures[i] == signatures[i + period] for i in range(length - period))
    ]
    if not fitting:
        return []
    wanted = max(profiler_steps, 1)
    period = min(fitting, key=lambda period: (abs(length / period - wanted), period))
    return list(range(length - 1, -1, -period))[::-1]


def last_tasks_of_profiler_steps(view: RankView) -> list[int]:
    """The device task that ended last of those launched in each marked step."""
    columns = view.trace.columns
    rows = np.flatnonzero(columns.is_in(Category.HOST_ANNOTATION))
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
