"""RayCluster: the only door to Ray.

Nothing else here imports it, and this module is imported only when Ray is
wanted. Ray's own messages stay off the screen; what a person must know comes
as an ExecutionError.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import (
    GetTimeoutError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import perfmodel
from perfmodel.base.errors import ExecutionError
from perfmodel.execution.executor import WorkerPlace
from perfmodel.execution.rank_block import Assignment, BlockResult, RankBlock
from perfmodel.execution.ray_surroundings import (
    check_reachable,
    core_count,
    ended_in_order,
    private_folder,
)
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph

LOST = (RayActorError, ObjectLostError, OutOfMemoryError, WorkerCrashedError)
"""What Ray raises where a process or a machine is gone, rather than where work failed."""
PROBE_TIMEOUT_S = 120.0
TASK_RETRIES = 5


@dataclass(frozen=True, slots=True)
class Lost:
    """The answer that never came, because whoever was to give it is gone."""

    reason: str


class Seat:
    """A worker process, as an actor. It works on one block after another."""

    def __init__(self) -> None:
        self._rank_blocks: list[RankBlock] = []

    def take(
        self, job: JobGraph, durations: DurationTable, assignment: Assignment
    ) -> tuple[Any, WorkerPlace]:
        """Take a block on: which rendezvous it has a word to add to, and where that is."""
        # The old block goes first, so that two are never in memory.
        self._rank_blocks.clear()
        self._rank_blocks.append(RankBlock(job, durations, assignment))
        place = WorkerPlace(os.getpid(), ray.get_runtime_context().get_node_id())
        return self._rank_blocks[0].awaited, place

    def catch_up(self, log: Sequence[bytes]) -> None:
        """Make all rounds of the *log*."""
        self._rank_blocks[0].catch_up(log)

    def advance(self, message: bytes) -> bytes:
        """Make the round that *message* orders."""
        return self._rank_blocks[0].advance(message)

    def heads(self) -> Any:
        """The next task of every lane."""
        return self._rank_blocks[0].heads

    def collect(self) -> BlockResult:
        """What the block found out."""
        return self._rank_blocks[0].collect()

    def leave(self) -> None:
        """Let go of the block and of its memory."""
        self._rank_blocks.clear()


class RayCluster:
    """A connection to Ray, with the few things that are asked of it."""

    def __init__(self, *, workers: int, is_local: bool) -> None:
        self.workers = workers
        self.is_local = is_local
        # A seat works while its driver waits, and the other way round, and never while
        # tasks are fanned out: it needs no CPU of its own, so it can always be placed.
        # The driver rebuilds lost ones itself, since only it has the log.
        self._seat_class: Any = ray.remote(num_cpus=0, max_restarts=0)(Seat)
        self._seats_of_raylet: Counter[str] = Counter()
        self._answer_chunk: Any = ray.remote(num_cpus=1, max_retries=TASK_RETRIES)(_answer_chunk)

    def put(self, value: object) -> Any:
        """A reference to *value* in the object store."""
        try:
            return ray.put(value)
        except RayError as error:
            raise ExecutionError(f"ray: could not store what workers must read: {error}") from error

    def new_seat(self) -> Any:
        """One more worker process, on the machine that has fewest for its cores."""
        cores = {row["NodeID"]: row["Resources"].get("CPU", 0.0) for row in _alive_raylets()}
        # Where machines have no cores to give, all are taken alike.
        able = {raylet for raylet, count in cores.items() if count} or set(cores)
        taken = self._seats_of_raylet
        chosen = min(able, key=lambda raylet: (taken[raylet] / max(cores[raylet], 1.0), raylet))
        self._seats_of_raylet[chosen] += 1
        placement = NodeAffinitySchedulingStrategy(chosen, soft=True)
        return self._seat_class.options(scheduling_strategy=placement).remote()

    def give_up(self, seat: Any) -> None:
        """End a worker process, if it is still there."""
        ray.kill(seat)

    def wait_for(self, references: Sequence[Any]) -> list[Any]:
        """What all *references* stand for; Lost where it will never be known."""
        try:
            return list(ray.get(list(references)))
        except RayError:
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
            done, pending = ray.wait(pending, num_returns=1)
            has_failed = has_failed or _is_failed(done[0])
        # Chunks are asked in order, so the first failure is among them whoever failed first.
        return [_answer(reference) for reference in asked]


@contextmanager
def open_cluster(*, workers: int | None, address: str | None) -> Iterator[RayCluster]:
    """The Ray cluster at *address*, or one started here and stopped at the end.

    A process that is connected already stays so, and its cluster is used.
    """
    if ray.is_initialized():
        _check_same_cluster(address)
        yield _connected(workers, is_local=False)
        return
    with ended_in_order(), private_folder() as folder:
        try:
            if address is None:
                _start(
                    address="local",
                    num_cpus=workers or core_count(),
                    include_dashboard=False,
                    _temp_dir=folder,
                )
            else:
                check_reachable(address)
                _start(address=address)
                _check_versions(address)
            # Once more, because Ray has put its own answer to that signal in place.
            with ended_in_order():
                yield _connected(workers, is_local=address is None)
        finally:
            ray.shutdown()


def _check_same_cluster(address: str | None) -> None:
    """Refuse an *address* other than that of the cluster this process is connected to."""
    joined = ray.get_runtime_context().gcs_address
    if address not in (None, "auto", joined):
        raise ExecutionError(
            f"ray: this process is connected to the cluster at {joined!r} already and cannot join "
            f"{address!r}. Call ray.shutdown() first, or leave the address out."
        )


def _start(*, address: str, **options: Any) -> None:
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        if address == "local":
            raise ExecutionError(
                f"ray: could not start here: {error} Use --executor serial instead."
            ) from error
        raise ExecutionError(
            f"ray: could not join the cluster at {address!r}: {error} "
            "Check the address, and that Ray and Python are of the same version there."
        ) from error


def _connected(workers: int | None, *, is_local: bool) -> RayCluster:
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]  # Ray's
    return RayCluster(workers=workers or max(int(resources.get("CPU", 1)), 1), is_local=is_local)


def _check_versions(address: str) -> None:
    """Refuse a cluster with a machine where perfmodel is missing or of another version."""

    # Inside a function so that Ray sends its code: where perfmodel is missing, a name
    # could not be looked up.
    def installed_version() -> str:
        try:
            from perfmodel import __version__
        except ImportError:
            return "missing"
        return __version__

    probe = ray.remote(num_cpus=0, max_retries=0)(installed_version)
    hosts = {row["NodeID"]: row["NodeManagerAddress"] for row in _alive_raylets()}
    asked = {
        raylet: probe.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(raylet, soft=False)
        ).remote()
        for raylet in hosts
    }
    wrong = []
    for raylet, reference in asked.items():
        try:
            found = ray.get(reference, timeout=PROBE_TIMEOUT_S)
        except (GetTimeoutError, RayError) as error:
            found = f"not to be had ({type(error).__name__})"
        if found != perfmodel.__version__:
            wrong.append(f"{hosts[raylet]}: perfmodel is {found}")
    if wrong:
        raise ExecutionError(
            f"ray: every machine of the cluster at {address!r} must have perfmodel "
            f"{perfmodel.__version__} installed. {'; '.join(wrong)}. Install it there."
        )


def _alive_raylets() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]  # Ray's
    return [row for row in rows if row["Alive"]]


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


def _answer_or_lost(reference: Any) -> Any:
    """What *reference* stands for. An error of the work itself is raised as it was there."""
    try:
        return ray.get(reference)
    except LOST as error:
        return Lost(type(error).__name__)
    except RayTaskError as error:
        if isinstance(error.cause, Exception):
            raise error.cause from None
        raise ExecutionError(f"ray: a worker failed: {error}") from error
    except RayError as error:
        raise ExecutionError(f"ray: the cluster failed: {error}") from error
