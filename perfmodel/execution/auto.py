"""AutoExecutor: in this process, until the work is big enough to pay for Ray.

The clock is looked at to choose the place, never to make the answer, which is
the same in both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from perfmodel.engine.replay import Replay
from perfmodel.execution.executor import Executor, Item, Result, Shared
from perfmodel.execution.serial import SerialExecutor
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph

# Measured on two cores with Ray 2.60: a local cluster takes 4 s to start and its workers 2 s to
# be ready. One process replays 9 million tasks a second where 4,878 ranks meet a hundred
# times, 80 million where they meet ten times; 15 stands for jobs with many collectives.
# With two workers half of the time is saved, so Ray pays from 12 s of serial work on: 180
# million tasks. With more workers it pays earlier.
START_S = 6.0
TASKS_PER_S = 15e6


class AutoExecutor:
    """Starts serial; *open_ray* is called once, when Ray first pays."""

    def __init__(self, open_ray: Callable[[], Executor], *, workers: int) -> None:
        self._open_ray = open_ray
        self._workers = workers
        self._serial = SerialExecutor()
        self._ray: Executor | None = None

    @property
    def description(self) -> str:
        """Where the work was done so far, in a few words."""
        return self._serial.description if self._ray is None else self._ray.description

    def replay(self, job: JobGraph, durations: DurationTable, iterations: int = 1) -> Replay:
        """Replay *iterations* of *job*."""
        steps = job.task_count * iterations * durations.vector_count
        return self._place_for(steps / TASKS_PER_S).replay(job, durations, iterations)

    def map(
        self,
        function: Callable[[Shared, Item], Result],
        shared: Shared,
        items: Sequence[Item],
    ) -> list[Result]:
        """`function(shared, item)` for all *items*, in their order.

        The first item is worked on here, and tells how long the others will take.
        """
        began_s = time.monotonic()
        answers = self._serial.map(function, shared, items[:1])
        item_s = time.monotonic() - began_s
        others = items[1:]
        place = self._place_for(item_s * len(others))
        return answers + place.map(function, shared, others)

    def _place_for(self, serial_s: float) -> Executor:
        """Where work that takes *serial_s* here is done sooner."""
        saved_s = serial_s * (1 - 1 / self._workers)
        if saved_s <= START_S:
            return self._serial
        if self._ray is None:
            self._ray = self._open_ray()
        return self._ray
