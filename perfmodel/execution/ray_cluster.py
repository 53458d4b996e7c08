"""RayCluster: what is asked of Ray, once there is a connection to it (see `ray_joining`).

These two modules alone import Ray, and are imported only when Ray is wanted. Ray's
own messages stay off the screen; what a person must know comes as an
ExecutionError that says where, what was lost and how to go on.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
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
from perfmodel.engine.layout import Int64s
from perfmodel.execution.executor import WorkerPlace
from perfmodel.execution.rank_block import Assignment, RankBlock
from perfmodel.execution.ray_surroundings import Watch, listens

LOST = (
    RayActorError,
    ObjectLostError,
    OutOfMemoryError,
    WorkerCrashedError,
    NodeDiedError,
    ActorUnschedulableError,
    TaskUnschedulableError,
)
"""What Ray raises where a process or a machine is gone, rather than where work failed."""
SEAT_TIMEOUT_S = 120.0
"""How long a machine may take to start a worker process before others get its ranks."""
WATCH_S = 0.5
"""How long to wait for Ray before looking whether it is still there."""
TASK_RETRIES = 5


@dataclass(frozen=True, slots=True)
class Lost:
    """The answer that never came, because whoever was to give it is gone."""

    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """What a block says of itself once it is built.

    To which rendezvous it has a word to add, what its ranks bring to them where it read these
    itself, and where it is.
    """

    awaited: Int64s
    members: Int64s | None
    place: WorkerPlace


class Seat:
    """A worker process, as an actor. It holds the blocks of replays that are still looked at."""

    def __init__(self) -> None:
        self._rank_blocks: dict[int, RankBlock] = {}

    def take(self, replay: int, part: Any, durations: Any, assignment: Assignment) -> Taken:
        """Take on a block of *replay*."""
        try:
            block = RankBlock(part, durations, assignment, host=_own_host())
            self._rank_blocks[replay] = block
        except MemoryError as error:
            raise ExecutionError(
                f"ray: the memory of a worker on {_own_host()} does not hold "
                f"ranks {assignment.ranks.start}-{assignment.ranks.stop - 1} ({error}). Give the "
                "job more workers or machines, so that each has fewer ranks."
            ) from None
        context = ray.get_runtime_context()
        place = WorkerPlace(os.getpid(), context.get_node_id(), _own_host())
        return Taken(block.awaited, block.members, place)

    def host(self) -> str:
        """The machine of this process."""
        return _own_host()

    def ask(self, replay: int, method: str, *words: Any) -> Any:
        """What the block of *replay* answers."""
        return getattr(self._rank_blocks[replay], method)(*words)

    def advance(self, replay: int, message: bytes) -> bytes:
        """Make the round that *message* orders."""
        return self._rank_blocks[replay].advance(message)

    def leave(self, replay: int) -> None:
        """Let go of a block and of its memory."""
        self._rank_blocks.pop(replay, None)


class RayCluster:
    """A connection to Ray, with the few things that are asked of it."""

    def __init__(self, watch: Watch | None, *, workers: int, is_local: bool) -> None:
        self.workers = workers
        self.is_local = is_local
        self._watch = watch
        # A seat works while its driver waits, and the other way round, and never while
        # tasks are fanned out: it needs no CPU of its own, so it can always be placed.
        # The driver rebuilds lost ones itself, since only it has the log.
        self._seat_class: Any = ray.remote(num_cpus=0, max_restarts=0)(Seat)
        self._raylet_of_seat: dict[Any, str] = {}
        self._shunned: set[str] = set()
        self.notes: list[str] = []
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

    def new_seat(self, *, after_loss: bool = False) -> Any:
        """One more worker process, on the machine that has fewest for its cores, and only there.

        So every machine has one before any has two. Where that machine is
        lost, so is the seat, and whoever asks it makes another elsewhere.
        *after_loss* asks machines whether they are there: Ray needs up to a minute to notice.
        """
        self.check()
        rows = [row for row in alive_raylets() if row["NodeID"] not in self._shunned]
        if after_loss:
            rows = [row for row in rows if is_there(row)]
        cores = {row["NodeID"]: row["Resources"].get("CPU", 0.0) for row in rows}
        # Where machines have no cores to give, all are taken alike.
        able = {raylet for raylet, count in cores.items() if count} or set(cores)
        if not able:
            raise ExecutionError(
                "ray: no machine of the cluster takes a worker. Nothing was answered. Look at "
                "`ray status` there, or use --executor serial."
            )
        taken = Counter(self._raylet_of_seat.values())
        chosen = min(able, key=lambda raylet: (taken[raylet] / max(cores[raylet], 1.0), raylet))
        placement = NodeAffinitySchedulingStrategy(chosen, soft=False)
        seat = self._seat_class.options(scheduling_strategy=placement).remote()
        self._raylet_of_seat[seat] = chosen
        return seat

    def settle(self, seats: list[Any]) -> None:
        """Wait until all *seats* are there; machines that take none are left out from then on.

        Where nobody is there yet, all are slow, and nobody is left out.
        """
        waiting = {seat.host.remote(): place for place, seat in enumerate(seats)}
        until_s = time.monotonic() + SEAT_TIMEOUT_S
        while waiting and (time.monotonic() < until_s or len(waiting) == len(seats)):
            self.check()
            ready, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=WATCH_S)
            for reference in ready:
                waiting.pop(reference)
            if time.monotonic() > until_s + 4 * SEAT_TIMEOUT_S:
                raise ExecutionError(
                    f"ray: no machine of the cluster has started a worker in "
                    f"{5 * SEAT_TIMEOUT_S:.0f} s. Nothing was answered. Look at `ray status` "
                    "there, or use --executor serial."
                )
        if waiting:
            hosts = {row["NodeID"]: row["NodeManagerAddress"] for row in alive_raylets()}
            for place in waiting.values():
                raylet = self._raylet_of_seat[seats[place]]
                self._shunned.add(raylet)
                self.notes.append(f"no worker on {hosts.get(raylet, raylet)}, which took none")
                self.give_up(seats[place])
                seats[place] = self.new_seat()
            self.settle(seats)

    def give_up(self, seat: Any) -> None:
        """End a worker process, if it is still there."""
        self._raylet_of_seat.pop(seat, None)
        if self._watch is None or not self._watch.has_fault:
            ray.kill(seat)

    def check(self) -> None:
        """Raise if the cluster is gone."""
        if self._watch is not None:
            self._watch.check()

    def hear(self, references: Sequence[Any]) -> list[tuple[int, Any]]:
        """Those of *references*, by their place, of which the answer is known: one or more."""
        ready = self._wait(references)
        places = {reference: place for place, reference in enumerate(references)}
        return [(places[reference], _answer_or_lost(reference)) for reference in ready]

    def wait_for(self, references: Sequence[Any]) -> list[Any]:
        """What all *references* stand for; Lost where it will never be known."""
        pending = list(references)
        while pending:
            done = set(self._wait(pending))
            pending = [reference for reference in pending if reference not in done]
        return [_answer_or_lost(reference) for reference in references]

    def map_chunks(
        self, function: Callable[[Any, Any], Any], shared: object, chunks: Sequence[Sequence[Any]]
    ) -> list[list[Any]]:
        """The answers of *function* to all *chunks*, in order; as many at a time as workers."""
        shared_reference = self.put(shared)
        asked: list[Any] = []
        pending: list[Any] = []
        has_failed = False
        while pending or (len(asked) < len(chunks) and not has_failed):
            if len(asked) < len(chunks) and len(pending) < self.workers and not has_failed:
                chunk = chunks[len(asked)]
                asked.append(self._answer_chunk.remote(function, shared_reference, chunk))
                pending.append(asked[-1])
                continue
            done = set(self._wait(pending))
            pending = [reference for reference in pending if reference not in done]
            has_failed = has_failed or any(_is_failed(reference) for reference in done)
        # Chunks are asked in order, so the first failure is among them whoever failed first.
        return [_answer(reference) for reference in asked]

    def _wait(self, references: Sequence[Any]) -> list[Any]:
        """Those of *references* that are known, once one is; while waiting, Ray is watched."""
        while True:
            # Workers go on for a while without a head, and then Ray ends this process.
            self.check()
            try:
                ready, _ = ray.wait(list(references), num_returns=1, timeout=WATCH_S)
            except RayError as error:
                self.check()
                raise ExecutionError(f"ray: the cluster failed: {error}") from error
            if ready:
                return list(ready)


def _own_host() -> str:
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]  # Ray's


def alive_raylets() -> list[dict[str, Any]]:
    """What Ray says of every machine that it takes for alive."""
    rows: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]  # Ray's
    return [row for row in rows if row["Alive"]]


def is_there(row: dict[str, Any]) -> bool:
    """Whether the raylet of *row* listens; Ray takes a dead one for alive for up to a minute."""
    return listens(f"{row['NodeManagerAddress']}:{row['NodeManagerPort']}")


def _answer_chunk(
    function: Callable[[Any, Any], Any], shared: object, chunk: Sequence[Any]
) -> list[Any]:
    return [function(shared, item) for item in chunk]


def _is_failed(reference: Any) -> bool:
    try:
        ray.get(reference)
    except RayError:
        return True
    return False


def _answer(reference: Any) -> Any:
    answer = _answer_or_lost(reference)
    if isinstance(answer, Lost):
        raise ExecutionError(
            f"ray: a worker was lost {TASK_RETRIES + 1} times over the same question "
            f"({answer.reason}). If memory ran out, ask for fewer workers."
        )
    return answer


def _worker_failed(error: RayError) -> ExecutionError:
    """What to say of a worker that failed before or after its own work."""
    if MemoryError.__name__ in str(error):
        return ExecutionError(
            "ray: the memory of a worker does not hold what it was sent. Give the job more workers "
            "or machines, so that each has fewer ranks."
        )
    return ExecutionError(f"ray: a worker failed: {error}")


def _answer_or_lost(reference: Any) -> Any:
    """What *reference* stands for. An error of the work itself is raised as it was there."""
    try:
        return ray.get(reference)
    except LOST as error:
        return Lost(type(error).__name__)
    except RayTaskError as error:
        if isinstance(error.cause, MemoryError):
            return Lost("MemoryError")
        if isinstance(error.cause, LOST):
            return Lost(type(error.cause).__name__)
        if isinstance(error.cause, Exception) and not isinstance(error.cause, RayError):
            raise error.cause from None
        raise _worker_failed(error) from error
    except RayError as error:
        raise ExecutionError(f"ray: the cluster failed: {error}") from error
