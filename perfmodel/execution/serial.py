"""SerialExecutor: everything in this process, one after the other, with no start-up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perfmodel.engine.replay import Replay, replay
from perfmodel.execution.executor import Item, Result, Shared
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph


class SerialExecutor:
    """The executor that is always there."""

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
        return replay(job, durations, iterations=iterations)

    def map(
        self,
        function: Callable[[Shared, Item], Result],
        shared: Shared,
        items: Sequence[Item],
    ) -> list[Result]:
        """`function(shared, item)` for all *items*, in their order."""
        return [function(shared, item) for item in items]
