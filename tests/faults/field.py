"""A Ray cluster of several raylets on this machine, made to lose its parts."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

MARK = "PERFMODEL_FAULT_DRILL"
"""Every process of a drill inherits this; drivers have their own value."""
MOST_STARTS = 20
FINAL = ("head raylet", "gcs")
"""A cluster does not survive the loss of these."""
STOPPED = "stopped "


def blow_of(fault: str) -> signal.Signals:
    """What a part is hit with: it is killed, or stopped and still takes connections."""
    return signal.SIGSTOP if fault.startswith(STOPPED) else signal.SIGKILL


class Field:
    """A cluster of *nodes* raylets, started when needed and again after it has lost its head."""

    def __init__(self, nodes: int, mark: str) -> None:
        self.nodes = nodes
        self._mark = mark
        self._cluster = None
        self._folder = ""

    @property
    def address(self) -> str:
        return self._cluster.address

    def prepare(self) -> None:
        """Have all raylets; on a busy machine Ray gives up before its processes are there."""
        os.environ[MARK] = self._mark
        for _ in range(MOST_STARTS):
            try:
                self._fill()
            except Exception as error:
                print(f"    the cluster did not start: {error}", flush=True)
                self.close()
            else:
                return
        sys.exit("no cluster could be started")

    def _fill(self) -> None:
        from ray.cluster_utils import Cluster

        if self._cluster is None:
            # Ray writes its address there, whatever its folder is, and does not make it.
            Path("/tmp/ray").mkdir(exist_ok=True)
            self._folder = tempfile.mkdtemp(prefix="pm-drill-", dir="/tmp")
            self._cluster = Cluster()
        while len(self._cluster.list_all_nodes()) < self.nodes:
            is_head = self._cluster.head_node is None
            folder = {"temp_dir": self._folder} if is_head else {}
            self._cluster.add_node(num_cpus=1, include_dashboard=False, **folder)

    def doomed_pids(self, fault: str, source: random.Random) -> list[int]:
        """What is hit; the workers of a machine go with its raylet."""
        fault = fault.removeprefix(STOPPED)
        if fault == "gcs":
            return _pids_of(self._cluster.head_node, "gcs_server")
        if fault == "head raylet":
            return _pids_of(self._cluster.head_node, "raylet")
        if fault == "raylet":
            return _pids_of(source.choice(sorted(self._cluster.worker_nodes, key=id)), "raylet")
        if fault == "worker":
            workers = [pid for node in self._cluster.list_all_nodes() for pid in _workers_of(node)]
            return [source.choice(workers)] if workers else []
        return []

    def recover(self, fault: str) -> None:
        """Take away what is left of lost parts."""
        if fault.removeprefix(STOPPED) in FINAL:
            self.close()
            return
        for node in list(self._cluster.worker_nodes):
            (raylet,) = node.all_processes["raylet"]
            is_gone = raylet.process.poll() is not None
            if is_gone or psutil.Process(raylet.process.pid).status() == psutil.STATUS_STOPPED:
                self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        if self._cluster is not None:
            # First, as a stopped process does not end when it is asked to.
            for pid in marked(self._mark):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with suppress(Exception):
                self._cluster.shutdown()
            shutil.rmtree(self._folder, ignore_errors=True)
            self._cluster = None


def _pids_of(node, kind: str) -> list[int]:
    return [info.process.pid for info in node.all_processes.get(kind, [])]


def _workers_of(node) -> list[int]:
    found = []
    for pid in _pids_of(node, "raylet"):
        with suppress(psutil.Error):
            for child in psutil.Process(pid).children():
                title = (child.cmdline() or [""])[0]
                is_agent = title.endswith("Agent")
                found += [child.pid] if title.startswith("ray::") and not is_agent else []
    return sorted(found)


def marked(mark: str) -> list[int]:
    """Other processes that have inherited *mark*."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_alive = process.status() != psutil.STATUS_ZOMBIE
            if is_alive and process.environ().get(MARK) == mark and process.pid != os.getpid():
                found.append(process.pid)
    return found


def wait_gone(mark: str, patience_s: float) -> list[int]:
    """The processes with *mark* that are still there after *patience_s*."""
    until_s = time.monotonic() + patience_s
    while (found := marked(mark)) and time.monotonic() < until_s:
        time.sleep(0.2)
    return found
