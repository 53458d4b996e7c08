"""Executors: where replays run, in this process or on Ray, and how one is opened.

The executor never changes the answer: the same question gives the same bytes on
every executor, whatever the number of workers.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Protocol, TypeVar

from perfmodel.base.errors import InputError
from perfmodel.engine.layout import FlatJob, lay_out_sound
from perfmodel.engine.replay import Replay, replay
from perfmodel.execution.on_ray.surroundings import core_count, environment, quiet
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph

# The clock only chooses the executor; the answer is the same on both. Measured on two cores with
# Ray 2.60: a local cluster takes 4 s to start and its workers 2 s to be ready. One process replays
# 80 million tasks per second if ranks share a program, 35 if each has its own; 30 is assumed until
# a replay has shown how fast this machine is.
START_S = 6.0
TASKS_PER_S = 30e6
TIMED_TASKS = 1_000_000
"""Replays of fewer tasks do not show the speed of the machine."""
ROUND_S = 1e-3
"""Time to exchange messages about a rendezvous that crosses blocks."""

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
    """What an observer receives before a round is sent.

    A round starts an iteration, or sends blocks the resolved rendezvous. *number* counts
    the rounds of a replay from 0. *places* are those of all blocks, in the order of their ranks.
    """

    number: int
    places: tuple[WorkerPlace, ...]


OnRound = Callable[[RoundStatus], None]


def ignore_round(status: RoundStatus) -> None:
    """The observer that does nothing."""


OnWait = Callable[[str], None]
"""Hears a sentence about workers that have not answered for long."""


def ignore_wait(sentence: str) -> None:
    """The listener that does nothing."""


@dataclass(frozen=True, slots=True)
class Observers:
    """Who hears of rounds, and of waits for workers."""

    on_round: OnRound = ignore_round
    on_wait: OnWait = ignore_wait


class SerialExecutor:
    """Runs everything in this process, one after the other. It keeps the layout of the last job."""

    description = "serial"
    reads_jobs = False

    def __init__(self) -> None:
        self._last: tuple[JobGraph, FlatJob] | None = None

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


class AutoExecutor:
    """Starts serial; *open_ray* is called once, when Ray first pays."""

    # Workers that share the memory of this machine gain nothing by reading their own ranks.
    reads_jobs = False

    def __init__(self, open_ray: Callable[[], Executor], *, workers: int) -> None:
        self._open_ray = open_ray
        self._workers = workers
        self._serial = SerialExecutor()
        self._ray: Executor | None = None
        self.tasks_per_s = TASKS_PER_S
        self._mapped_s = 0.0

    @property
    def description(self) -> str:
        """Where the work was done so far, in a few words."""
        return self._serial.description if self._ray is None else self._ray.description

    def replay(self, job: JobGraph, durations: DurationTable, iterations: int = 1) -> Replay:
        """Replay *iterations* of *job*."""
        steps = job.task_count * iterations * durations.vector_count
        place = self._place_for(
            steps / self.tasks_per_s,
            places=min(self._workers, job.rank_count),
            talking_s=lambda: ROUND_S * iterations * self._most_crossed(job),
        )
        began_s = time.monotonic()
        answer = place.replay(job, durations, iterations)
        if place is self._serial and steps >= TIMED_TASKS:
            self.tasks_per_s = steps / (time.monotonic() - began_s)
        return answer

    def map(
        self,
        function: Callable[[Shared, Item], Result],
        shared: Shared,
        items: Sequence[Item],
    ) -> list[Result]:
        """`function(shared, item)` for all *items*, in their order.

        The first item runs here, and shows how long the others will take. Long lists
        come in steps, so what steps took so far is expected once more.
        """
        if self._ray is not None:
            return self._ray.map(function, shared, items)
        began_s = time.monotonic()
        answers = self._serial.map(function, shared, items[:1])
        item_s = time.monotonic() - began_s
        others = items[1:]
        place = self._place_for(
            self._mapped_s + item_s * len(others), places=min(self._workers, len(others))
        )
        answers += place.map(function, shared, others)
        self._mapped_s += time.monotonic() - began_s
        return answers

    def _place_for(
        self, serial_s: float, *, places: int, talking_s: Callable[[], float] = lambda: 0.0
    ) -> Executor:
        """Where work finishes sooner: it takes *serial_s* here, or can be split over *places*."""
        saved_s = serial_s * (1 - 1 / max(places, 1))
        if saved_s <= START_S or saved_s - talking_s() <= START_S:
            return self._serial
        if self._ray is None:
            self._ray = self._open_ray()
        return self._ray

    def _most_crossed(self, job: JobGraph) -> int:
        """How many rendezvous the cut between blocks crosses that crosses most."""
        from perfmodel.execution.parts import crossed_rendezvous, deal_ranks  # big jobs alone

        blocks = deal_ranks(job, block_count=self._workers)
        crossed = crossed_rendezvous(job)[[ranks.start for ranks in blocks]]
        return int(crossed.max())


def open_executor(
    kind: ExecutorKind | str = ExecutorKind.AUTO,
    *,
    workers: int | None = None,
    address: str | None = None,
    on_round: OnRound = ignore_round,
    on_wait: OnWait = ignore_wait,
) -> AbstractContextManager[Executor]:
    """The executor of that *kind*, closed at the end of the `with` block.

    *workers* defaults to the cores of this machine or of the cluster at
    *address*. *on_round* hears of every round of a replay on Ray, *on_wait* of
    workers that do not answer for long.
    """
    words = [known.value for known in ExecutorKind]
    if kind not in words and not isinstance(kind, ExecutorKind):
        raise InputError(f"executor: must be one of {', '.join(words)}, got {kind!r}.")
    if workers is not None and workers < 1:
        raise InputError(f"workers: must be 1 or more, got {workers}.")
    keep_memory()
    return OPENERS[ExecutorKind(kind)](workers, address, Observers(on_round, on_wait))


@contextmanager
def _open_serial(workers: int | None, address: str | None, _: Observers) -> Iterator[Executor]:
    if address is not None or (workers or 1) > 1:
        raise InputError(
            "executor serial: works in this process alone, and takes neither several workers nor "
            "the address of a cluster. Say --executor ray, or leave those out."
        )
    yield SerialExecutor()


@contextmanager
def _open_ray(workers: int | None, address: str | None, observers: Observers) -> Iterator[Executor]:
    with environment(quiet()):
        # Ray reads its environment when it is imported, so this comes before. Imported here: it
        # takes half a second, and most questions never need it.
        from perfmodel.execution.on_ray.executor import RayExecutor
        from perfmodel.execution.on_ray.joining import open_cluster

        with (
            open_cluster(workers=workers, address=address) as cluster,
            closing(RayExecutor(cluster, observers)) as executor,
        ):
            yield executor


@contextmanager
def _open_auto(
    workers: int | None, address: str | None, observers: Observers
) -> Iterator[Executor]:
    with ExitStack() as opened:

        def open_ray() -> Executor:
            return opened.enter_context(_open_ray(workers, address, observers))

        yield (
            AutoExecutor(open_ray, workers=workers or core_count())
            if address is None
            else open_ray()
        )


OPENERS: dict[
    ExecutorKind,
    Callable[[int | None, str | None, Observers], AbstractContextManager[Executor]],
] = {
    ExecutorKind.AUTO: _open_auto,
    ExecutorKind.SERIAL: _open_serial,
    ExecutorKind.RAY: _open_ray,
}
"""Every kind of executor and how it is opened, with workers, address and observers."""


KEPT_MEMORY = {-1: 2**31 - 1, -4: 0}
"""Options of mallopt(3): M_TRIM_THRESHOLD, so the heap does not shrink; M_MMAP_MAX, all from it."""


@cache
def keep_memory() -> None:
    """Let this process keep the memory of arrays that it frees, for the arrays of the next replay.

    A question replays many times, and each replay fills hundreds of megabytes. The C library would
    return them to the system and request them again, which takes longer than filling them. Other C
    libraries do as they do.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        for option, value in KEPT_MEMORY.items():
            set_option(option, value)
