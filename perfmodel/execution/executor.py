"""Executor: where replays run, and the one that runs them in this process.

The executor never changes the answer: the same question gives the same bytes on
every executor, whatever the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar

from perfmodel.engine.layout import FlatJob
from perfmodel.engine.replay import Replay, replay
from perfmodel.engine.sieve import lay_out_sound
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")


class ExecutorKind(Enum):
    """Kinds of executors; the value is what `--executor` takes."""

    AUTO = "auto"
    SERIAL = "serial"
    RAY = "ray"


class Executor(Protocol):
    """Runs one big replay, or many small questions."""

    @property
    def description(self) -> str:
        """Where the work has run so far, in a few words."""
        ...

    @property
    def reads_jobs(self) -> bool:
        """Whether workers read their own ranks of a large saved job."""
        ...

    def replay(self, job: JobGraph, durations: DurationTable, iterations: int = 1) -> Replay:
        """Replay *iterations* of *job*."""
        ...

    def map(
        self,
        function: Callable[[Shared, Item], Result],
        shared: Shared,
        items: Sequence[Item],
    ) -> list[Result]:
        """`function(shared, item)` for all *items*, in their order.

        *function* must be defined at the top level of a module. It takes and returns
        frozen values. If it raises, the error of the first failing item is raised here.
        """
        ...


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """The process that runs a block: its pid, its raylet and its machine."""

    pid: int
    raylet_id: str
    host: str


@dataclass(frozen=True, slots=True)
class RoundStatus:
    """What an observer is told before a round is sent.

    A round starts an iteration, or tells blocks which rendezvous were resolved. *number* counts
    the rounds of a replay from 0. *places* are those of all blocks, in the order of their ranks.
    """

    number: int
    places: tuple[WorkerPlace, ...]


OnRound = Callable[[RoundStatus], None]


def ignore_round(status: RoundStatus) -> None:
    """The observer that does nothing."""


class SerialExecutor:
    """Runs everything in this process, one after the other. It keeps the layout of the last job."""

    def __init__(self) -> None:
        self._last: tuple[JobGraph, FlatJob] | None = None

    @property
    def description(self) -> str:
        """Where the work was done so far, in a few words."""
        return "serial"

    @property
    def reads_jobs(self) -> bool:
        """No: there are no workers."""
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
