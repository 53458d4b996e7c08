"""Joining Ray: the cluster at an address, or one started here with a token, and leaving it cleanly.

Ray's own messages stay off the screen. What prevents joining comes as an ExecutionError that says
where, what is missing and how to go on.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants

from perfmodel.base.errors import ExecutionError
from perfmodel.base.identity import full_identity
from perfmodel.execution.on_ray.cluster import (
    Lost,
    RayCluster,
    WorkerCall,
    machines,
    only_on,
    place_of,
)
from perfmodel.execution.on_ray.liveness import (
    Watch,
    head_fault,
    is_here,
    names_port,
    raylet_fault,
)
from perfmodel.execution.on_ray.surroundings import (
    RAY_FOLDER,
    Watchdog,
    core_count,
    ended_in_order,
    environment,
    private_folder,
)
from perfmodel.execution.on_ray.watchdog import end_processes

PROBE_TIMEOUT_S = 120.0
SHUTDOWN_S = 40.0
JOIN_S = 45.0
"""Ray answers within seconds, or never: a raylet of this machine that hangs is not watched yet."""
STARTS = 3

# Private names of Ray that have no public counterpart, as seen in Ray 2.60.0; a test fails if one
# is gone. Older releases know no tokens.
_inside: Any = ray._raylet
_token_loader: Any = getattr(_inside, "AuthenticationTokenLoader", None)
_refusal: Any = getattr(ray.exceptions, "AuthenticationError", ())


@contextmanager
def open_cluster(*, workers: int | None, address: str | None) -> Iterator[RayCluster]:
    """The Ray cluster at *address*, or one started here and stopped at the end.

    A process that is connected already stays so, and its cluster is used.
    """
    if ray.is_initialized():
        joined = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", joined):
            raise ExecutionError(
                f"ray: this process is connected to the cluster at {joined!r} already and cannot "
                f"join {address!r}. Call ray.shutdown() first, or leave the address out."
            )
        with closing(Watch()) as watch:
            _need_cluster(watch)
            cluster = RayCluster(watch, workers=workers, is_local=False)
            _check_programs(cluster, joined)
            yield cluster
        return
    with ExitStack() as stack:
        stack.enter_context(ended_in_order())
        folder = stack.enter_context(private_folder()) if address is None else None
        guard = stack.enter_context(closing(Watchdog(folder)))
        watch = stack.enter_context(closing(Watch(guard.end_soon)))
        if address is None:
            stack.enter_context(_showing_token({"RAY_AUTH_TOKEN": secrets.token_hex(32)}))
        else:
            is_local = is_here(address)
            # Even the question whether it asks for a token may never be answered.
            if names_port(address):
                watch.need(address.removeprefix("ray://"), head_fault(address))
            stack.enter_context(_admitted(address, is_local=is_local))
        stack.callback(_shut_down, guard)
        # It would take the end of Ray for a loss.
        stack.callback(watch.close)
        if folder is not None:
            _start_here(folder, workers or core_count())
        else:
            limit = guard.limit(
                JOIN_S,
                f"ray: the cluster at {address!r} did not let this process join within "
                f"{JOIN_S:.0f} s: its raylet on this machine hangs, or the machine is too busy. "
                "Restart Ray here, ask again, or use --executor serial.",
            )
            _start(address)
            limit.cancel()
        # Once more, because Ray has set its own handler of that signal.
        stack.enter_context(ended_in_order())
        _need_cluster(watch)
        cluster = RayCluster(watch, workers=workers, is_local=address is None)
        if address is not None:
            _check_programs(cluster, address)
        yield cluster


def _need_cluster(watch: Watch) -> None:
    """Watch the head and the raylet of this process."""
    here = ray.get_runtime_context()
    watch.need(here.gcs_address, head_fault(here.gcs_address))
    for row in ray.nodes():  # type: ignore[no-untyped-call]  # Ray's
        if row["NodeID"] == here.get_node_id():
            watch.need(place_of(row), raylet_fault(row["NodeManagerAddress"]))


@contextmanager
def _admitted(address: str, *, is_local: bool) -> Iterator[None]:
    """Show the token of this machine to a Ray on it that asks for one; raise if that is refused.

    `ray start` asks for a token if there is one, and Ray by itself shows it at the address `auto`
    only; for a cluster elsewhere the user decides whom to trust.
    """
    with ExitStack() as stack:
        # Ray ends a process that is to show a token and has none.
        is_bare = os.environ.get("RAY_AUTH_MODE") == "token" and not _keeps_token()
        if not is_bare and is_local and _asks_for_token(address) and _keeps_token():
            stack.enter_context(_showing_token({}))
        if is_bare or _asks_for_token(address):
            is_shown = os.environ.get("RAY_AUTH_MODE") == "token" and not is_bare
            said = "refuses the given token" if is_shown else "asks for a token"
            raise ExecutionError(
                f"ray: the cluster at {address!r} {said}. Set RAY_AUTH_MODE=token, and "
                "RAY_AUTH_TOKEN to what `ray get-auth-token` prints where it was started."
            )
        yield


def _keeps_token() -> bool:
    """Whether there is a token to show, in the environment or in the home of the user."""
    if _token_loader is None:
        return False
    try:
        return bool(_token_loader.instance().has_token(ignore_auth_mode=True))
    finally:
        # Else Ray would show it to clusters that do not ask for it, too.
        _token_loader.instance().reset_cache()


def _asks_for_token(address: str) -> bool:
    if address == "auto" or "://" in address:
        return False
    # Ray writes about the refusal to standard error, from below Python.
    sys.stderr.flush()
    kept = os.dup(2)
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), 2)
        try:
            _inside.GcsClient(address=address)
        except _refusal:
            return True
        # Any other fault is reported when the cluster is joined.
        except Exception:
            return False
        finally:
            os.dup2(kept, 2)
            os.close(kept)
    return False


@contextmanager
def _showing_token(token: dict[str, str]) -> Iterator[None]:
    """Speak to Ray with a *token*, or with the one that this machine keeps.

    With a token generated for a local Ray no other process can speak to it. Does nothing if the
    user has chosen how Ray authenticates, or if Ray is too old. Ray remembers what it has read, so
    it is told to forget it.
    """
    chosen = {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ)
    if chosen or _token_loader is None:
        yield
        return

    def forget() -> None:
        _inside.Config.initialize("")
        _token_loader.instance().reset_cache()

    try:
        with environment({"RAY_AUTH_MODE": "token", **token}):
            forget()
            yield
    finally:
        forget()


def _start_here(folder: Path, cores: int) -> None:
    """Start a local Ray that no other machine and no other user can reach."""
    options = {
        "num_cpus": cores,
        "include_dashboard": False,
        "_node_ip_address": "127.0.0.1",
        "_temp_dir": str(folder / RAY_FOLDER),
    }
    # On Linux Ray replaces the loopback address, unless clusters are switched off: by a variable
    # that it reads when it is imported.
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        for _ in range(STARTS - 1):
            with suppress(ExecutionError):
                _start("local", **options)
                return
            # Ray gives its processes 30 s, which may be too short on a busy machine.
            ray.shutdown()
            end_processes(str(folder))
        _start("local", **options)
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _start(address: str | None, **options: Any) -> None:
    """Connect to Ray."""
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    # Ray raises anything, a bare Exception if its processes do not come up in time.
    except Exception as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        if address == "local":
            raise ExecutionError(
                f"ray: could not start on this machine ({said}). Nothing was left running. Check "
                f"that memory, disk and processor time are free, or use --executor serial."
            ) from error
        raise ExecutionError(
            f"ray: could not join the cluster at {address!r} ({said}). Check the address, and that "
            "Ray and Python are of the same version there."
        ) from error


def _shut_down(guard: Watchdog) -> None:
    """Leave Ray, which waits for processes that may be gone for good."""
    stuck = (
        f"ray: did not release this process within {SHUTDOWN_S:.0f} s, because parts of it are "
        "gone. There is no answer. Ask again, or use --executor serial."
    )
    guard.limit(SHUTDOWN_S, stuck)
    ray.shutdown()


def _check_programs(cluster: RayCluster, address: str) -> None:
    """Refuse a cluster with a machine where perfmodel is missing or another program.

    A machine that is lost meanwhile is left out: the others go on without it.
    """

    # Inside a function so that Ray sends its code: where perfmodel is missing, a name
    # could not be looked up.
    def installed_program() -> str:
        try:
            from perfmodel.base.identity import full_identity
        except ImportError:
            return "missing or too old to report it"
        return full_identity()

    probe: Any = ray.remote(num_cpus=0, max_retries=0)(installed_program)
    rows = machines()
    asked = [
        WorkerCall(
            probe.options(scheduling_strategy=only_on(row["NodeID"])).remote(), place_of(row)
        )
        for row in rows
    ]
    answers = cluster.wait_for(asked, timeout_s=PROBE_TIMEOUT_S)
    there = {row["NodeID"] for row in machines()}
    silent, wrong = [], []
    for row, program in zip(rows, answers, strict=True):
        host = row["NodeManagerAddress"]
        if isinstance(program, Lost):
            silent += [host] if row["NodeID"] in there else []
        elif program != full_identity():
            wrong.append(f"{host}: its program is {program}")
    if silent:
        raise ExecutionError(
            f"ray: {', '.join(silent)} of the cluster at {address!r} did not answer during the "
            f"join: its raylet is lost or too busy. Nothing was started. Remove it from the "
            f"cluster "
            "(`ray stop` there) or wait until Ray has noticed, and ask again."
        )
    if wrong:
        raise ExecutionError(
            f"ray: every machine of the cluster at {address!r} must have the same perfmodel "
            f"installed as this one, program {full_identity()} (`perfmodel --version` prints "
            f"it). {'; '.join(wrong)}. Install it there."
        )
