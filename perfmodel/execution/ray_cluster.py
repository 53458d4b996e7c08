"""RayCluster: the only door to Ray.

Nothing else here imports it, and this module is imported only when Ray is
wanted. Ray's own messages stay off the screen; what a person must know comes
as an ExecutionError that says where, what was lost and how to go on.
"""

from __future__ import annotations

import gc
import logging
import os
import secrets
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants
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

import perfmodel
from perfmodel.base.errors import ExecutionError
from perfmodel.engine.layout import Int64s
from perfmodel.execution.executor import WorkerPlace
from perfmodel.execution.rank_block import Assignment, RankBlock
from perfmodel.execution.ray_surroundings import (
    MOST_FOLDER_LENGTH,
    Warden,
    Watch,
    bounded,
    core_count,
    ended_in_order,
    environment,
    is_here,
    listens,
    private_folder,
    warden,
)
from perfmodel.execution.ray_warden import end_processes

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
LOOPBACK = "127.0.0.1"
STARTS = 3
PROBE_TIMEOUT_S = 120.0
SEAT_TIMEOUT_S = 120.0
"""How long a machine may take to start a worker process before others get its ranks."""
WATCH_S = 0.5
"""How long to wait for Ray before looking whether it is still there."""
TASK_RETRIES = 5
SHUTDOWN_S = 60.0
_STUCK = (
    f"ray: did not let go of this process within {SHUTDOWN_S:.0f} s, because parts of it are gone. "
    "Nothing was answered. Ask again, or use --executor serial."
)


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
    meetings: Int64s | None
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
        return Taken(block.awaited, block.meetings, place)

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
        rows = [row for row in _alive_raylets() if row["NodeID"] not in self._shunned]
        if after_loss:
            rows = [row for row in rows if _is_there(row)]
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
            hosts = {row["NodeID"]: row["NodeManagerAddress"] for row in _alive_raylets()}
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


@contextmanager
def open_cluster(*, workers: int | None, address: str | None) -> Iterator[RayCluster]:
    """The Ray cluster at *address*, or one started here and stopped at the end.

    A process that is connected already stays so, and its cluster is used.
    """
    if ray.is_initialized():
        _check_same_cluster(address)
        yield _connected(None, workers, is_local=False)
        return
    with ExitStack() as stack:
        stack.enter_context(ended_in_order())
        folder = stack.enter_context(private_folder()) if address is None else None
        guard = stack.enter_context(warden(folder))
        if folder is not None:
            stack.enter_context(_showing_token({"RAY_AUTH_TOKEN": secrets.token_hex(32)}))
        elif address is not None:
            _enter_with_token(stack, address)
        stack.callback(_shut_down, guard)
        if folder is not None:
            _start_here(folder, workers or core_count())
        elif address is not None:
            _start(address=address)
        # Once more, because Ray has put its own answer to that signal in place.
        stack.enter_context(ended_in_order())
        watch = _new_watch(guard)
        stack.callback(watch.end)
        if address is not None:
            _check_versions(address, watch)
        yield _connected(watch, workers, is_local=address is None)


def _check_same_cluster(address: str | None) -> None:
    """Refuse an *address* other than that of the cluster this process is connected to."""
    joined = ray.get_runtime_context().gcs_address
    if address not in (None, "auto", joined):
        raise ExecutionError(
            f"ray: this process is connected to the cluster at {joined!r} already and cannot join "
            f"{address!r}. Call ray.shutdown() first, or leave the address out."
        )


def _enter_with_token(stack: ExitStack, address: str) -> None:
    """Show the token of this machine to a Ray on it that asks for one.

    `ray start` asks for it where there is one, and Ray shows it by itself at the address `auto`
    only; elsewhere it is for a person to say whom to trust.
    """
    near = is_here(address)
    if near and _asks_for_token(address):
        stack.enter_context(_showing_token({}))
    if _asks_for_token(address):
        raise ExecutionError(
            f"ray: the cluster at {address!r} asks for a token. Set RAY_AUTH_MODE=token, and "
            "RAY_AUTH_TOKEN to what `ray get-auth-token` prints where it was started."
        )


@contextmanager
def _unheard() -> Iterator[None]:
    """Let nothing through to standard error, whoever writes."""
    sys.stderr.flush()
    kept = os.dup(2)
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def _asks_for_token(address: str) -> bool:
    inside: Any = ray._raylet
    fault: Any = getattr(ray.exceptions, "AuthenticationError", None)
    if fault is None or address == "auto" or "://" in address:
        return False
    try:
        # Ray writes of the refusal itself, from below Python.
        with _unheard():
            inside.GcsClient(address=address)
    except fault:
        return True
    # Whatever else is wrong is said when it is joined.
    except Exception:
        return False
    return False


@contextmanager
def _showing_token(token: dict[str, str]) -> Iterator[None]:
    """Speak to Ray with a *token*, or with the one this machine keeps.

    A token made up for a local Ray lets nobody else speak to it.
    Nothing where a person has chosen how Ray authenticates, or where Ray is
    too old to. Ray keeps the word it has read, so it is told to forget it.
    """
    chosen = {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ)
    inside: Any = ray._raylet
    loader = getattr(inside, "AuthenticationTokenLoader", None)
    if chosen or loader is None:
        yield
        return

    def forget() -> None:
        inside.Config.initialize("")
        loader.instance().reset_cache()

    try:
        with environment({"RAY_AUTH_MODE": "token", **token}):
            forget()
            yield
    finally:
        forget()


def _start_here(folder: Path, cores: int) -> None:
    """Start a local Ray that nobody outside this machine can reach."""
    # On Linux Ray takes the loopback address for a mistake, and the way it has for other
    # systems is read when it is imported; services and workers are handed the address.
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        with warnings.catch_warnings():
            # Nobody waits for the processes of a start that failed, and Python would say so.
            warnings.simplefilter("ignore", ResourceWarning)
            _start_in(folder, cores)
            gc.collect()
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _start_in(folder: Path, cores: int) -> None:
    for left in reversed(range(STARTS)):
        try:
            _start(
                address="local",
                num_cpus=cores,
                include_dashboard=False,
                _node_ip_address=LOOPBACK,
                # A socket's path has 107 characters and Ray adds up to 80, or has its own.
                _temp_dir=str(folder) if len(str(folder)) <= MOST_FOLDER_LENGTH else None,
            )
        except ExecutionError:
            if not left:
                raise
            # Ray gives its processes 30 s, which on a busy machine may be too few.
            ray.shutdown()
            end_processes(str(folder))
        else:
            return


def _start(*, address: str, **options: Any) -> None:
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    # Ray raises whatever it meets, a bare Exception where its processes do not come up in time.
    except Exception as error:
        said = " ".join(str(error).split())
        if address == "local":
            raise ExecutionError(
                f"ray: could not start on this machine ({type(error).__name__}: {said}). Nothing "
                "was left running. Look for memory, disk and processor time to spare, or use "
                "--executor serial."
            ) from error
        raise ExecutionError(
            f"ray: could not join the cluster at {address!r} ({type(error).__name__}: {said}). "
            "Check the address, and that Ray and Python are of the same version there."
        ) from error


def _new_watch(guard: Warden) -> Watch:
    worker: Any = ray._private.worker.global_worker
    return Watch(
        guard,
        raylet_socket=worker.node.raylet_socket_name,
        head=worker.gcs_client.address,
        host=worker.node.node_ip_address,
    )


def _connected(watch: Watch | None, workers: int | None, *, is_local: bool) -> RayCluster:
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]  # Ray's
    cores = max(int(resources.get("CPU", 1)), 1)
    return RayCluster(watch, workers=workers or cores, is_local=is_local)


def _check_versions(address: str, watch: Watch) -> None:
    """Refuse a cluster with a machine where perfmodel is missing or of another version.

    A machine that is lost meanwhile is left out: the others go on without it.
    """

    # Inside a function so that Ray sends its code: where perfmodel is missing, a name
    # could not be looked up.
    def installed_version() -> str:
        try:
            from perfmodel import __version__
        except ImportError:
            return "missing"
        return __version__

    probe = ray.remote(num_cpus=0, max_retries=0)(installed_version)
    rows = [row for row in _alive_raylets() if _is_there(row)]
    hosts = {row["NodeID"]: row["NodeManagerAddress"] for row in rows}
    asked = {
        raylet: probe.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(raylet, soft=False)
        ).remote()
        for raylet in hosts
    }
    found = {raylet: _probed(reference, watch) for raylet, reference in asked.items()}
    alive = {row["NodeID"] for row in _alive_raylets()}
    silent = [hosts[raylet] for raylet, said in found.items() if said is None and raylet in alive]
    if silent:
        raise ExecutionError(
            f"ray: {', '.join(silent)} of the cluster at {address!r} did not answer while it was "
            "joined: its raylet is lost or too busy. Nothing was begun. Take it out of the cluster "
            "(`ray stop` there) or wait until Ray has noticed, and ask again."
        )
    wrong = [
        f"{hosts[raylet]}: perfmodel is {said}"
        for raylet, said in found.items()
        if said not in (None, perfmodel.__version__)
    ]
    if wrong:
        raise ExecutionError(
            f"ray: every machine of the cluster at {address!r} must have perfmodel "
            f"{perfmodel.__version__} installed. {'; '.join(wrong)}. Install it there."
        )


def _probed(reference: Any, watch: Watch) -> str | None:
    """The version that a machine told; None where it did not answer."""
    until_s = time.monotonic() + PROBE_TIMEOUT_S
    while time.monotonic() < until_s:
        watch.check()
        try:
            return str(ray.get(reference, timeout=WATCH_S))
        except GetTimeoutError:
            continue
        except RayError:
            return None
    return None


def _is_there(row: dict[str, Any]) -> bool:
    """Whether the raylet of *row* listens; Ray takes a dead one for alive for up to a minute."""
    return listens(f"{row['NodeManagerAddress']}:{row['NodeManagerPort']}")


def _shut_down(guard: Warden) -> None:
    """Leave Ray, which waits for processes that may be gone for good."""
    with bounded(guard, SHUTDOWN_S, _STUCK):
        ray.shutdown()


def _own_host() -> str:
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]  # Ray's


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
