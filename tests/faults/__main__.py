"""The fault drill: real clusters of two and three raylets, and something killed at a random round.

    python -m tests.faults [--runs 50] [--seed 1]

Every run must end with the bytes of a replay in one process or with a sentence, in time, and with
a worker on every raylet; after the next start nothing of it may be left. Prints a table, and exits
with 1 if a run did not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from perfmodel.engine.replay import replay
from perfmodel.execution.on_ray import surroundings, watchdog
from tests.execution.jobs import alternating_job
from tests.faults.driver import ITERATIONS, MEETINGS, ROUNDS, digest

CHECKOUT = Path(__file__).resolve().parents[2]
FAULTS = ("worker", "raylet", "head raylet", "gcs", "driver", "none")
MOST_S = 600.0
"""A driver needs 15 s on a quiet machine, and ten times that where eight others want to run."""
MOST_STARTS = 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: *end* is same bytes, sentence, or what is wrong.

    *raylets* is how many of the *nodes* had a worker when the replay began.
    """

    fault: str
    nodes: int
    number: int
    pause_s: float
    raylets: int
    end: str
    seconds: float
    said: str

    @property
    def is_good(self) -> bool:
        return self.is_spread and self.end in ("same bytes", "sentence", "killed")

    @property
    def is_spread(self) -> bool:
        return self.raylets == self.nodes


def start_cluster(nodes: int):
    """A cluster; on a busy machine Ray gives up before its processes are there."""
    from ray.cluster_utils import Cluster

    for _ in range(MOST_STARTS):
        cluster = Cluster()
        try:
            for _ in range(nodes):
                cluster.add_node(num_cpus=1, include_dashboard=False)
            cluster.wait_for_nodes()
        except Exception as error:
            print(f"    the cluster did not start: {error}", flush=True)
            cluster.shutdown()
        else:
            return cluster
    sys.exit("no cluster could be started")


def pids_of(node, kind: str) -> list[int]:
    return [info.process.pid for info in node.all_processes.get(kind, [])]


def doomed_pids(cluster, fault: str) -> list[int]:
    """What of *cluster* is killed; with a machine its workers go too."""
    if fault == "gcs":
        return pids_of(cluster.head_node, "gcs_server")
    if fault == "head raylet":
        return pids_of(cluster.head_node, "raylet")
    if fault == "raylet":
        return pids_of(next(iter(cluster.worker_nodes)), "raylet")
    return []


def run_once(fault: str, nodes: int, number: int, pause_s: float, wanted: str) -> Outcome:
    cluster = start_cluster(nodes)
    pids = doomed_pids(cluster, fault)
    word = fault if fault in ("none", "worker", "driver") else "raylet"
    words = [cluster.address, str(nodes), word, str(number), str(pause_s), *map(str, pids)]
    began_s = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.faults.driver", *words],
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            check=False,
            timeout=MOST_S,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        )
        end = judge(done, fault, wanted)
        said, raylets = done.stderr.strip(), raylets_of(done.stdout)
    except subprocess.TimeoutExpired as error:
        end, said, raylets = "HANG", "", raylets_of((error.stdout or b"").decode())
    finally:
        seconds = time.monotonic() - began_s
        cluster.shutdown()
    return Outcome(fault, nodes, number, pause_s, raylets, end, seconds, said)


def raylets_of(output: str) -> int:
    """On how many raylets the driver had workers, by the first line of its *output*."""
    lines = output.splitlines()
    return json.loads(lines[0])["raylets"] if lines else 0


def judge(done, fault: str, wanted: str) -> str:
    """How a run ended."""
    if done.returncode == 0:
        answer = json.loads(done.stdout.splitlines()[-1])
        return "same bytes" if answer["digest"] == wanted else "OTHER BYTES"
    if fault == "driver" and "ended without a word" in done.stderr:
        return "killed"
    if "Traceback" in done.stderr:
        return "TRACEBACK"
    is_sentence = done.returncode == 1 and "ray: " in done.stderr
    return "sentence" if is_sentence else f"EXIT {done.returncode} WITHOUT A SENTENCE"


def leftovers() -> list[str]:
    """What local Rays have left, once a start has cleared up after those that were killed."""
    surroundings.clear_leftovers()
    folders = Path(tempfile.gettempdir()).glob(f"{surroundings.FOLDER_PREFIX}*")
    return [str(folder) for folder in folders if not watchdog.marked_processes(str(folder))]


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill parts of Ray and see what becomes of it.")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", choices=FAULTS)
    words = parser.parse_args()
    os.environ.setdefault("RAY_worker_niceness", "0")
    source = random.Random(words.seed)
    wanted = digest(replay(*alternating_job(ranks=6, members=MEETINGS), iterations=ITERATIONS))
    before = set(leftovers())
    counts: Counter[tuple[str, str]] = Counter()
    spread, is_good = 0, True
    for run in range(words.runs):
        fault = words.fault or FAULTS[run % len(FAULTS)]
        nodes, number = source.choice((2, 3)), source.randint(1, ROUNDS - 1)
        # Rounds take milliseconds, and it takes seconds to notice a loss: in half of the runs
        # there is time for it.
        pause_s = source.choice((0.0, source.uniform(0.5, 5.0)))
        outcome = run_once(fault, nodes, number, pause_s, wanted)
        counts[outcome.fault, outcome.end] += 1
        spread += outcome.is_spread
        is_good = is_good and outcome.is_good
        print(
            f"{run + 1:>3} {outcome.fault:<12} workers on {outcome.raylets} of {outcome.nodes} "
            f"raylets, round {outcome.number:>2}, {outcome.pause_s:3.1f} s: "
            f"{outcome.end:<12} {outcome.seconds:5.1f} s  {outcome.said[:150]}",
            flush=True,
        )
    left = sorted(set(leftovers()) - before)
    print("\nfault        end          runs")
    for (fault, end), count in sorted(counts.items()):
        print(f"{fault:<12} {end:<12} {count:>4}")
    print(f"workers on all raylets: {spread} of {words.runs} starts")
    print(f"left behind: {left or 'nothing'}")
    return 0 if is_good and not left else 1


if __name__ == "__main__":
    sys.exit(main())
