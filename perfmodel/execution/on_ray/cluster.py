"""RayCluster: the few calls that perfmodel makes of Ray, once it is connected (see `joining`).

What a user must know comes as an ExecutionError that says where, what was lost and how to go on.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import (
    ActorUnschedulableError,
    GetTimeoutError,
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
from perfmodel.base.identity import full_identity
from perfmodel.execution.executor import OnWait, ignore_wait
from perfmodel.execution.on_ray.liveness import Reply, Watch, ask
from perfmodel.execution.rank_block import Seat

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
SILENCE_S = 30.0
"""How long no worker may answer before those that are waited for are named."""
WATCH_S = 0.5
"""How long to wait for Ray before looking whether it is still there."""
GET_TIMEOUT_S = 10.0
"""How long to wait for an answer that Ray has announced before looking again."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Instead of an answer, where the process that was to give it is gone."""

    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class WorkerCall:
    """A question to a worker process: Ray's *reference*, and the *place* of its raylet."""

    reference: Any
    place: str


class RayCluster:
    """A connection to Ray. *watch* knows what of the cluster is gone.

    *on_wait* hears a sentence when no worker has answered for a while. A stopped process looks
    like a busy one from outside, so this names the machines and goes on waiting.
    """

    def __init__(self, watch: Watch, *, workers: int | None, is_local: bool) -> None:
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]  # Ray's
        self.workers = workers or max(int(resources.get("CPU", 1)), 1)
        self.is_local = is_local
        self.check = watch.check
        self.notes: list[str] = []
        self._watch = watch
        self.on_wait: OnWait = ignore_wait
        # A seat works while its driver waits, and the other way round: it needs no CPU of its
        # own, so it can always be placed. The driver rebuilds lost ones itself, since only it
        # has the log.
        self._seat_class: Any = ray.remote(num_cpus=0, max_restarts=0)(Seat)
        self._place_of_seat: dict[Any, str] = {}
        self._avoided: set[str] = set()

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
        found = {place_of(row): row for row in machines()}
        avoided = self._avoided.union(filter(self._watch.is_lost, found))
        rows = {place: row for place, row in found.items() if place not in avoided}
        cores = {place: row["Resources"].get("CPU", 0.0) for place, row in rows.items()}
        # If no machine has cores, all are used equally.
        able = {place for place, number in cores.items() if number} or set(cores)
        if not able:
            raise ExecutionError(
                "ray: no machine of the cluster takes a worker. There is no answer. Look at "
                "`ray status` there, or use --executor serial."
            )
        seats = []
        for _ in range(count):
            taken = Counter(self._place_of_seat.values())
            chosen = min(able, key=lambda one: (taken[one] / max(cores[one], 1.0), one))
            raylet, host = rows[chosen]["NodeID"], rows[chosen]["NodeManagerAddress"]
            made = self._seat_class.options(scheduling_strategy=only_on(raylet))
            seats.append(made.remote(raylet, host, full_identity()))
            self._place_of_seat[seats[-1]] = chosen
        return seats

    def settle(self, seats: list[Any], places: Sequence[int] | None = None) -> None:
        """Wait until *seats*, or those at *places*, are started; avoid machines that start none.

        As long as none is started all are slow, and none is avoided. A rebuilt seat is slow by
        itself if other machines have seats.
        """
        places = range(len(seats)) if places is None else places
        asked = [self.call(seats[place], "is_started") for place in places]
        late, began_s = list(asked), time.monotonic()
        while late:
            waited_s = time.monotonic() - began_s
            elsewhere = set(self._place_of_seat.values()) - {call.place for call in late}
            if waited_s > SEAT_TIMEOUT_S and (len(late) < len(asked) or elsewhere):
                break
            if waited_s > 5 * SEAT_TIMEOUT_S:
                raise ExecutionError(
                    f"ray: no machine of the cluster has started a worker in "
                    f"{5 * SEAT_TIMEOUT_S:.0f} s. There is no answer. Look at `ray status` "
                    "there, or use --executor serial."
                )
            known = set(self._known(late, until_s=time.monotonic() + WATCH_S))
            late = [call for call in late if call not in known]
        for call in late:
            self._avoided.add(call.place)
            host = call.place.rpartition(":")[0]
            self.notes.append(f"no worker could start on {host}")
        for call in late:
            self.replace(seats, places[asked.index(call)])

    def give_up(self, seat: Any) -> None:
        """End a worker process, if it is still there."""
        self._place_of_seat.pop(seat, None)
        with suppress(ExecutionError):
            self.check()
            ray.kill(seat)

    def replace(self, seats: list[Any], place: int) -> None:
        """Put a new worker process at *place* of *seats*, started within the same limits."""
        self.give_up(seats[place])
        seats[place : place + 1] = self.new_seats(1)
        self.settle(seats, [place])

    def call(self, seat: Any, method: str, *words: Any) -> WorkerCall:
        """Ask the worker process *seat*, without waiting for the answer."""
        return WorkerCall(getattr(seat, method).remote(*words), self._place_of_seat.get(seat, ""))

    def hear(self, calls: Sequence[WorkerCall]) -> list[tuple[int, Any]]:
        """The answers to those of *calls*, by their place, that are known: one or more."""
        places = {call: place for place, call in enumerate(calls)}
        return [(places[call], self._answer(call)) for call in self._known(calls)]

    def wait_for(self, calls: Sequence[WorkerCall], *, timeout_s: float = math.inf) -> list[Any]:
        """The answers to all *calls*; Lost where there is none in time or will never be one."""
        known: set[WorkerCall] = set()
        until_s = time.monotonic() + timeout_s
        while len(known) < len(calls) and time.monotonic() < until_s:
            late = [call for call in calls if call not in known]
            known.update(self._known(late, until_s=until_s))
        return [self._answer(call) if call in known else Lost("no answer") for call in calls]

    def _known(self, calls: Sequence[WorkerCall], *, until_s: float = math.inf) -> list[WorkerCall]:
        """Those of *calls* that are answered or lost, once one is, or none at *until_s*."""
        by_reference = {call.reference: call for call in calls}
        self._watch.follow(call.place for call in calls if call.place)
        named_s = time.monotonic() + SILENCE_S
        while time.monotonic() < until_s:
            if time.monotonic() > named_s:
                hosts = sorted({call.place.rpartition(":")[0] for call in calls})
                self.on_wait(
                    f"ray: waiting for {', '.join(hosts)}, no answer for {SILENCE_S:.0f} s"
                )
                named_s = math.inf
            # Workers go on for a while without a head, and then Ray ends this process.
            self.check()
            lost = [call for call in calls if self._watch.is_lost(call.place)]
            if lost:
                return lost
            try:
                ready, _ = ray.wait(list(by_reference), num_returns=1, timeout=WATCH_S)
            except RayError as error:
                self.check()
                raise ExecutionError(f"ray: the cluster failed: {error}") from error
            if ready:
                return [by_reference[reference] for reference in ready]
        return []

    def _answer(self, call: WorkerCall) -> Any:
        """The answer to *call*, which is known, or Lost."""
        while not self._watch.is_lost(call.place):
            self.check()
            try:
                return _get(call.reference)
            # What was here a moment ago was on a machine that is lost now.
            except GetTimeoutError:
                continue
        return Lost("its machine is gone")


def machines() -> list[dict[str, Any]]:
    """What Ray says of every machine whose raylet listens.

    Ray takes a dead one for alive for up to a minute.
    """
    rows: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]  # Ray's
    return [row for row in rows if row["Alive"] and ask(place_of(row)) is not Reply.ABSENT]


def place_of(row: Mapping[str, Any]) -> str:
    """Where the raylet of a machine listens."""
    return f"{row['NodeManagerAddress']}:{row['NodeManagerPort']}"


def only_on(raylet: str) -> NodeAffinitySchedulingStrategy:
    """Place work on the machine of *raylet*, or nowhere."""
    return NodeAffinitySchedulingStrategy(raylet, soft=False)


def _get(reference: Any) -> Any:
    """The answer to *reference*. An error of the work itself is raised as it was there."""
    try:
        return ray.get(reference, timeout=GET_TIMEOUT_S)
    except GetTimeoutError:
        raise
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
