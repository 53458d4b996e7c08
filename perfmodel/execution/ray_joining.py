"""Joining Ray: the cluster at an address, or one started here behind a token, and left in order.

Beside `ray_cluster` the only module that imports Ray. What keeps somebody from joining comes as
an ExecutionError that says where, what is missing and how to go on.
"""

from __future__ import annotations

import gc
import logging
import os
import secrets
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import perfmodel
from perfmodel.base.errors import ExecutionError
from perfmodel.execution.ray_cluster import WATCH_S, RayCluster, alive_raylets, is_there
from perfmodel.execution.ray_surroundings import (
    MOST_FOLDER_LENGTH,
    Watch,
    Watchdog,
    bounded,
    core_count,
    ended_in_order,
    environment,
    is_here,
    private_folder,
    watchdog,
)
from perfmodel.execution.ray_watchdog import end_processes

LOOPBACK = "127.0.0.1"
STARTS = 3
PROBE_TIMEOUT_S = 120.0
SHUTDOWN_S = 60.0
_STUCK = (
    f"ray: did not let go of this process within {SHUTDOWN_S:.0f} s, because parts of it are gone. "
    "Nothing was answered. Ask again, or use --executor serial."
)


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
        guard = stack.enter_context(watchdog(folder))
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
    # Ray ends a process that is to show a token and has none.
    is_bare = os.environ.get("RAY_AUTH_MODE") == "token" and not _keeps_token()
    if not is_bare and is_here(address) and _asks_for_token(address) and _keeps_token():
        stack.enter_context(_showing_token({}))
    if is_bare or _asks_for_token(address):
        raise ExecutionError(
            f"ray: the cluster at {address!r} asks for a token. Set RAY_AUTH_MODE=token, and "
            "RAY_AUTH_TOKEN to what `ray get-auth-token` prints where it was started."
        )


def _keeps_token() -> bool:
    """Whether there is a token to show, in the surroundings or in the home of who asks."""
    inside: Any = ray._raylet
    loader = getattr(inside, "AuthenticationTokenLoader", None)
    if loader is None:
        return False
    try:
        return bool(loader.instance().has_token(ignore_auth_mode=True))
    finally:
        # Else Ray would show it to those who do not ask, too.
        loader.instance().reset_cache()


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


def _new_watch(guard: Watchdog) -> Watch:
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
    rows = [row for row in alive_raylets() if is_there(row)]
    hosts = {row["NodeID"]: row["NodeManagerAddress"] for row in rows}
    asked = {
        raylet: probe.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(raylet, soft=False)
        ).remote()
        for raylet in hosts
    }
    found = {raylet: _probed(reference, watch) for raylet, reference in asked.items()}
    alive = {row["NodeID"] for row in alive_raylets()}
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


def _shut_down(guard: Watchdog) -> None:
    """Leave Ray, which waits for processes that may be gone for good."""
    with bounded(guard, SHUTDOWN_S, _STUCK):
        ray.shutdown()
