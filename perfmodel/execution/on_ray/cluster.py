"""RayCluster: the few calls that perfmodel makes of Ray, once it is connected (see `joining`).

What a user must know comes as an ExecutionError that says where, what was lost and how to go on.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import (
    ActorUnschedulableError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    TaskUnschedulableError,
    WorkerCrashedError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from perfmodel.base.errors import ExecutionError
from perfmodel.execution.executor import WorkerPlace
from perfmodel.execution.on_ray.surroundings import listens
from perfmodel.execution.rank_block import Assignment, RankBlock

LOST = (
    RayActorError,
    ObjectLostError,
    OutOfMemoryError,
    WorkerCrashedError,
    NodeDiedError,
    ActorUnschedulableError,
    TaskUnschedulableError,
)
"""What Ray raises if a process or a machine is gone, not if work failed."""
SEAT_TIMEOUT_S = 120.0
"""How long a machine may take to start a worker process before others get its ranks."""
WATCH_S = 0.5
"""How long to wait for Ray before looking whether it is still there."""
TASK_RETRIES = 5


@dataclass(frozen=True, slots=True)
class Lost:
    """Instead of an answer, where the process that was to give it is gone."""

    reason: str


class Seat:
    """A worker process on *host*, as an actor. It holds the blocks of replays that may be read."""

    def __init__(self, raylet: str, host: str) -> None:
        self._place = WorkerPlace(os.getpid(), raylet, host)
        self._rank_blocks: dict[int, RankBlock] = {}

    def take(self, replay: int, part: Any, durations: Any, assignment: Assignment) -> WorkerPlace:
        """Build a block of *replay*; where it is."""
        host, ranks = self._place.host, assignment.ranks
        try:
            self._rank_blocks[replay] = RankBlock(part, durations, assignment, host=host)
        except MemoryError as error:
            raise ExecutionError(
                f"ray: the memory of a worker on {host} does not hold ranks "
                f"{ranks.start}-{ranks.stop - 1} ({error}). Give the job more workers or machines, "
                "so that each has fewer ranks."
            ) from None
        return self._place

    def is_started(self) -> bool:
        """Yes, once this can be answered."""
        return True

    def ask(self, replay: int, method: str, *words: Any) -> Any:
        """What a *method* of the block of *replay* returns."""
        return getattr(self._rank_blocks[replay], method)(*words)

    def leave(self, replay: int) -> None:
        """Release a block and its memory."""
        self._rank_blocks.pop(replay, None)


class RayCluster:
    """A connection to Ray. *check* raises if the cluster is gone."""

    def __init__(
        self, *, workers: int | None, is_local: bool, check: Callable[[], None] = lambda: None
    ) -> None:
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]  # Ray's
        self.workers = workers or max(int(resources.get("CPU", 1)), 1)
        self.is_local = is_local
        self.check = check
        self.notes: list[str] = []
        # A seat works while its driver waits, and the other way round, and never while
        # tasks are fanned out: it needs no CPU of its own, so it can always be placed.
        # The driver rebuilds lost ones itself, since only it has the log.
        self._seat_class: Any = ray.remote(num_cpus=0, max_restarts=0)(Seat)
        self._raylet_of_seat: dict[Any, str] = {}
        self._avoided: set[str] = set()
        self._answer_chunk: Any = ray.remote(num_cpus=1, max_retries=TASK_RETRIES)(_answer_chunk)

    def put(self, value: object) -> Any:
        """A reference to *value* in the object store."""
        self.check()
        try:
            return ray.put(value)
        except (RayError, OSError) as error:
            raise ExecutionError(
                f"ray: the object store could not take what workers must read ({error}). Make room "
                "in shared memory, or use --executor serial."
            ) from error

    def new_seats(self, count: int) -> list[Any]:
        """New worker processes, each on the machine that has fewest for its cores, and only there.

        So every machine has one before any has two. If that machine is lost, so is the seat, and
        the caller makes another one.
        """
        self.check()
        rows = {row["NodeID"]: row for row in machines() if row["NodeID"] not in self._avoided}
        cores = {raylet: row["Resources"].get("CPU", 0.0) for raylet, row in rows.items()}
        # If no machine has cores, all are used alike.
        able = {raylet for raylet, number in cores.items() if number} or set(cores)
        if not able:
            raise ExecutionError(
                "ray: no machine of the cluster takes a worker. Nothing was answered. Look at "
                "`ray status` there, or use --executor serial."
            )
        seats = []
        for _ in range(count):
            taken = Counter(self._raylet_of_seat.values())
            chosen = min(able, key=lambda one: (taken[one] / max(cores[one], 1.0), one))
            placed = self._seat_class.options(scheduling_strategy=only_on(chosen))
            seats.append(placed.remote(chosen, rows[chosen]["NodeManagerAddress"]))
            self._raylet_of_seat[seats[-1]] = chosen
        return seats

    def settle(self, seats: list[Any]) -> None:
        """Wait until all *seats* are started; machines that start none are avoided from then on.

        As long as none is started all are slow, and none is avoided.
        """
        asked = [seat.is_started.remote() for seat in seats]
        late, began_s = asked, time.monotonic()
        while late:
            self.check()
            waited_s = time.monotonic() - began_s
            if waited_s > SEAT_TIMEOUT_S and len(late) < len(asked):
                break
            if waited_s > 5 * SEAT_TIMEOUT_S:
                raise ExecutionError(
                    f"ray: no machine of the cluster has started a worker in "
                    f"{5 * SEAT_TIMEOUT_S:.0f} s. Nothing was answered. Look at `ray status` "
                    "there, or use --executor serial."
                )
            _, late = ray.wait(asked, num_returns=len(asked), timeout=WATCH_S)
        if late:
            hosts = {row["NodeID"]: row["NodeManagerAddress"] for row in ray.nodes()}  # type: ignore[no-untyped-call]  # Ray's
            for place in map(asked.index, late):
                raylet = self._raylet_of_seat[seats[place]]
                self._avoided.add(raylet)
                self.notes.append(f"no worker on {hosts[raylet]}, which took none")
                self.give_up(seats[place])
                seats[place : place + 1] = self.new_seats(1)
            self.settle(seats)

    def give_up(self, seat: Any) -> None:
        """End a worker process, if it is still there."""
        self._raylet_of_seat.pop(seat, None)
        with suppress(ExecutionError):
            self.check()
            ray.kill(seat)

    def hear(self, references: Sequence[Any]) -> list[tuple[int, Any]]:
        """Those of *references*, by their place, whose answer is known: one or more."""
        places = {reference: place for place, reference in enumerate(references)}
        return [(places[one], _answer_or_lost(one)) for one in self._wait(references)]

    def wait_for(self, references: Sequence[Any]) -> list[Any]:
        """The answers to all *references*; Lost where there will never be one."""
        pending = list(references)
        while pending:
            pending = _without(pending, self._wait(pending))
        return [_answer_or_lost(reference) for reference in references]

    def map_chunks(
        self, function: Callable[[Any, Any], Any], shared: object, chunks: Sequence[Sequence[Any]]
    ) -> list[list[Any]]:
        """The answers of *function* to all *chunks*, in order; as many at a time as workers."""
        shared_reference = self.put(shared)
        asked: list[Any] = []
        pending: list[Any] = []
        for chunk in chunks:
            if len(pending) == self.workers:
                done = self._wait(pending)
                pending = _without(pending, done)
                if any(map(is_failed, done)):
                    break
            asked.append(self._answer_chunk.remote(function, shared_reference, chunk))
            pending.append(asked[-1])
        # Chunks are asked in order, so the first failure is among them whichever failed first.
        answers = self.wait_for(asked)
        for answer in answers:
            if isinstance(answer, Lost):
                raise ExecutionError(
                    f"ray: a worker was lost {TASK_RETRIES + 1} times over the same question "
                    f"({answer.reason}). If memory ran out, ask for fewer workers."
                )
        return answers

    def _wait(self, references: Sequence[Any]) -> list[Any]:
        """Those of *references* that are known, once one is; while waiting, Ray is watched."""
        ready: list[Any] = []
        while not ready:
            # Workers go on for a while without a head, and then Ray ends this process.
            self.check()
            try:
                ready, _ = ray.wait(list(references), num_returns=1, timeout=WATCH_S)
            except RayError as error:
                self.check()
                raise ExecutionError(f"ray: the cluster failed: {error}") from error
        return ready


def machines() -> list[dict[str, Any]]:
    """What Ray says of every machine whose raylet listens.

    Ray takes a dead one for alive for up to a minute.
    """
    rows: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]  # Ray's
    return [
        row
        for row in rows
        if row["Alive"] and listens(f"{row['NodeManagerAddress']}:{row['NodeManagerPort']}")
    ]


def only_on(raylet: str) -> NodeAffinitySchedulingStrategy:
    """Place work on the machine of *raylet*, or nowhere."""
    return NodeAffinitySchedulingStrategy(raylet, soft=False)


def _without(references: Sequence[Any], done: Sequence[Any]) -> list[Any]:
    known = set(done)
    return [reference for reference in references if reference not in known]


def _answer_chunk(
    function: Callable[[Any, Any], Any], shared: object, chunk: Sequence[Any]
) -> list[Any]:
    return [function(shared, item) for item in chunk]


def is_failed(reference: Any) -> bool:
    """Whether there is an error instead of an answer to *reference*."""
    try:
        ray.get(reference)
    except RayError:
        return True
    return False


def _answer_or_lost(reference: Any) -> Any:
    """The answer to *reference*. An error of the work itself is raised as it was there."""
    try:
        return ray.get(reference)
    except LOST as error:
        return Lost(type(error).__name__)
    except RayTaskError as error:
        if isinstance(error.cause, (MemoryError, *LOST)):
            return Lost(type(error.cause).__name__)
        if isinstance(error.cause, Exception) and not isinstance(error.cause, RayError):
            raise error.cause from None
        if MemoryError.__name__ in str(error):
            raise ExecutionError(
                "ray: the memory of a worker does not hold what it was sent. Give the job more "
                "workers or machines, so that each has fewer ranks."
            ) from error
        raise ExecutionError(f"ray: a worker failed: {error}") from error
    except RayError as error:
        raise ExecutionError(f"ray: the cluster failed: {error}") from error
