"""SerialExecutor: everything in this process, one after the other, with no start-up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perfmodel.engine.layout import FlatJob
from perfmodel.engine.replay import Replay, replay
from perfmodel.engine.sieve import lay_out_sound
from perfmodel.execution.executor import Item, Result, Shared
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph


class SerialExecutor:
    """The executor that is always there. It remembers how the last job was laid out."""

    def __init__(self) -> None:
        self._last: tuple[JobGraph, FlatJob] | None = None

    @property
    def description(self) -> str:
        """Where the work was done so far, in a few words."""
        return "serial"

    @property
    def reads_jobs(self) -> bool:
        """No: there is nobody else."""
        return False

    def replay(self, job: JobGraph, durations: DurationTable, iterations: int = 1) -> Replay:
        """Replay *iterations* of *job*."""
        if self._last is None or self._last[0] is not job:
            self._last = (job, lay_out_sound(job))
        return replay(job, durations, iterations=iterations, layout=self._last[1])

    def map(
        self,
        function: Callable[[Shared, Item], Result],
        shared: Shared,
        items: Sequence[Item],
    ) -> list[Result]:
        """`function(shared, item)` for all *items*, in their order."""
        return [function(shared, item) for item in items]
