"""Executor: the role of a place where replays run.

The place never changes the answer: the same question gives the same bytes on
every executor, whatever the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar

from perfmodel.engine.replay import Replay
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")


class ExecutorKind(Enum):
    """Which place; the value is the word that people type."""

    AUTO = "auto"
    SERIAL = "serial"
    RAY = "ray"


class Executor(Protocol):
    """A place where one big question, or many small ones, are worked on."""

    @property
    def description(self) -> str:
        """Where the work was done so far, in a few words."""
        ...

    @property
    def reads_jobs(self) -> bool:
        """Whether workers read their ranks of a saved job themselves, should it be large."""
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

        *function* stands at the top level of a module; it takes and returns
        frozen values. Where it raises, the error of the first such item comes
        through as it is.
        """
        ...


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """The process that works on a block: its number on its machine, its raylet, the machine."""

    pid: int
    raylet_id: str
    host: str


@dataclass(frozen=True, slots=True)
class RoundStatus:
    """What an observer hears before the word of a round is sent.

    A round begins, or tells blocks what was resolved; *number* counts those of
    a replay from 0. *places* are those of all blocks, in the order of their ranks.
    """

    number: int
    places: tuple[WorkerPlace, ...]


OnRound = Callable[[RoundStatus], None]


def ignore_round(status: RoundStatus) -> None:
    """The observer that does nothing."""
